"""Replicas that die, come late or disagree are named by those that wait."""

import functools
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.processes import start_python, write_script
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


DEATHS = [
    ("SIGKILL", "step"),
    ("SIGTERM", "step"),
    ("SIGKILL", "collective"),
    ("SIGTERM", "collective"),
    ("SIGKILL", "checkpoint"),
    ("SIGTERM", "checkpoint"),
    ("SIGKILL", "checkpoint beside steps"),
    ("SIGTERM", "program with a manager"),
]
STEPS = 20
# The launcher of torchrun with replicas that it forks, since each start as a script would spend
# seconds on its imports.
ELASTIC = """
import atexit, json, multiprocessing, os, signal, sys, threading, time, traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.fsdp import fully_shard
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import torch_xla
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, prime_optimizer


def train(folder, attempt, rank, note):
    torch.set_num_threads(1)
    dist.init_process_group("xla", init_method="xla://")
    name, place = DEATHS[attempt] if attempt < len(DEATHS) else ("", "")
    is_victim = bool(place) and rank == attempt % 2
    has_manager = place == "program with a manager"

    def die():
        (folder / f"{attempt}.died").write_text(str(time.time()))
        os.kill(os.getpid(), getattr(signal, name))

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4)
    model.to("xla")
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    prime_optimizer(optimizer)
    # The launcher sends SIGTERM to those that are left, too.
    handles = not is_victim or has_manager
    manager = CheckpointManager(folder / "run", 1, chkpt_on_preemption=handles)

    def state():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    restored = state()
    last = manager.restore_latest(restored)
    (folder / f"{attempt}.{rank}.restored").write_text(str(last))
    note["saved"] = []
    if last is not None:
        model.load_state_dict(restored["model"])
        optimizer.load_state_dict(restored["optimizer"])
    start = 0 if last is None else last + 1
    for step in range(start, start + 5 if place else STEPS):
        is_last = step == start + 1
        now = is_victim and is_last
        optimizer.zero_grad()
        x = torch.full((2, 3), step + rank + 1.0, device="xla")
        loss = model(x).square().mean() / 100
        if now and place == "step":
            die()
        loss.backward()
        if now and place == "collective":
            threading.Timer(0.1, die).start()
        while is_last and place == "collective":
            dist.all_reduce(torch.ones(4_000_000, device="xla"))
            torch_xla.sync(wait=True)
        optimizer.step()
        torch_xla.sync()
        if now and has_manager:
            die()
        if is_last:
            manager.join()
        if now and "checkpoint" in place:
            write = FileSystemWriter.write_data
            def write_and_die(*args):
                write(*args).wait()
                die()
            FileSystemWriter.write_data = write_and_die
        if place == "checkpoint beside steps":
            manager.save_async(step, state())
        else:
            manager.save(step, state())
        note["saved"].append(step)
        if has_manager and manager.reached_preemption(step):
            raise SystemExit(3)
    manager.join()
    weights = [x.full_tensor().tolist() for x in model.parameters()]
    if rank == 0:
        (folder / "weights.json").write_text(json.dumps(weights))


def run(folder):
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    note, code = {}, 0
    try:
        train(folder, attempt, rank, note)
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.last_value, code = error, 1  # As the interpreter notes it.
        traceback.print_exc()
        note["error"] = str(error)
    threading._shutdown()  # The end of an interpreter, which a forked process does not come to.
    atexit._run_exitfuncs()
    note["ended"] = time.time()
    (folder / f"{attempt}.{rank}.json").write_text(json.dumps(note))
    if code:
        os._exit(code)


if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(
        [
            "torch_xla.distributed.xla_backend",
            "torch_xla.experimental.distributed_checkpoint",
            "torch._dynamo",
            "torch.distributed.fsdp",
            "torch.distributed.launcher.api",
        ]
    )
    config = LaunchConfig(
        1, 1, 2, run_id="elastic", rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        max_restarts=len(DEATHS), monitor_interval=0.1, start_method="forkserver",
    )
    elastic_launch(config, run)(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def elastic(tmp_path_factory):
    """A run that the launcher starts again after each death; returns its folder."""
    folder = tmp_path_factory.mktemp("elastic")
    code = ELASTIC.replace("DEATHS", repr(DEATHS)).replace("STEPS", str(STEPS))
    script = write_script(folder, code)
    result = start_python(script, str(folder), timeout=200, XLA_COLLECTIVE_TIMEOUT="60")
    assert result.returncode == 0, result.stderr[-4000:]
    return folder


def notes_of(folder: Path, attempt: int) -> dict[int, Any]:
    """What the replicas wrote when they ended, those that could."""
    paths = [(rank, folder / f"{attempt}.{rank}.json") for rank in range(2)]
    return {rank: json.loads(path.read_text()) for rank, path in paths if path.exists()}


@pytest.mark.parametrize("attempt", range(len(DEATHS)), ids=[" in ".join(row) for row in DEATHS])
def test_death_and_restart(elastic, attempt):
    """The one that is left names the dead; the next start has what was saved last."""
    victim, place = attempt % 2, DEATHS[attempt][1]
    left = notes_of(elastic, attempt)
    died = float((elastic / f"{attempt}.died").read_text())
    restored = [(elastic / f"{attempt + 1}.{rank}.restored").read_text() for rank in range(2)]
    saved = left[1 - victim]["saved"]
    if place == "program with a manager":
        assert saved == left[victim]["saved"]
        assert len(saved) == 2  # The step of the signal is the last.
    else:
        assert list(left) == [1 - victim]
        text = left[1 - victim]["error"]
        assert f"replica {victim} has ended" in text or f"rank {victim} has ended" in text, text
        assert left[1 - victim]["ended"] - died < 10
        saved = saved[:1]  # Those of the second step were not whole.
    assert restored == [str(saved[-1])] * 2


def test_restarts_lose_no_step(elastic):
    """The weights are those of a run that nobody has killed."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(2):
            loss = model(torch.full((2, 3), step + rank + 1.0)).square().mean() / 100
            (loss / 2).backward()
        optimizer.step()
    found = json.loads((elastic / "weights.json").read_text())
    for x, y in zip(model.parameters(), found, strict=True):
        torch.testing.assert_close(x.detach(), torch.tensor(y), rtol=1e-4, atol=1e-4)
