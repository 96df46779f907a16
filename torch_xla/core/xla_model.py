"""The device API: devices, steps, optimizer, saving, random state, memory."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO, TypedDict

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_xla import _XLAC, runtime
from torch_xla._internal.compile import step_closures
from torch_xla._internal.compile.step import sync
from torch_xla._internal.device.module import SEED_MASK
from torch_xla._internal.device.sharded_inputs import send_sharded
from torch_xla._internal.files.atomic_file import atomic_write
from torch_xla._internal.insight.rate_tracker import RateTracker
from torch_xla._internal.names import missing
from torch_xla._internal.nested_data import ToXlaTensorArena, map_tensors
from torch_xla._internal.tensors import HostCopies, plain, unlazy
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

__all__ = [
    "MemoryInfo",
    "REDUCE_AND",
    "REDUCE_MAX",
    "REDUCE_MIN",
    "REDUCE_MUL",
    "REDUCE_OR",
    "REDUCE_SUM",
    "RateTracker",
    "ToXlaTensorArena",
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
    "fork_rng",
    "get_local_ordinal",
    "get_memory_info",
    "get_ordinal",
    "get_rng_state",
    "get_stablehlo",
    "get_stablehlo_bytecode",
    "get_xla_supported_devices",
    "is_master_ordinal",
    "is_xla_tensor",
    "mark_step",
    "master_print",
    "mesh_reduce",
    "optimization_barrier_",
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
    "xla_device_kind",
    "xla_real_devices",
    "xla_rendezvous",
    "xla_replication_devices",
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
    devices = get_xla_supported_devices(devkind=devkind)
    if not 0 <= (n or 0) < len(devices):
        raise RuntimeError(
            f"xla_device(): there is no device n={n}, devkind={devkind}; this process has "
            f"{', '.join(xla_real_devices())}"
        )
    _XLAC._xla_set_default_device(devices[n or 0])
    return torch.device(devices[n or 0])


def get_xla_supported_devices(
    devkind: str | int | None = None, max_devices: int | None = None
) -> list[str]:
    """Returns the names of the XLA devices of a kind, for example ``["xla:0"]``.

    Args:
        devkind: ``"TPU"``, ``"GPU"``, ``"CPU"`` or the name of a PJRT platform; all when None.
            Newer programs pass ``max_devices`` first.
        max_devices: The largest number of devices to return; all when None.
    """
    if isinstance(devkind, int):
        devkind, max_devices = None, devkind
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


def xla_device_kind(device: torch.device | str | None = None) -> str:
    """Returns what the plugin calls the hardware of a device, for example ``"TPU v4"``.

    Args:
        device: The XLA device; the default one when None.
    """
    return _XLAC._xla_device_kind(_device_name(device))


def xla_replication_devices(
    local_devices: Sequence[torch.device | str] | None = None,
) -> list[str]:
    """Returns the hardware of the devices that take part in the replication.

    Args:
        local_devices: The devices of this process that do; its default one when None.
    """
    return xla_real_devices(local_devices or [xla_device()])


def set_replication(
    device: torch.device | str, devices: Sequence[torch.device | str] | None = ()
) -> None:
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
    if devices and name not in [_device_name(other) for other in devices]:
        names = ", ".join(map(str, devices))
        raise ValueError(f"set_replication(): expected {name} to be one of the devices {names}")
    _XLAC._xla_set_default_device(name)


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Ends a step: the same as :func:`torch_xla.sync`.

    Args:
        wait: Whether to return only when the device has finished.
        reset_scope: Changes nothing; taken for scripts that pass it.
    """
    sync(wait, reset_scope)


def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """Returns the StableHLO of the program that tensors wait for. Runs nothing.

    Args:
        tensors: XLA tensors of any shape and dtype; all of the default device that are not
            computed yet when None or empty.
    """
    return _XLAC._xla_stablehlo_of(list(tensors or ()))


