"""What programs written for torch_xla 2.9 call of the replicas."""

import inspect
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from testing.processes import run_python, start_python, write_script
from testing.replicas import run_replicas

import torch_xla.core.collectives as collectives
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch_xla import _XLAC
from torch_xla._internal import pjrt
from torch_xla._internal.replicas import replication
from torch_xla._internal.replicas.replication import Topology

pytestmark = pytest.mark.multiprocess


def names_of(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_arguments_are_in_their_places():
    assert names_of(collectives.all_reduce) == [
        *("reduce_type", "inputs", "scale", "groups", "cctx", "pin_layout")
    ]
    assert names_of(collectives.all_gather) == [
        *("value", "dim", "groups", "output", "pin_layout"),
        *("channel_id", "use_global_device_ids"),
    ]
    assert names_of(collectives.reduce_scatter) == [
        *("reduce_type", "input", "scale", "scatter_dim", "shard_count", "groups", "output"),
        *("pin_layout", "channel_id", "use_global_device_ids"),
    ]
    assert names_of(collectives.reduce_gradients)[:3] == ["optimizer", "groups", "pin_layout"]


# ------------------------------------------------------------------- the backend, from the start


def test_backend_is_registered_by_the_import_alone(tmp_path):
    result, _ = run_python(
        """
        import sys
        report(early="torch_xla.distributed.xla_backend" in sys.modules)
        import torch_xla.distributed.xla_multiprocessing
        import torch.distributed as dist
        dist.init_process_group("xla", init_method="xla://")
        x = torch.ones(2, device=device)
        dist.all_reduce(x)
        report(x=x.tolist(), backend=dist.get_backend())
        dist.destroy_process_group()
        """,
        tmp_path,
    )
    assert result == {"early": False, "x": [1, 1], "backend": "xla"}


# ------------------------------------------------------------------------- in two processes


def run_interface() -> None:
    device = xm.xla_device()
    rank = xm.get_ordinal()
    transfers = 0

    def counted(name: str) -> int:
        nonlocal transfers
        before, transfers = transfers, met.counter_value(name) or 0
        return transfers - before

    tensors = [
        torch.arange(12.0, device=device).view(4, 3) + rank,
        torch.arange(8, device=device).view(4, 2) * (1 + rank),
        torch.arange(24.0, device=device).view(2, 4, 3).transpose(0, 1) * (1 + rank),
    ]
    for dim in (0, -1):
        for cap in (0, 160):
            counted("xla::all_gather")
            found = collectives.all_gather_bucketized(tensors, dim, bucket_cap_mb=cap)
            assert counted("xla::all_gather") == 2  # dtypes
            for x, t in zip(found, tensors, strict=True):
                assert torch.equal(x, xm.all_gather(t, dim, channel_id=1))
    outputs = [torch.zeros(8, 3, device=device)]
    given = collectives.all_gather_bucketized(tensors[:1], output=outputs)
    assert given[0] is outputs[0] and torch.equal(outputs[0], xm.all_gather(tensors[0]))

    for dim, chosen in ((0, tensors), (1, tensors[1:])):
        chosen = [t if t.shape[dim] % 2 == 0 else t[:, :2] for t in chosen]
        counted("xla::reduce_scatter")
        found = xm.reduce_scatter(xm.REDUCE_SUM, chosen, 2.0, dim, 2)
        assert counted("xla::reduce_scatter") == 2
        for x, t in zip(found, chosen, strict=True):
            assert torch.equal(x, xm.reduce_scatter(xm.REDUCE_SUM, t, 2.0, dim, 2))
    with pytest.raises(ValueError, match="divisible"):
        xm.reduce_scatter(xm.REDUCE_SUM, [tensors[0]], 1.0, 1, 2)
    # Each of 2 MB: a bucket of 3 MB has one.
    large = [torch.ones(1 << 19, device=device) for _ in range(3)]
    counted("xla::reduce_scatter")
    collectives.reduce_scatter_bucketized(xm.REDUCE_SUM, large, 1.0, 0, 2, bucket_cap_mb=3)
    assert counted("xla::reduce_scatter") == 3

    parameters = [torch.nn.Parameter(x) for x in large]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, float(rank))
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    for size, expected in (("", 1), ("4", 2), ("1", 3)):
        os.environ["ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"] = size
        counted("xla::all_reduce")
        xm.reduce_gradients(optimizer)
        assert counted("xla::all_reduce") == expected
    assert parameters[2].grad[:2].tolist() == [0.5, 0.5]
    os.environ["ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"] = "-1"
    with pytest.raises(ValueError, match="ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB.*'-1'"):
        xm.reduce_gradients(optimizer)

    # Both ways, on channels that have any numbers.
    x = torch.arange(3.0, device=device) + 10 * rank
    y = torch.zeros(3, device=device)
    for _ in range(2):
        if rank == 0:
            assert collectives.send(x, 7) is x
            assert collectives.recv(y, 3) is y
        else:
            collectives.recv(y, 7)
            collectives.send(x + 1, 3)
    assert y.tolist() == ([11, 12, 13] if rank == 0 else [0, 1, 2])
    if rank == 1:
        with pytest.raises(RuntimeError, match="replica 0 sends on channel 7 already"):
            collectives.send(x, 7)
    xm.rendezvous("end")


