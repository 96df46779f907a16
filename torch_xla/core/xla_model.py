"""The device API: devices, steps, optimizer, saving, random state, memory."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import torch

import torch_xla
from torch_xla import _XLAC, runtime
from torch_xla._internal.atomic_file import atomic_write
from torch_xla.core import collectives
from torch_xla.core.collectives import (
    REDUCE_AND,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_MUL,
    REDUCE_OR,
    REDUCE_SUM,
    all_gather,
    all_gather_bucketized,
    all_reduce,
    all_reduce_bucketized_gradients,
    all_to_all,
    broadcast_master_param,
    collective_broadcast,
    collective_permute,
    recv,
    reduce_gradients,
    reduce_scatter,
    reduce_scatter_bucketized,
    rendezvous,
    send,
)
from torch_xla.utils import closures
from torch_xla.utils.utils import map_tensors

__all__ = [
    "REDUCE_AND",
    "REDUCE_MAX",
    "REDUCE_MIN",
    "REDUCE_MUL",
    "REDUCE_OR",
    "REDUCE_SUM",
    "add_step_closure",
    "all_gather",
    "all_gather_bucketized",
    "all_reduce",
    "all_reduce_bucketized_gradients",
    "all_to_all",
    "broadcast_master_param",
    "collective_broadcast",
    "collective_permute",
    "do_on_ordinals",
    "get_local_ordinal",
    "get_memory_info",
    "get_ordinal",
    "get_rng_state",
    "get_xla_supported_devices",
    "is_master_ordinal",
    "is_xla_tensor",
    "mark_step",
    "master_print",
    "mesh_reduce",
    "optimizer_step",
    "recv",
    "reduce_gradients",
    "reduce_scatter",
    "reduce_scatter_bucketized",
    "rendezvous",
    "save",
    "send",
    "send_cpu_data_to_device",
    "set_replication",
    "set_rng_state",
    "unlazy",
    "wait_device_ops",
    "xla_device",
    "xla_device_hw",
    "xla_real_devices",
    "xrt_world_size",
]


def _device_name(device: torch.device | str | None) -> str:
    """Returns the name of ``device`` with its ordinal; the default device's for None."""
    device = torch.device("xla" if device is None else device)
    if device.type == "xla" and device.index is None:
        return _XLAC._xla_get_default_device()
    return str(device)


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Returns an XLA device.

    A device that is asked for by ``n`` or ``devkind`` becomes the default one: the device of
    ``torch.device("xla")``, and the one whose graph :func:`mark_step` cuts.

    Args:
        n: Ordinal of the device, among those of ``devkind`` where that is given.
        devkind: ``"TPU"``, ``"GPU"``, ``"CPU"`` or the name of a PJRT platform.

    Returns:
        The device; the default one when neither argument is given.

    Raises:
        RuntimeError: There is no such device, or no PJRT plugin could be started.
    """
    if n is None and devkind is None:
        return torch.device(_XLAC._xla_get_default_device())
    devices = get_xla_supported_devices(devkind)
    if not 0 <= (n or 0) < len(devices):
        raise RuntimeError(
            f"xla_device(): there is no device n={n}, devkind={devkind}; this process has "
            f"{', '.join(xla_real_devices())}"
        )
    _XLAC._xla_set_default_device(devices[n or 0])
    return torch.device(devices[n or 0])


def get_xla_supported_devices(
    devkind: str | None = None, max_devices: int | None = None
) -> list[str]:
    """Returns the names of the XLA devices of a kind, for example ``["xla:0"]``.

    Args:
        devkind: ``"TPU"``, ``"GPU"``, ``"CPU"`` or the name of a PJRT platform; all when None.
        max_devices: The largest number of devices to return.
    """
    devices = _XLAC._xla_get_devices()
    if devkind is not None:
        devkind = devkind.upper()
        devices = [
            device
            for device, real in zip(devices, _XLAC._xla_real_devices(devices), strict=True)
            if devkind in (real.split(":")[0], _hardware(real))
        ]
    return devices[:max_devices]


def xla_real_devices(devices: Sequence[torch.device | str] | None = None) -> list[str]:
    """Returns the hardware behind XLA devices, for example ``["CPU:0"]``.

    Args:
        devices: The XLA devices; all those of this process when None.
    """
    if devices is None:
        return _XLAC._xla_real_devices(_XLAC._xla_get_devices())
    return _XLAC._xla_real_devices([_device_name(device) for device in devices])


def _hardware(real_device: str) -> str:
    platform = real_device.split(":")[0]
    return "GPU" if platform in ("CUDA", "ROCM") else platform


def xla_device_hw(device: torch.device | str) -> str:
    """Returns the hardware type of a device: ``"CPU"``, ``"TPU"``, ``"GPU"`` (CUDA or ROCm).

    Platforms of other plugins have their own names. A device that is no XLA device gives its
    type in upper case.
    """
    if torch.device(device).type != "xla":
        return torch.device(device).type.upper()
    return _hardware(_XLAC._xla_real_devices([_device_name(device)])[0])


def get_ordinal(defval: int = 0) -> int:
    """Returns the ordinal of this replica, from 0 to ``xrt_world_size() - 1``.

    Args:
        defval: Returned where there is no replication.
    """
    return runtime.global_ordinal() if runtime.world_size() > 1 else defval


def get_local_ordinal(defval: int = 0) -> int:
    """Returns the ordinal of this replica among those of its host.

    Args:
        defval: Returned where there is no replication.
    """
    return runtime.local_ordinal() if runtime.world_size() > 1 else defval


def is_master_ordinal(local: bool = True) -> bool:
    """Returns whether this is the replica with ordinal 0.

    Args:
        local: Whether the ordinal within the host counts, or the global one.
    """
    return (runtime.local_ordinal() if local else runtime.global_ordinal()) == 0


def xrt_world_size(defval: int = 1) -> int:
    """Returns how many replicas take part in the replication.

    Args:
        defval: Returned where there is no replication.
    """
    return runtime.world_size() if runtime.world_size() > 1 else defval


def master_print(
    *args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False
) -> None:
    """Prints on the replica with ordinal 0 only.

    Args:
        *args: What to print.
        fd: Where to print; ``sys.stdout`` when None.
        local: Whether each host's master prints, or the global one alone.
        flush: Whether to flush ``fd``.
    """
    if is_master_ordinal(local=local):
        print(*args, file=fd or sys.stdout, flush=flush)


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Returns whether ``tensor`` is on an XLA device."""
    return tensor.device.type == "xla"


