"""Making a process a replica by hand, for programs with a launcher of their own."""

from __future__ import annotations

import os

from torch_xla._internal.replicas import replication


def initialize_multiprocess(local_rank: int, local_world_size: int) -> None:
    """Makes this process one of several replicas of this host, before it uses a device.

    ``MASTER_ADDR`` and ``MASTER_PORT`` say where they meet. With several hosts ``WORLD_SIZE`` and
    ``RANK`` count these, as for :func:`torch_xla.distributed.xla_multiprocessing.spawn`. Nothing
    changes in a process that a launcher has made a replica already.

    Args:
        local_rank: The rank of this process on its host.
        local_world_size: How many replicas there are on each host.

    Raises:
        ValueError: ``local_rank`` is out of range.
        RuntimeError: A launcher has already made this process a different replica.
    """
    if not 0 <= local_rank < local_world_size:
        raise ValueError(
            f"initialize_multiprocess(): expected `local_rank` from 0 to {local_world_size - 1}, "
            f"got {local_rank}"
        )
    if replication.is_launched():
        place = replication.topology()
        if (place.local_rank, place.local_world_size) != (local_rank, local_world_size):
            raise RuntimeError(
                f"initialize_multiprocess(): this process is replica {place.local_rank} of "
                f"{place.local_world_size} of this host already, got {local_rank} of "
                f"{local_world_size}"
            )
        return
    hosts, host = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    place = replication.Topology(
        host * local_world_size + local_rank,
        hosts * local_world_size,
        local_rank,
        local_world_size,
    )
    os.environ.update(replication.place_environment(place))
    replication.join()
