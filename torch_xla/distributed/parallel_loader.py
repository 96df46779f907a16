"""Feeding devices from a data loader, with the upload in the background.

One thread reads the wrapped loader; one thread for each device copies to it. Bounded queues lie
between them and the consumer, so that a step's data is on the device when the step is traced.
The threads know the queues only, never the objects that users hold: when those are closed or
collected, the queues close and the threads end.
"""

from __future__ import annotations

import atexit
import collections
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, cast

import torch

from torch_xla import _XLAC, runtime
from torch_xla._internal.compile.step import sync
from torch_xla.core import xla_model

# How long to wait at exit for a thread that is inside the wrapped loader, in seconds.
_EXIT_TIMEOUT = 5.0


class _ClosedError(Exception):
    """The queue was closed by its consumer, or is at its end."""


class _Failure:
    """An exception on its way to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


_END = object()

# Moves a sample to the device.
_Upload = Callable[[Any], Any]


class _Channel:
    """A bounded queue that either side can close."""

    def __init__(self, capacity: int) -> None:
        self._items: collections.deque[Any] = collections.deque()
        self._capacity = capacity
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: Any) -> None:
        """Adds ``item``, waiting for room. Raises _ClosedError when nobody will take it."""
        with self._changed:
            while len(self._items) >= self._capacity and not self._closed:
                self._changed.wait()
            if self._closed:
                raise _ClosedError
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Any:
        """Takes the oldest item, waiting for one. Raises _ClosedError when there will be none."""
        with self._changed:
            while not self._items and not self._closed:
                self._changed.wait()
            if self._closed:
                raise _ClosedError
            try:
                item = self._items.popleft()
            except IndexError:  # The garbage collector, run in this thread, has closed the queue.
                raise _ClosedError from None
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Wakes both sides, and drops what nobody took."""
        with self._changed:
            self._closed = True
            dropped, self._items = self._items, collections.deque()
            self._changed.notify_all()
        del dropped  # Outside the lock: it may hold tensors, whose release takes time.


def _read(loader: Iterable[Any], channels: Sequence[_Channel]) -> None:
    """Deals the samples of ``loader`` to ``channels`` in turn; the reader thread."""
    try:
        try:
            for index, data in enumerate(loader):
                channels[index % len(channels)].put(data)
                del data
            last: Any = _END
        except _ClosedError:
            return
        except BaseException as error:  # Raised again in the thread that takes the samples.
            last = _Failure(error)
        for channel in channels:
            channel.put(last)
    except _ClosedError:
        pass


class _InStep:
    """A channel without threads: reads and uploads a sample when the consumer takes it.

    It is for loaders that tell their position, which reading ahead would change.
    """

    def __init__(self, loader: Iterable[Any], upload: _Upload) -> None:
        self._loader: Iterable[Any] | None = loader
        self._samples: Iterator[Any] | None = None
        self._upload = upload

    def get(self) -> Any:
        """Returns the next sample, ``_END`` or a failure."""
        if self._loader is None:
            raise _ClosedError
        try:
            if self._samples is None:
                self._samples = iter(self._loader)
            return self._upload(next(self._samples))
        except StopIteration:
            return _END
        except BaseException as error:
            return _Failure(error)

    def close(self) -> None:
        """Lets go of the loader."""
        self._loader = self._samples = None


class _Turns:
    """Makes threads that take from one channel give to another in the order of taking."""

    def __init__(self, source: _Channel, target: _Channel) -> None:
        self._source = source
        self._target = target
        self._taking = threading.Lock()
        self._taken = self._given = 0
        self._turn = threading.Condition()

    def take(self) -> tuple[int, Any]:
        """Returns a number and a sample; raises _ClosedError when there will be none."""
        with self._taking:
            data = self._source.get()
            self._taken += 1
            if _is_last(data):
                self._source.close()
            return self._taken - 1, data

    def give(self, number: int, data: Any) -> None:
        """Passes on what was taken under ``number``, after all that was taken before it."""
        with self._turn:
            self._turn.wait_for(lambda: self._given == number)
        try:
            self._target.put(data)
        finally:  # Even if nobody will take it, the other threads must be told.
            with self._turn:
                self._given += 1
                self._turn.notify_all()


def _length(samples: Iterable[Any]) -> int:
    """Returns a loader's length; raises TypeError if the loader does not know it."""
    return len(cast(Sized, samples))


def _is_last(data: Any) -> bool:
    return data is _END or isinstance(data, _Failure)


def _transfer(turns: _Turns, upload: _Upload) -> None:
    """Moves samples to a device; an uploading thread."""
    try:
        while True:
            number, data = turns.take()
            if not _is_last(data):
                try:
                    data = upload(data)
                except _ClosedError:
                    data = _END
                except BaseException as error:
                    data = _Failure(error)
            turns.give(number, data)
            if _is_last(data):
                return
            del data
    except _ClosedError:
        pass


