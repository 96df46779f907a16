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
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

import torch_xla
from torch_xla import runtime
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
            except IndexError:  # The garbage collector, run in this thread, closed the queue.
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
        except BaseException as error:  # Raised again where the user takes the samples.
            last = _Failure(error)
        for channel in channels:
            channel.put(last)
    except _ClosedError:
        pass


def _upload(source: _Channel, device: torch.device, target: _Channel, input_sharding: Any) -> None:
    """Moves samples from ``source`` to ``device``; an uploading thread."""
    try:
        while True:
            data = source.get()
            if data is not _END and not isinstance(data, _Failure):
                try:
                    data = xla_model.send_cpu_data_to_device(data, device, input_sharding)
                except BaseException as error:
                    data = _Failure(error)
            target.put(data)
            if data is _END or isinstance(data, _Failure):
                return
            del data
    except _ClosedError:
        pass


def _normalized(device: torch.device | str) -> torch.device:
    """Returns ``device`` with its ordinal."""
    return torch.device(xla_model._device_name(device))


def _close_channels(channels: Sequence[_Channel]) -> None:
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

    Args:
        loader: The data loader, any iterable.
        devices: The devices, as ``torch.device`` or strings.
        batchdim: The dimension of the batch. Samples are uploaded whole, so that it changes
            nothing; scripts pass it.
        batches_per_execution: How many samples each device loader gives between two
            :func:`torch_xla.sync`.
        loader_prefetch_size: How many samples, in all, may have been read and not uploaded.
        device_prefetch_size: How many samples may wait on each device.
        input_sharding: In SPMD mode, how samples shall lie on the devices: see
            :func:`torch_xla.core.xla_model.send_cpu_data_to_device`. The background thread sends
            each device its part.

    Raises:
        ValueError: No device is given, or one of the sizes is below 1.
        RuntimeError: ``input_sharding`` is given and the process is not in SPMD mode.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        devices: Sequence[torch.device | str],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 8,
        device_prefetch_size: int = 4,
        input_sharding: Any = None,
    ) -> None:
        sizes = {
            "batches_per_execution": batches_per_execution,
            "loader_prefetch_size": loader_prefetch_size,
            "device_prefetch_size": device_prefetch_size,
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
        self._devices = list(dict.fromkeys(map(_normalized, devices)))
        share = max(1, loader_prefetch_size // len(self._devices))
        sources = [_Channel(share) for _ in self._devices]
        self._channels = {device: _Channel(device_prefetch_size) for device in self._devices}
        _live_loaders.add(self)
        self._finalizer = weakref.finalize(
            self, _close_channels, [*sources, *self._channels.values()]
        )
        self._finalizer.atexit = False
        self._start(_read, loader, sources)
        for device, source in zip(self._devices, sources, strict=True):
            self._start(_upload, source, device, self._channels[device], input_sharding)

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
        self._channel = loader._channels[device]
        self._batches_per_execution = loader._batches_per_execution
        self._batches = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._loader is None:
            raise StopIteration
        at_boundary = self._batches % self._batches_per_execution == 0
        if at_boundary:
            torch_xla.sync()
        try:
            data = self._channel.get()
        except _ClosedError:
            data = _END
        if data is _END or isinstance(data, _Failure):
            self._loader = None  # The loader closes with its last iterator.
            if isinstance(data, _Failure):
                raise data.error
            if not at_boundary:
                torch_xla.sync()
            raise StopIteration
        self._batches += 1
        return data

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
        device: The device.
        **kwargs: Arguments for :class:`ParallelLoader`.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device | str, **kwargs: Any) -> None:
        self._loader = loader
        self._device = torch.device(device)
        self._parallel_loader_kwargs = kwargs
        self._passes: weakref.WeakSet[ParallelLoader] = weakref.WeakSet()

    def __iter__(self) -> PerDeviceLoader:
        loader = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        self._passes.add(loader)
        return loader.per_device_loader(self._device)

    def __len__(self) -> int:
        """Returns the number of samples in a pass, where the wrapped loader knows it."""
        return len(self._loader)

    def close(self) -> None:
        """Ends the passes that are under way, and their threads."""
        for loader in list(self._passes):
            loader.close()