def set_replication(device: torch.device | str, devices: Sequence[torch.device | str] = ()) -> None:
    """Makes ``device`` the default one; a process is one replica, with no need for more.

    Args:
        device: The device. One that is no XLA device changes nothing: frameworks call this for
            programs on the CPU, too.
        devices: The devices that take part, ``device`` among them.

    Raises:
        ValueError: ``device`` is not one of ``devices``.
    """
    if torch.device(device).type != "xla":
        return
    name = _device_name(device)
    if len(devices) and name not in [_device_name(other) for other in devices]:
        names = ", ".join(map(str, devices))
        raise ValueError(f"set_replication(): expected {name} to be one of the devices {names}")
    _XLAC._xla_set_default_device(name)


def mark_step(wait: bool = False) -> None:
    """Ends a step: the same as :func:`torch_xla.sync`.

    Args:
        wait: Whether to return only when the device has finished.
    """
    torch_xla.sync(wait)


def add_step_closure(
    closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False
) -> None:
    """Adds a function to be called at the end of the step.

    Reading a tensor in the middle of a step executes what was traced so far. A step closure
    runs after the step's graph was launched, so that the tensors in ``args`` cost no execution
    of their own. Closures run in the order in which they were added::

        def report(step, loss):
            print(step, loss.item())

        xm.add_step_closure(report, args=(step, loss))

    Args:
        closure: The function.
        args: Its arguments.
        run_async: Whether to run on another thread, so that the next step is traced meanwhile.
            Those closures run one after the other. Tensors that the next steps change in
            place must be cloned first. An error is raised by a later step, or printed at exit.
    """
    closures.add_step_closure(closure, args, run_async)