def _normalized(device: torch.device | str) -> torch.device:
    """Returns ``device`` with its ordinal."""
    return torch.device(xla_model._device_name(device))


def _close_channels(channels: Sequence[_Channel | _InStep]) -> None:
    for channel in channels:
        channel.close()


_live_loaders: weakref.WeakSet[ParallelLoader] = weakref.WeakSet()
_live_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the threads before the interpreter and the device go away."""
    for loader in list(_live_loaders):
        loader.close()
    for thread in list(_live_threads):
        thread.join(_EXIT_TIMEOUT)


class ParallelLoader:
    """Wraps a data loader with a background upload to one or more devices.

    The i-th sample goes to ``devices[i % len(devices)]``. Samples may be any nesting of
    mappings, lists, tuples, named tuples and dataclasses; tensors in them go to the device, all
    else passes through. It is good for one pass over the loader.

    A loader with the attribute ``end_of_dataloader`` (those of accelerate) tells its user where it
    is. Such a one is read when a sample is taken, not ahead, if there is one device.

    Args:
        loader: The data loader, any iterable. ``cpu_loader`` is another name of it.
        devices: The devices, as ``torch.device`` or strings.
        batchdim: The dimension of the batch. Samples are uploaded whole, so that it changes
            nothing; scripts pass it.
        batches_per_execution: How many samples each device loader gives between two
            :func:`torch_xla.sync`.
        loader_prefetch_size: How many samples, in all, may have been read and not uploaded.
        device_prefetch_size: How many samples may wait on each device.
        host_to_device_transfer_threads: How many threads upload to each device. The order stays.
        input_sharding: In SPMD mode, how samples shall lie on the devices: see
            :func:`torch_xla.core.xla_model.send_cpu_data_to_device`. The background thread sends
            each device its part.

    Raises:
        ValueError: No device is given, or one of the sizes is below 1.
        RuntimeError: ``input_sharding`` is given and the process is not in SPMD mode.
    """

    def __init__(
        self,
        loader: Iterable[Any] | None = None,
        devices: Sequence[torch.device | str] = (),
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 8,
        device_prefetch_size: int = 4,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
        *,
        cpu_loader: Iterable[Any] | None = None,
    ) -> None:
        if (loader is None) == (cpu_loader is None):
            raise TypeError("ParallelLoader: expected one `loader` (`cpu_loader` is the same)")
        cpu_loader = loader if cpu_loader is None else cpu_loader
        assert cpu_loader is not None
        sizes = {
            "batches_per_execution": batches_per_execution,
            "loader_prefetch_size": loader_prefetch_size,
            "device_prefetch_size": device_prefetch_size,
            "host_to_device_transfer_threads": host_to_device_transfer_threads,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"ParallelLoader: expected `{name}` of at least 1, got {size}")
        if input_sharding is not None and not runtime.is_spmd():
            raise RuntimeError(
                "ParallelLoader: expected SPMD mode with `input_sharding`; call "
                "torch_xla.runtime.use_spmd() first"
            )
        if not devices:
            raise ValueError("ParallelLoader: expected at least one device in `devices`")
        self._batches_per_execution = batches_per_execution
        self._cpu_loader = cpu_loader
        self._input_sharding = input_sharding
        self._devices = list(dict.fromkeys(map(_normalized, devices)))
        self._channels: dict[torch.device, _Channel | _InStep] = {}
        sources: list[_Channel] = []
        turns: list[tuple[torch.device, _Turns]] = []
        if len(self._devices) == 1 and hasattr(cpu_loader, "end_of_dataloader"):
            (device,) = self._devices
            self._channels[device] = _InStep(cpu_loader, self._upload_to(device))
        else:
            share = max(1, loader_prefetch_size // len(self._devices))
            for device in self._devices:
                source, target = _Channel(share), _Channel(device_prefetch_size)
                sources.append(source)
                self._channels[device] = target
                turns.append((device, _Turns(source, target)))
        _live_loaders.add(self)
        self._finalizer = weakref.finalize(
            self, _close_channels, [*sources, *self._channels.values()]
        )
        self._finalizer.atexit = False
        if not sources:
            return
        self._start(_read, cpu_loader, sources)
        for device, own in turns:
            for _ in range(host_to_device_transfer_threads):
                self._start(_transfer, own, self._upload_to(device))

    def _upload_to(self, device: torch.device) -> _Upload:
        """Returns what moves a sample to ``device``, without keeping this object alive."""
        method = weakref.WeakMethod(self.send_cpu_data_to_device)

        def upload(data: Any) -> Any:
            send = method()
            if send is None:
                raise _ClosedError
            (sent,) = send([data], device)
            return sent

        return upload

    def send_cpu_data_to_device(self, batches: list[Any], device: torch.device) -> list[Any]:
        """Moves samples to a device; subclasses may do more. Called in the background."""
        return [xla_model._sent(batch, device, self._input_sharding) for batch in batches]

    @property
    def batches_per_execution(self) -> int:
        """How many samples each device loader gives between two syncs."""
        return self._batches_per_execution

    def per_device_samples(self) -> int:
        """Returns how many samples every device gets at least, where the loader knows it."""
        return _length(self._cpu_loader) // len(self._devices)

    def next_item(self, device: torch.device | str) -> Any:
        """Returns the next sample of a device, None after the last one.

        Raises:
            Exception: What the wrapped loader or the upload raised.
        """
        data = self._take(_normalized(device))
        return None if data is _END else data

    def _take(self, device: torch.device) -> Any:
        """As :meth:`next_item`, but a sample may be None, and the end is ``_END``."""
        channel = self._channels[device]
        start = time.perf_counter_ns()
        try:
            data = channel.get()
        except _ClosedError:
            return _END
        _XLAC._note_input_time(time.perf_counter_ns() - start)
        if _is_last(data):
            channel.close()  # Nobody may wait for another sample.
        if isinstance(data, _Failure):
            raise data.error
        return data

    def _start(self, target: Any, *args: Any) -> None:
        name = f"torch_xla {target.__name__.strip('_')}"
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        _live_threads.add(thread)
        thread.start()

    def per_device_loader(self, device: torch.device | str) -> PerDeviceLoader:
        """Returns the iterator over the samples of a device.

        Raises:
            ValueError: ``device`` is not one of this loader's.
        """
        device = _normalized(device)
        if device not in self._channels:
            raise ValueError(
                f"per_device_loader(): expected one of {[str(name) for name in self._devices]}, "
                f"got {device}"
            )
        return PerDeviceLoader(self, device)

    def close(self) -> None:
        """Ends the background threads; what they read already is dropped.

        It need not be called: the end of the data, or the last reference to this object and to
        its iterators, does the same.
        """
        self._finalizer()


class PerDeviceLoader:
    """Iterator over the samples that a :class:`ParallelLoader` uploads to one device.

    Each ``batches_per_execution``-th ``next()`` begins with :func:`torch_xla.sync`, and so does
    the end: the graph of the loop's body is launched there.
    """

    def __init__(self, loader: ParallelLoader, device: torch.device) -> None:
        self._loader: ParallelLoader | None = loader
        self._device = device
        self._samples = loader._cpu_loader
        self._place = loader._devices.index(device), len(loader._devices)
        self._batches_per_execution = loader.batches_per_execution
        self._batches = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        """Returns how many samples the device gets in all, where the loader knows it."""
        index, count = self._place
        return (_length(self._samples) - index + count - 1) // count

    def __next__(self) -> Any:
        if self._loader is None:
            raise StopIteration
        at_boundary = self._batches % self._batches_per_execution == 0
        if at_boundary:
            if self._batches == 0:
                _XLAC._xla_expect_syncs(self._batches_per_execution)
            sync()
        try:
            data = self._loader._take(self._device)
        except BaseException:
            self._loader = None
            raise
        if data is _END:
            self._loader = None  # The loader closes with its last iterator.
            _XLAC._xla_expect_syncs(0)
            if not at_boundary:
                sync()
            raise StopIteration
        self._batches += 1
        return data

    def next(self) -> Any:
        """Returns the next sample."""
        return next(self)

    def close(self) -> None:
        """Ends the iteration, and the loader with it: see :meth:`ParallelLoader.close`."""
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()


class MpDeviceLoader:
    """A data loader whose samples are on a device: the loader to train with.

    Every pass over it makes a :class:`ParallelLoader`. Leaving a loop early needs no care: the
    threads of a pass end when its iterator goes away.

    Example::

        for data, target in pl.MpDeviceLoader(loader, xm.xla_device()):
            optimizer.zero_grad()
            loss_fn(model(data), target).backward()
            xm.optimizer_step(optimizer)

    Args:
        loader: The data loader, any iterable.
        device: The device; the current xla device when None.
        **kwargs: Arguments for :class:`ParallelLoader`.
    """

    def __init__(
        self, loader: Iterable[Any], device: torch.device | str | None, **kwargs: Any
    ) -> None:
        self._loader = loader
        self._device = xla_model.xla_device() if device is None else torch.device(device)
        self._parallel_loader_kwargs = kwargs
        self._passes: weakref.WeakSet[ParallelLoader] = weakref.WeakSet()

    def __iter__(self) -> PerDeviceLoader:
        loader = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        self._passes.add(loader)
        return loader.per_device_loader(self._device)

    def __len__(self) -> int:
        """Returns the number of samples in a pass, where the wrapped loader knows it."""
        return _length(self._loader)

    def __getattr__(self, name: str) -> Any:
        """Finds what is not here (``dataset``, ``sampler``, …) in the wrapped loader."""
        if name == "_loader" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def close(self) -> None:
        """Ends the passes that are under way, and their threads."""
        for loader in list(self._passes):
            loader.close()
