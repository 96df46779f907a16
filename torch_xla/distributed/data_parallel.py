"""Training on several devices of one process, a thread for each.

For old programs. Use a process for each device (:mod:`torch_xla.distributed.xla_multiprocessing`)
or SPMD (:mod:`torch_xla.distributed.spmd`): threads of Python take turns in tracing.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from torch_xla._internal.replicas.thread_group import ThreadGroup
from torch_xla.core import xla_model
from torch_xla.distributed.parallel_loader import ParallelLoader


class Context:
    """What a loop function keeps from one call to the next, for its device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def getattr_or(self, name: str, defval: Any) -> Any:
        """Returns attribute ``name``; where there is none it becomes ``defval``, or its result."""
        if not hasattr(self, name):
            setattr(self, name, defval() if callable(defval) else defval)
        return getattr(self, name)


class DataParallel:
    """Runs a loop function with a replica of a model on each device.

    In the threads :func:`torch_xla.core.xla_model.all_reduce`, ``reduce_gradients`` and
    ``optimizer_step`` work over the devices; the process is one replica in all else.

    Args:
        network: The model, of which each device gets a copy; or what is called to make each one.
        device_ids: The devices; all xla devices of the process when None.
        **kwargs: Arguments for :class:`~torch_xla.distributed.parallel_loader.ParallelLoader`.

    Raises:
        ValueError: There is no device.
    """

    def __init__(
        self,
        network: torch.nn.Module | Callable[[], torch.nn.Module],
        device_ids: Sequence[torch.device | str] | None = None,
        **kwargs: Any,
    ) -> None:
        names = xla_model.get_xla_supported_devices() if device_ids is None else device_ids
        self._devices = [torch.device(name) for name in names]
        if not self._devices:
            raise ValueError("DataParallel: expected at least one device in `device_ids`")
        self._loader_kwargs = kwargs

        def own() -> torch.nn.Module:
            return copy.deepcopy(network) if isinstance(network, torch.nn.Module) else network()

        self._models = [own().to(device) for device in self._devices]
        self._contexts = [Context(device) for device in self._devices]

    @property
    def devices(self) -> list[torch.device]:
        """The devices."""
        return self._devices

    @property
    def models(self) -> list[torch.nn.Module]:
        """The model of each device."""
        return self._models

    def __call__(
        self,
        loop_fn: Callable[..., Any],
        loader: Iterable[Any],
        batchdim: int = 0,
        **kwargs: Any,
    ) -> list[Any]:
        """Runs a pass over the loader: the i-th sample goes to device i modulo their number.

        Samples that do not go round evenly at the end are left out, since every device takes part
        in every sum.

        Args:
            loop_fn: Called in each thread as ``loop_fn(model, samples, device, context)``.
            loader: The data loader, with a length.
            batchdim: The dimension of the batch.
            **kwargs: Other arguments for ``loop_fn``.

        Returns:
            What ``loop_fn`` returned, by device.

        Raises:
            Exception: What ``loop_fn`` raised first in any thread; the others end with it.
        """
        count = len(self._devices)
        group = ThreadGroup(count)
        samples = ParallelLoader(loader, self._devices, batchdim, **self._loader_kwargs)
        rounds = samples.per_device_samples()
        results: list[Any] = [None] * count
        errors: list[BaseException] = []

        def run(index: int) -> None:
            device = self._devices[index]
            own = (
                sample
                for _, sample in zip(range(rounds), samples.per_device_loader(device), strict=False)
            )
            try:
                with torch.xla.device(device), group.member(index):  # type: ignore[attr-defined]
                    results[index] = loop_fn(
                        self._models[index], own, device, self._contexts[index], **kwargs
                    )
                    xla_model.mark_step()
            except BaseException as error:
                errors.append(error)
                group.abort()

        threads = [
            threading.Thread(target=run, args=(index,), daemon=True, name=f"DataParallel {index}")
            for index in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        samples.close()
        if errors:
            raise errors[0]
        return results