def test_collectives_in_buckets_and_channels(tmp_path):
    run_replicas(run_interface, 2, tmp_path)


# ------------------------------------------------- devices whose collectives all must take part in


def test_collectives_of_some_replicas_are_refused_on_accelerators(monkeypatch):
    monkeypatch.setattr(replication, "_override", Topology(0, 4, 0, 4))
    monkeypatch.setattr(_XLAC, "_xla_platform", lambda: "CUDA")
    connected = []
    monkeypatch.setattr(replication, "connect", lambda: connected.append(1) or 1 / 0)
    x = torch.ones(2, device="xla")
    for groups in ([[0, 1]], [[0], [1, 2]]):
        with pytest.raises(RuntimeError, match=r"on CUDA every replica must take part.*of 4"):
            collectives.run("collective_permute", [x], groups, [0, 1])
    assert not connected
    for groups in ([], [[0, 1], [2, 3]]):
        with pytest.raises(ZeroDivisionError):
            collectives.run("all_reduce", [x], groups)


def run_evenly() -> None:
    """As on an accelerator, but that the collectives themselves are the CPU's."""
    device = xm.xla_device()
    dist.init_process_group("xla", init_method="xla://")
    rank, count = dist.get_rank(), dist.get_world_size()
    _XLAC._xla_platform = lambda: "CUDA"
    parts = [torch.full((2,), 10.0 * rank + i, device=device) for i in range(count)]
    outputs = [torch.zeros(2, device=device) for _ in range(count)]
    dist.all_to_all(outputs, parts)
    assert [x[0].item() for x in outputs] == [10.0 * i + rank for i in range(count)]
    x = torch.zeros(2, device=device)
    dist.scatter(x, parts if rank == 1 else None, src=1)
    assert x.tolist() == [10.0 + rank] * 2
    assert not met.counter_value("xla::collective_permute")
    with pytest.raises(RuntimeError, match=r"on CUDA all parts must have one shape.*\[1\].*\[2\]"):
        dist.all_to_all(
            [torch.zeros(1 + (i == 0), device=device) for i in range(count)],
            [torch.zeros(1 + (rank == 0), device=device) for i in range(count)],
        )
    with pytest.raises(RuntimeError, match="send, recv .* the CPU alone"):
        dist.send(x, dst=(rank + 1) % count)


def test_alltoall_and_scatter_among_all(tmp_path):
    run_replicas(run_evenly, 3, tmp_path)


# ------------------------------------------------------------------------- who a process is


def test_no_order_of_replica_groups_is_better():
    assert xmp.create_optimized_replica_groups() is None


LAUNCHED = """
    import os, sys
    import torch_xla

    def main(index, word):
        print("CALLED", index, word, torch_xla.runtime.global_ordinal())

    torch_xla.launch(main, args=("word",))
"""


def test_launch_under_torchrun_gives_the_local_rank(tmp_path):
    script = write_script(tmp_path, LAUNCHED)
    # The second process of the second host.
    place = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    # Accelerators' plugins, where one is installed, would look for the others at once.
    result = start_python(script, timeout=100, PJRT_DEVICE="CPU", **place)
    assert "CALLED 1 word 3" in result.stdout


def _initialize(index: int, port: int, folder: str) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True"
    )

    pjrt.initialize_multiprocess(index, 2)
    pjrt.initialize_multiprocess(index, 2)
    xr._init_world_size_ordinal()
    with pytest.raises(RuntimeError, match="of this host already"):
        pjrt.initialize_multiprocess(1 - index, 2)
    total = xm.all_reduce(xm.REDUCE_SUM, torch.full((2,), index + 1.0, device=xm.xla_device()))
    Path(folder, str(index)).write_text(f"{xr.global_ordinal()} {xr.world_size()} {total.tolist()}")


def test_a_process_is_made_a_replica_by_hand(tmp_path):
    # The store that the two of them find: its port is free because it has it.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = torch.multiprocessing.start_processes(
        _initialize, (store.port, str(tmp_path)), 2, join=False, start_method="spawn"
    )
    try:
        while not context.join(timeout=100):
            pass
    finally:
        for process in context.processes:
            process.kill()
    assert [(tmp_path / str(i)).read_text() for i in range(2)] == [
        f"{i} 2 [3.0, 3.0]" for i in range(2)
    ]


def test_bad_local_ranks():
    for local_rank in (-1, 2):
        with pytest.raises(ValueError, match=f"from 0 to 1, got {local_rank}"):
            pjrt.initialize_multiprocess(local_rank, 2)


def test_an_error_that_was_shown_before_the_replicas_met_ends_none_of_them(monkeypatch):
    ends = []
    monkeypatch.setattr(replication, "finish", lambda: ends.append("finished"))
    monkeypatch.setattr(replication, "abandon", lambda error: ends.append(str(error)))
    shown = ValueError("shown in a session that went on")
    monkeypatch.setattr(sys, "last_value", shown, raising=False)
    replication._finish_at_exit(shown)
    replication._finish_at_exit(None)
    assert ends == ["finished", str(shown)]