def get_stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """Returns :func:`get_stablehlo` as a portable artifact, by jaxlib's serializer.

    Raises:
        ImportError: jaxlib is not installed.
    """
    from torch_xla._internal.compile import mlir

    return mlir.bytecode(get_stablehlo(tensors))


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Keeps XLA from moving computations across this point, for these tensors, in place.

    What is computed of them from now on is computed of their values here: XLA neither merges it
    with equal computations made before nor puts it earlier. Values and gradients are unchanged.

    Args:
        tensors: XLA tensors of any shapes and dtypes.
    """
    _XLAC._xla_optimization_barrier_(list(tensors))


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
    step_closures.add_step_closure(closure, args, run_async)


def wait_device_ops(devices: Sequence[torch.device | str] = ()) -> None:
    """Waits for all work launched on devices. Does not launch what is only traced.

    Args:
        devices: The XLA devices; all those of this process when empty.
    """
    names = [_device_name(device) for device in devices] or _XLAC._xla_get_devices()
    _XLAC._xla_wait_device_ops(names)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    pin_layout: bool = True,
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
        pin_layout: Changes nothing; taken for scripts that pass it.

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

    Those that share memory (tied weights, views) do so on the CPU, too.

    Args:
        data: Any nested combination of Python objects and tensors.
        convert: Whether to do so; without, the same object is returned, its tensors executed.
    """
    tensors: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        if is_xla_tensor(tensor):
            tensors.extend(plain(tensor))
        return tensor

    def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
        if not is_xla_tensor(tensor):
            return tensor
        if is_traceable_wrapper_subclass(tensor):
            names, context = tensor.__tensor_flatten__()
            inner = {name: getattr(tensor, name) for name in names}
            inner = map_tensors(to_cpu, inner, objects=False)
            size, stride = tensor.size(), tensor.stride()
            result = type(tensor).__tensor_unflatten__(inner, context, size, stride).detach()
        else:
            result = copies.copy(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(result, tensor.requires_grad)
        return result.requires_grad_(tensor.requires_grad)

    map_tensors(collect, data)
    if tensors:
        unlazy(tensors)
    copies = HostCopies(tensors)
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
    data = _maybe_convert_to_cpu(data)  # On every replica, since the execution may need all.
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
    datas: Any, device: torch.device | str, input_sharding: Any = None
) -> Any:
    """Returns ``datas`` with its CPU tensors on ``device``; all else passes through.

    Args:
        datas: Nested data (mappings, lists, tuples, objects, ...) with tensors of any shape and
            dtype. It is not changed. A class of your own can say what its tensors are by deriving
            from :class:`~torch_xla.utils.utils.DataWrapper`.
        device: Where to copy them.
        input_sharding: In SPMD mode, how they shall lie on the devices: a
            :class:`torch_xla.distributed.spmd.ShardingSpec` for all tensors with as many
            dimensions as it has, or a mapping, list or tuple, nested as ``datas`` is, of such
            specs (None for what is not split). Each device is sent its part before this returns.

    Returns:
        Data of the same form; a tensor that occurs twice is copied once. For a single tensor a
        list of it.

    Raises:
        IndexError: There is no such device.
        torch.OutOfMemoryError: The device has no memory left.
        ValueError: ``input_sharding`` is not of the form of ``datas``.
        RuntimeError: ``input_sharding`` is given and the process is not in SPMD mode.
    """
    return _sent([datas] if isinstance(datas, torch.Tensor) else datas, device, input_sharding)


def _sent(datas: Any, device: torch.device | str, input_sharding: Any) -> Any:
    if input_sharding is not None:
        return send_sharded(datas, device, input_sharding)
    return map_tensors(
        lambda tensor: tensor.to(device) if tensor.device.type == "cpu" else tensor, datas
    )


def set_rng_state(seed: int, device: torch.device | str | None = None) -> None:
    """Sets the state of a device's random number generator.

    Args:
        seed: The state, an integer of 64 bits.
        device: The XLA device; the default one when None.
    """
    _XLAC._xla_set_rng_seed(int(seed) & SEED_MASK, _device_name(device))


def get_rng_state(device: torch.device | str | None = None) -> int:
    """Returns the state of a device's random number generator, an integer of 64 bits.

    Args:
        device: The XLA device; the default one when None.
    """
    return _XLAC._xla_get_rng_seed(_device_name(device))


@contextlib.contextmanager
def fork_rng(device: torch.device | str | None = None, enabled: bool = True) -> Iterator[None]:
    """Puts the state of a device's random number generator back at the end of the block.

    Args:
        device: The XLA device; the default one when None.
        enabled: False makes it do nothing.
    """
    if not enabled:
        yield
        return
    state = get_rng_state(device)
    try:
        yield
    finally:
        set_rng_state(state, device)


def xla_rendezvous(
    payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
) -> list[bytes]:
    """Waits for replicas, and exchanges data with them: see :func:`rendezvous`.

    Args:
        payload: What this replica gives.
        ordinals: The replicas that take part; all when None.
        tag: The name of the meeting.

    Returns:
        What each gave, in the order of their ordinals.
    """
    return rendezvous(tag or "xla_rendezvous", payload, ordinals or [])


class MemoryInfo(TypedDict):
    """The result of :func:`get_memory_info`."""

    kb_free: int
    kb_total: int
    bytes_used: int
    peak_bytes_used: int
    bytes_limit: int


def get_memory_info(device: torch.device | str | None = None) -> MemoryInfo:
    """Returns how much memory a device has and uses.

    Args:
        device: The XLA device; the default one when None.

    Returns:
        ``kb_free`` and ``kb_total`` in units of 1,024 bytes; ``bytes_used``,
        ``peak_bytes_used`` and ``bytes_limit`` in bytes. The total is the plugin's limit, or
        the memory of the host where the device is the CPU. What is not known is -1.
    """
    info = _XLAC._xla_memory_info(_device_name(device))
    total = free = -1
    if info["bytes_limit"] >= 0:
        total = info["bytes_limit"]
        free = total - info["bytes_used"]
    elif runtime.device_type() == "CPU":
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
        free = page * os.sysconf("SC_AVPHYS_PAGES")
    return {
        "kb_total": total // 1024 if total >= 0 else -1,
        "kb_free": free // 1024 if total >= 0 else -1,
        "bytes_used": info["bytes_used"],
        "peak_bytes_used": info["peak_bytes_used"],
        "bytes_limit": info["bytes_limit"],
    }


__getattr__ = missing.getter(
    __name__,
    {
        "CoalescingBuckets": "xm.all_gather_bucketized and xm.reduce_scatter_bucketized",
        "DeviceContext": "a graph belongs to its device; nothing else is kept",
        "check_view_sharing": "views share their base's memory here",
        "parse_xla_device": "torch.device(device).index",
        "get_replication_devices": "xm.xla_replication_devices",
        "is_xla_device": "torch.device(device).type == 'xla'",
        "xla_model": "import torch_xla.core.xla_model as xm",
        "xla_device_count": "torch_xla.device_count()",
    },
)
