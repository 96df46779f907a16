"""One process for each device: the replicas of a training run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.multiprocessing

from torch_xla._internal.plugins import device_counts, platform_choice
from torch_xla._internal.replicas import replication, spmd_mode

_T = TypeVar("_T")


def _hosts() -> tuple[int, int]:
    """Returns the number of hosts and which one this is.

    ``WORLD_SIZE`` and ``RANK`` count hosts where no launcher has started this process as a
    replica.
    """
    return int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


def _run_replica(
    local_index: int,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    first: replication.Topology,
    store_address: str,
    forked: bool,
) -> None:
    place = first._replace(rank=first.rank + local_index, local_rank=local_index)
    os.environ.update(replication.place_environment(place))
    os.environ[replication.STORE_VARIABLE] = store_address
    replication.join()
    if forked:
        # The threads of PyTorch's thread pool do not exist in a forked process.
        torch.set_num_threads(1)
    try:
        fn(place.rank, *args)
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            replication.abandon(error)
        raise
    # A forked process exits without its exit handlers.
    replication.finish()


def _checked_count(nprocs: int | None) -> int:
    count = device_counts.of_host()
    if nprocs not in (None, 1, count):
        raise ValueError(
            f"spawn(): expected `nprocs` of 1, of {count} (the devices of this host) or None, got "
            f"{nprocs!r}"
            + ("; CPU_NUM_DEVICES sets the number of devices on the CPU" if count == 1 else "")
        )
    return nprocs or count


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> torch.multiprocessing.ProcessContext | None:  # type: ignore[name-defined]
    """Runs a function in one process for each device; together they are the replicas.

    On several hosts each one calls this, with ``MASTER_ADDR`` and ``MASTER_PORT`` (of the
    first host), ``WORLD_SIZE`` (the number of hosts) and ``RANK`` (which of them) set, and the
    same number of devices. In a process that ``torchrun`` has started, the function is called
    directly: that process is a replica already. With devices that are not there (``XLA_TOPOLOGY``)
    this process is the first of the replicas, and the only one.

    Args:
        fn: The function, called as ``fn(ordinal, *args)`` with the ordinal of the replica among
            all. It must be importable where ``start_method`` is ``"spawn"``.
        args: Its other arguments.
        nprocs: 1, or the number of this host's devices; None means the latter. On the CPU that
            is ``CPU_NUM_DEVICES``.
        join: Whether to wait for the processes.
        daemon: Whether they end with this process.
        start_method: ``"spawn"``, ``"fork"`` or ``"forkserver"``. ``"fork"`` is for processes
            that have not used an XLA device.

    Returns:
        None after joining, else the ``torch.multiprocessing.ProcessContext`` to join. With one
        process ``fn`` is called here, and None is returned when it returns.

    Raises:
        ValueError: ``nprocs`` is something else, or ``start_method`` is unknown.
        RuntimeError: ``start_method`` is ``"fork"`` and this process has used an XLA device, or
            this process is in SPMD mode and ``nprocs`` is not 1.
        torch.multiprocessing.ProcessRaisedException: A replica raised; the others are ended.
        torch.multiprocessing.ProcessExitedException: A replica ended with another exit code
            than 0, or by a signal.
    """
    if spmd_mode.is_on():
        if nprocs != 1:
            raise RuntimeError(
                f"spawn(): expected `nprocs` of 1 in SPMD mode, where one process has all "
                f"devices, got {nprocs!r}; call the function without spawn or launch"
            )
        fn(0, *args)
        return None
    if replication.is_launched():
        place = replication.topology()
        if nprocs not in (None, 1, place.local_world_size):
            raise ValueError(
                f"spawn(): expected `nprocs` of {place.local_world_size} (the processes that the "
                f"launcher has started), 1 or None, got {nprocs!r}"
            )
        fn(place.rank, *args)
        return None
    methods = torch.multiprocessing.get_all_start_methods()
    if start_method not in methods:
        raise ValueError(f"spawn(): expected `start_method` of {methods}, got {start_method!r}")
    count = _checked_count(nprocs)
    hosts, host = _hosts()
    if count == 1 and hosts == 1:
        fn(0, *args)
        return None
    if platform_choice.topology():
        replication.stand_for_all(hosts * count)
        fn(0, *args)
        return None
    if start_method == "fork" and torch.xla.is_initialized():  # type: ignore[attr-defined]
        raise RuntimeError(
            "spawn(): start_method='fork' needs a process that has not used an XLA device; use "
            "devices in the spawned function only, or start_method='spawn'"
        )
    if hosts == 1:
        store_host, port, server = "127.0.0.1", 0, True
    else:
        store_host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        server = host == 0
    store = replication.make_store(store_host, port, server)
    first = replication.Topology(host * count, hosts * count, 0, count)
    context = torch.multiprocessing.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        _run_replica,
        (fn, args, first, f"{store_host}:{store.port}", start_method == "fork"),
        count,
        join=False,
        daemon=daemon,
        start_method=start_method,
    )
    if not join:
        context.store = store  # The replicas need the store as long as they live.
        return context
    while not context.join():
        pass
    if hosts > 1:
        # The replicas of other hosts may still ask the store of the first one.
        store.set(f"finished/{host}", "")
        if server:
            replication.wait_for_keys(store, {f"finished/{i}": i * count for i in range(hosts)})
    return None


def create_optimized_replica_groups() -> list[list[int]] | None:
    """Returns replica groups in an order that suits the interconnect, or None for any.

    It is None: plugins order the members of a group by themselves.
    """
    return None


class MpModelWrapper:
    """Shares a model's host memory between replicas that are forked.

    The model is made once, before the fork, and moved to each replica's device by one replica
    of a host at a time::

        WRAPPED_MODEL = xmp.MpModelWrapper(MyNetwork())

        def _mp_fn(index):
            model = WRAPPED_MODEL.to(xm.xla_device())

        xmp.spawn(_mp_fn, start_method="fork")
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._lock = replication.HostLock()

    def to(self, device: torch.device | str) -> torch.nn.Module:
        """Returns the model, moved to ``device``."""
        with self._lock:
            return self._model.to(device)


class MpSerialExecutor:
    """Runs a function in one replica of a host at a time.

    For what must not be done twice at once, such as filling a cache with a download. Make it
    at global scope, so that all replicas have the same one::

        SERIAL_EXEC = xmp.MpSerialExecutor()

        def _mp_fn(index):
            dataset = SERIAL_EXEC.run(lambda: load_dataset("/tmp/data"))
    """

    def __init__(self) -> None:
        self._lock = replication.HostLock()

    def run(self, fn: Callable[[], _T]) -> _T:
        """Returns ``fn()``, called while no other replica of this host runs one."""
        with self._lock:
            return fn()