def wait_device_ops(devices: Sequence[torch.device | str] = ()) -> None:
    """Waits for all work launched on devices. Does not launch what is only traced.

    Args:
        devices: The XLA devices; all those of this process when empty.
    """
    names = [_device_name(device) for device in devices] or _XLAC._xla_get_devices()
    _XLAC._xla_wait_device_ops(names)


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Executes what ``tensors`` depend on, and waits until they have their values.

    Args:
        tensors: XLA tensors of any shape and dtype.
    """
    _XLAC._xla_sync_multi(list(tensors), [], True)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
) -> Any:
    """Combines the gradients of the replicas and takes an optimizer step.

    The gradients become their mean over the replicas. A process that is not replicated has its
    gradients already.

    Args:
        optimizer: The optimizer whose ``step()`` is called.
        barrier: Whether to end the step with :func:`mark_step`. Not needed with
            :class:`torch_xla.distributed.parallel_loader.MpDeviceLoader`, which does so.
        optimizer_args: Named arguments for ``optimizer.step()``.
        groups: The replica groups, as lists of ordinals; all replicas when None.

    Returns:
        What ``optimizer.step()`` returned.

    Raises:
        ValueError: ``groups`` does not hold each replica once.
    """
    reduce_gradients(optimizer, groups)
    result = optimizer.step(**(optimizer_args or {}))
    if barrier:
        mark_step()
    return result


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns the gradients of an optimizer's parameters; for frameworks that reduce them."""
    return collectives.gradients(optimizer)


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    """Returns ``data`` with its XLA tensors on the CPU, after one execution for all of them.

    Args:
        data: Any nested combination of Python objects and tensors.
        convert: Whether to do so; without, the same object is returned, its tensors executed.
    """
    tensors: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        if is_xla_tensor(tensor):
            tensors.append(tensor)
        return tensor

    def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
        if not is_xla_tensor(tensor):
            return tensor
        result = tensor.detach().cpu()
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(result, tensor.requires_grad)
        return result.requires_grad_(tensor.requires_grad)

    map_tensors(collect, data)
    if tensors:
        unlazy(tensors)
    return map_tensors(to_cpu, data) if convert else data


def save(
    data: Any,
    file_or_path: str | os.PathLike[str] | Any,
    master_only: bool = True,
    global_master: bool = False,
) -> None:
    """Saves data as ``torch.save`` does, with its XLA tensors moved to the CPU.

    ``torch.load`` gives CPU tensors. A view is saved as a tensor of its own. A file takes the
    place of an older one when it is whole.

    Args:
        data: Any nested combination of Python objects and tensors.
        file_or_path: A path or a file object. It must differ from replica to replica when
            ``master_only`` is False.
        master_only: Whether only the replica with ordinal 0 saves.
        global_master: Whether ``master_only`` means the global master, or each host's.
    """
    data = _maybe_convert_to_cpu(data)  # On every replica: the execution may need them all.
    if not master_only or is_master_ordinal(local=not global_master):
        if isinstance(file_or_path, (str, os.PathLike)):
            with atomic_write(file_or_path, sync=False) as file:
                torch.save(data, file)
        else:
            torch.save(data, file_or_path)


