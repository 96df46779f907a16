"""Replicas that die, come late or disagree are named by those that wait."""

import functools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.replicas import run_replicas, start_replicas, wait_for_ends

import torch_xla
import torch_xla.core.xla_model as xm

pytestmark = pytest.mark.multiprocess


def _until_failure(folder: str, body: Any) -> None:
    """Runs ``body`` and notes how it failed, and after how many seconds."""
    device, rank = xm.xla_device(), xm.get_ordinal()
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(1, device=device)).cpu()  # Everyone is connected.
    start = time.monotonic()
    try:
        body(device, rank)
        text = "no failure"
    except RuntimeError as error:
        text = str(error)
    Path(folder, f"error{rank}").write_text(f"{time.monotonic() - start}\n{text}")


def errors_of(folder: Path, ranks: list[int]) -> list[tuple[float, str]]:
    texts = [(folder / f"error{rank}").read_text().split("\n", 1) for rank in ranks]
    return [(float(seconds), text) for seconds, text in texts]


def _die_in_step(device: torch.device, rank: int) -> None:
    for step in range(5):
        x = torch.full((300, 300), float(step), device=device)
        if rank == 1 and step == 3:
            torch_xla.sync()
            os.kill(os.getpid(), signal.SIGKILL)
        xm.all_reduce(xm.REDUCE_SUM, [x])
        torch_xla.sync()
    x.cpu()


def test_killed_replica_is_named(tmp_path):
    context = start_replicas(_until_failure, 3, tmp_path, str(tmp_path), _die_in_step)
    codes = wait_for_ends(context, 90)
    assert codes[1] == -signal.SIGKILL
    for seconds, text in errors_of(tmp_path, [0, 2]):
        # By the broken connection, not by the timeout of 60 s.
        assert seconds < 30
        assert "rank 1 has ended" in text, text


def _die_in_transfer(device: torch.device, rank: int) -> None:
    if rank == 1:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    x = torch.ones(4_000_000, device=device)
    while True:
        xm.all_reduce(xm.REDUCE_SUM, [x], scale=0.5)
        torch_xla.sync(wait=True)


def test_killed_in_the_middle_of_a_transfer(tmp_path):
    context = start_replicas(_until_failure, 2, tmp_path, str(tmp_path), _die_in_transfer)
    codes = wait_for_ends(context, 90)
    assert codes[1] == -signal.SIGKILL
    [(seconds, text)] = errors_of(tmp_path, [0])
    assert seconds < 40
    assert "rank 1" in text and ("has ended" in text or "transfer" in text), text


def _be_late(device: torch.device, rank: int) -> None:
    if rank == 0:
        time.sleep(16)
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device=device)).cpu()


def test_late_replica_is_named(tmp_path):
    context = start_replicas(
        _until_failure, 2, tmp_path, str(tmp_path), _be_late, XLA_COLLECTIVE_TIMEOUT="6"
    )
    wait_for_ends(context, 60)
    [(seconds, text)] = errors_of(tmp_path, [1])
    assert 5.5 < seconds < 15
    assert "rank 0 did not come within 6 s" in text and "all_reduce(sum, f32[2]" in text


def _disagree(device: torch.device, rank: int, what: str) -> None:
    x = torch.ones(4, 6, device=device)
    large = torch.ones(100, 100, device=device)
    if what == "shape":
        xm.all_reduce("sum", x if rank == 0 else x[:, :5])
    elif what == "large":
        xm.all_reduce("sum", large if rank == 0 else large[:99])
    elif what == "size":
        xm.all_reduce("sum", x if rank == 0 else large)
    elif what == "dtype":
        xm.all_reduce("sum", x if rank == 0 else x.int())
    elif what == "operation":
        xm.all_reduce("sum", x) if rank == 0 else xm.all_gather(x)
    elif what == "reduction":
        xm.all_reduce("sum" if rank == 0 else "max", x)
    elif what == "order":
        calls = [lambda: xm.all_reduce("sum", x), lambda: xm.all_gather(x, 1)]
        for call in calls if rank == 0 else reversed(calls):
            call()
    torch_xla.sync(wait=True)


@pytest.mark.parametrize(
    ("what", "texts"),
    [
        ("shape", ("all_reduce(sum, f32[4,6]", "all_reduce(sum, f32[4,5]")),
        ("large", ("f32[100,100]", "f32[99,100]")),
        ("size", ("f32[4,6]", "f32[100,100]")),
        ("dtype", ("f32[4,6]", "s32[4,6]")),
        ("operation", ("all_reduce(", "all_gather(")),
        ("reduction", ("sum", "max")),
        ("order", ("all_reduce(", "all_gather(")),
    ],
)
def test_disagreement_is_reported(what, texts, tmp_path):
    context = start_replicas(
        _until_failure, 2, tmp_path, str(tmp_path), functools.partial(_disagree, what=what)
    )
    wait_for_ends(context, 90)
    for rank, (seconds, text) in enumerate(errors_of(tmp_path, [0, 1])):
        assert seconds < 30
        assert "different collectives" in text, text
        assert f"rank {rank} (this one) runs" in text or f"rank {1 - rank} gave up" in text
        assert all(part in text for part in texts), text


def run_rendezvous_with_dead() -> str:
    rank = xm.get_ordinal()
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(1, device=xm.xla_device())).cpu()
    if rank == 1:
        return "ended"
    with pytest.raises(RuntimeError, match="replica 1 has ended"):
        xm.rendezvous("never")
    return "raised"


def test_rendezvous_without_a_replica(tmp_path):
    assert run_replicas(run_rendezvous_with_dead, 2, tmp_path) == ["raised", "ended"]