def do_on_ordinals(
    target: Callable[..., Any], data: Any = (), ordinals: Sequence[int] = (0,)
) -> Any:
    """Runs a function on some of the replicas only. All of them call this.

    Args:
        target: The function, called as ``target(*data)`` with XLA tensors moved to the CPU.
        data: Its arguments. All XLA tensors that it uses have to be among them: computing them
            may need all replicas.
        ordinals: Where to run it.

    Returns:
        What ``target`` returned where it ran, None elsewhere.
    """
    data = _maybe_convert_to_cpu(data)
    return target(*data) if get_ordinal() in ordinals else None


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Reduces data of the replicas on the host, outside of the graph.

    Args:
        tag: The name of the :func:`rendezvous` at which they meet.
        data: Anything that ``torch.save`` takes; XLA tensors are moved to the CPU.
        reduce_fn: Called with the list of what the replicas gave, in order of the ordinals.

    Returns:
        What ``reduce_fn`` returned.
    """
    buffer = io.BytesIO()
    torch.save(_maybe_convert_to_cpu(data), buffer)
    payloads = rendezvous(tag, buffer.getvalue())
    return reduce_fn([torch.load(io.BytesIO(data), weights_only=False) for data in payloads])


def send_cpu_data_to_device(
    data: Any, device: torch.device | str, input_sharding: Any = None
) -> Any:
    """Returns ``data`` with its CPU tensors on ``device``; all else passes through.

    Args:
        data: Nested data (mappings, lists, tuples, dataclasses, ...) with tensors of any shape
            and dtype. It is not changed. A class of your own joins in by deriving from
            :class:`~torch_xla.utils.utils.DataWrapper`.
        device: Where to copy them.
        input_sharding: In SPMD mode, how they shall lie on the devices: a
            :class:`torch_xla.distributed.spmd.ShardingSpec` for all tensors with as many
            dimensions as it has, or a mapping, list or tuple, nested as ``data`` is, of such
            specs (None for what is not split). Each device is sent its part before this returns.

    Returns:
        Data of the same form; a tensor that occurs twice is copied once.

    Raises:
        IndexError: There is no such device.
        torch.OutOfMemoryError: The device has no memory left.
        ValueError: ``input_sharding`` is not of the form of ``data``.
        RuntimeError: ``input_sharding`` is given and the process is not in SPMD mode.
    """
    if input_sharding is not None:
        from torch_xla.distributed.spmd.input_sharding import send_sharded

        return send_sharded(data, device, input_sharding)
    return map_tensors(
        lambda tensor: tensor.to(device) if tensor.device.type == "cpu" else tensor, data
    )


def set_rng_state(seed: int, device: torch.device | str | None = None) -> None:
    """Sets the state of a device's random number generator.

    Args:
        seed: The state, an integer of 64 bits.
        device: The XLA device; the default one when None.
    """
    torch_xla.manual_seed(seed, _device_name(device))


def get_rng_state(device: torch.device | str | None = None) -> int:
    """Returns the state of a device's random number generator, an integer of 64 bits.

    Args:
        device: The XLA device; the default one when None.
    """
    return _XLAC._xla_get_rng_seed(_device_name(device))


def get_memory_info(device: torch.device | str | None = None) -> dict[str, int]:
    """Returns how much memory a device has and uses.

    Args:
        device: The XLA device; the default one when None.

    Returns:
        ``kb_free`` and ``kb_total`` in units of 1,024 bytes; ``bytes_used``,
        ``peak_bytes_used`` and ``bytes_limit`` in bytes. The total is the plugin's limit, or
        the memory of the host where the device is the CPU. What is not known is -1.
    """
    info = dict(_XLAC._xla_memory_info(_device_name(device)))
    total = free = -1
    if info["bytes_limit"] >= 0:
        total = info["bytes_limit"]
        free = total - info["bytes_used"]
    elif runtime.device_type() == "CPU":
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
        free = page * os.sysconf("SC_AVPHYS_PAGES")
    info["kb_total"] = total // 1024 if total >= 0 else -1
    info["kb_free"] = free // 1024 if total >= 0 else -1
    return info
