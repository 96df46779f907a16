"""CheckpointManager: when it saves, what it keeps, and that what it restores is what was saved."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from testing.gcs import gcs_server
from testing.processes import run_python, write_script
from testing.replicas import run_replicas

import torch_xla.core.xla_model as xm
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, prime_optimizer
from torch_xla.experimental.distributed_checkpoint import manager as saving


@pytest.fixture
def manager(tmp_path):
    manager = CheckpointManager(tmp_path / "run", save_interval=10)
    yield manager
    manager.close()


def _state(value: float, device="xla"):
    return {
        "model": {"w": torch.full((3, 2), value, device=device), "cpu": torch.tensor([value])},
        "list": [torch.full((2,), value, device=device)],
        "step": int(value),
    }


def _check(state, value: float):
    assert state["model"]["w"].eq(value).all() and state["model"]["w"].device.type == "xla"
    assert state["model"]["cpu"].item() == value
    assert state["list"][0].tolist() == [value] * 2
    assert state["step"] == value


@pytest.mark.parametrize("call", ["save", "save_async"])
def test_save_and_restore(manager, call):
    save = getattr(manager, call)
    assert save(0, _state(1.0))
    assert not save(5, _state(2.0))
    assert save(7, _state(3.0), force=True)
    assert save(10, _state(4.0))
    manager.join()
    assert manager.all_steps() == [0, 7, 10]
    state = _state(0.0)
    manager.restore(7, state)
    _check(state, 3.0)
    assert manager.restore_latest(state) == 10
    _check(state, 4.0)


def test_an_asynchronous_save_has_the_values_of_its_step(manager, monkeypatch):
    entered, go_on = threading.Event(), threading.Event()
    original = saving.save

    def slow(*args, **kwargs):
        entered.set()
        assert go_on.wait(60)
        return original(*args, **kwargs)

    monkeypatch.setattr(saving, "save", slow)
    state = _state(1.0)
    assert manager.save_async(0, state)
    assert entered.wait(60)
    state["model"]["w"].add_(5)
    state["model"]["cpu"].add_(5)
    state["list"][0].zero_()
    xm.mark_step()
    assert manager.all_steps() == []  # It is still being written.
    go_on.set()
    restored = _state(0.0)
    assert manager.restore_latest(restored) == 0
    _check(restored, 1.0)


def test_an_asynchronous_failure_is_raised_later(manager, monkeypatch):
    def failing(*args, **kwargs):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(saving, "save", failing)
        manager.save_async(0, _state(1.0))
        with pytest.raises(OSError, match="disk full"):
            manager.join()
    assert manager.save_async(10, _state(2.0))
    manager.join()
    assert manager.all_steps() == [10]


def test_retention(tmp_path):
    manager = CheckpointManager(tmp_path, 1, max_to_keep=2, chkpt_on_preemption=False)
    for step in range(5):
        manager.save_async(step, {"a": torch.tensor(step)})
    manager.join()
    assert manager.all_steps() == [3, 4]
    assert sorted(os.listdir(tmp_path)) == ["3", "4"]


def test_what_another_run_saved_before(tmp_path):
    """What is kept and restored is what was saved last, whatever the numbers of its steps."""
    options = {"save_interval": 1, "max_to_keep": 2, "chkpt_on_preemption": False}
    before = CheckpointManager(tmp_path, **options)
    for step in (100, 200):
        before.save(step, {"a": torch.tensor(step)})
    manager = CheckpointManager(tmp_path, **options)
    expected = {0: [0, 200], 1: [0, 1], 2: [1, 2]}
    for step, kept in expected.items():
        assert manager.save(step, {"a": torch.tensor(step)})
        assert manager.all_steps() == kept
        state = {"a": torch.tensor(-1)}
        assert manager.restore_latest(state) == step and state["a"].item() == step
    # A clock that was set back does not make a checkpoint old that has just been saved.
    for step in (1, 2):
        (tmp_path / str(step) / saving._MARK).write_text(f"{saving._MARK_TEXT}{1 << 62}\n")
    assert manager.save(3, {"a": torch.tensor(3)}) and 3 in manager.all_steps()


def test_what_others_have_in_the_folder_stays(tmp_path):
    options = {"save_interval": 1, "max_to_keep": 1, "chkpt_on_preemption": False}
    # A folder of pictures, one of a killed process of others, a checkpoint that PyTorch wrote.
    for name in ("2024", ".7.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "picture.png").write_bytes(b"p")
    dcp.save({"a": torch.tensor(50)}, checkpoint_id=tmp_path / "50", no_dist=True)
    manager = CheckpointManager(tmp_path, **options)
    for step in (1, 2):
        manager.save(step, {"a": torch.tensor(step)})
    assert sorted(os.listdir(tmp_path)) == [".7.tmp", "2", "2024", "50"]
    assert manager.all_steps() == [2, 50]
    for step in (2024, 7):
        with pytest.raises(FileExistsError, match="files that are no checkpoint"):
            manager.save(step, {"a": torch.tensor(step)})
    for name in ("2024", ".7.tmp"):
        assert (tmp_path / name / "picture.png").read_bytes() == b"p"
    state = {"a": torch.tensor(-1)}
    assert manager.restore_latest(state) == 2
    manager.restore(50, state)
    assert state["a"].item() == 50
    manager.save(3, {"a": torch.tensor(3)})  # It goes on.
    assert manager.all_steps() == [3, 50]


def test_a_full_disk(tmp_path):
    """The older checkpoints stay, nothing is left beside them, and the next one can be saved."""
    code = """
    import resource, signal
    from torch_xla.experimental.distributed_checkpoint import CheckpointManager
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    manager = CheckpointManager("FOLDER", 1, max_to_keep=1)
    manager.save(1, {"w": torch.ones(4, device=device)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    texts = []
    for save in (manager.save, manager.save_async):
        try:
            save(2, {"w": torch.zeros(1 << 20, device=device)})
            manager.join()
        except BaseException as error:  # PyTorch's CheckpointException is no Exception.
            texts.append(str(error))
    left = sorted(os.listdir("FOLDER"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    manager.save(3, {"w": torch.full((4,), 3.0, device=device)})
    state = {"w": torch.zeros(4, device=device)}
    report(texts=texts, left=left, step=manager.restore_latest(state), w=state["w"].tolist())
    """
    folder = tmp_path / "run"
    code = "import os\n" + textwrap.dedent(code).replace("FOLDER", str(folder))
    reported, _ = run_python(code, tmp_path)
    assert len(reported["texts"]) == 2 and all(reported["texts"])
    assert reported["left"] == ["1"]
    assert reported["step"] == 3 and reported["w"] == [3.0] * 4
    assert sorted(os.listdir(folder)) == ["3"]


def test_what_is_not_whole_is_passed_over(manager, tmp_path):
    for step in (0, 10, 20, 30):
        manager.save(step, _state(float(step)))
    os.remove(tmp_path / "run/30/.metadata")
    assert manager.all_steps() == [0, 10, 20]
    data = next((tmp_path / "run/20").glob("*.distcp"))
    os.truncate(data, os.path.getsize(data) // 2)
    (tmp_path / "run/10/.metadata").write_bytes(b"")
    state = _state(-1.0)
    assert manager.restore_latest(state) == 0
    _check(state, 0.0)


class Harmful:
    """What runs something when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_what_strangers_saved_runs_nothing(manager, tmp_path):
    touched = tmp_path / "touched"
    manager.save(0, {**_state(1.0), "object": Harmful(touched)})
    state = {**_state(0.0), "object": 1}
    with pytest.raises(dcp.api.CheckpointException, match="weights_only"):
        manager.restore(0, state)
    assert not touched.exists()
    manager.restore(0, state, weights_only=False)
    assert touched.exists()
    # Metadata is pickled, too.
    manager.save(10, _state(2.0))
    metadata = tmp_path / "run/10/.metadata"
    whole = metadata.read_bytes()
    for harm in (Harmful(tmp_path / "again"), subprocess.run, dcp.metadata.os):
        try:
            metadata.write_bytes(pickle.dumps(harm))
        except TypeError:  # A module, by its name in one that is admitted.
            metadata.write_bytes(b"ctorch.distributed.checkpoint.metadata\nos\n.")
        with pytest.raises(pickle.UnpicklingError, match="to run code"):
            manager.restore(10, _state(0.0))
        assert not (tmp_path / "again").exists()
    metadata.write_bytes(whole)
    state = _state(0.0)
    manager.restore(10, state)
    _check(state, 2.0)


def test_nothing_to_restore(manager):
    state = _state(1.0)
    assert manager.restore_latest(state) is None
    _check(state, 1.0)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 5 .*there are \[\]"):
        manager.restore(5, state)


def test_a_state_of_another_form(manager):
    manager.save(0, {"a": torch.ones(2)})
    with pytest.raises((RuntimeError, dcp.CheckpointException), match="b"):
        manager.restore(0, {"b": torch.ones(2)})


def test_a_step_saved_again(manager):
    manager.save(0, _state(1.0))
    manager.save(0, _state(2.0))
    state = _state(0.0)
    assert manager.restore_latest(state) == 0
    _check(state, 2.0)


def test_preemption(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    manager = CheckpointManager(tmp_path, 100)
    assert not manager.should_save(7) and not manager.reached_preemption(7)
    os.kill(os.getpid(), signal.SIGTERM)
    assert manager.reached_preemption(8)
    assert manager.save_async(8, {"a": torch.ones(1)})
    manager.close()
    assert manager.all_steps() == [8]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.multiprocess
def test_killed_while_saving(tmp_path):
    script = write_script(
        tmp_path,
        "import os, signal, sys, torch\n"
        "import torch.distributed.checkpoint as dcp\n"
        "from torch_xla.experimental.distributed_checkpoint import CheckpointManager\n"
        "manager = CheckpointManager(sys.argv[1], 1)\n"
        "manager.save(1, {'a': torch.ones(10)})\n"
        "dcp.FileSystemWriter.finish = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        "manager.save(2, {'a': torch.zeros(10)})\n",
    )
    child = subprocess.run([sys.executable, script, tmp_path / "run"], timeout=120)
    assert child.returncode == -signal.SIGKILL
    assert ".2.tmp" in os.listdir(tmp_path / "run")
    manager = CheckpointManager(tmp_path / "run", 1, chkpt_on_preemption=False)
    assert os.listdir(tmp_path / "run") == ["1"]  # The rest was cleared away.
    state = {"a": torch.zeros(10)}
    assert manager.restore_latest(state) == 1 and state["a"].eq(1).all()


@pytest.mark.multiprocess
def test_two_ranks_one_killed_while_they_save(tmp_path):
    """Whichever rank dies, and wherever: the older checkpoint or the new one is whole."""
    code = """
    import os, signal, sys, time
    from datetime import timedelta
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch_xla.experimental.distributed_checkpoint import CheckpointManager, manager as module

    torch.set_num_threads(1)  # Threads do not survive a fork.
    Writer = dcp.FileSystemWriter

    def state(value, ranks=(0, 1)):
        own = {f"own{rank}": torch.full((2,), float(value)) for rank in ranks}
        return {"both": torch.full((4,), float(value)), **own}

    def wait_for(path):
        while not os.path.exists(path):
            time.sleep(0.01)

    def kill_at(owner, name, call, after, other):
        original, calls = getattr(owner, name), iter(range(1000))
        def dying(*args, **kwargs):
            if next(calls) < call:
                return original(*args, **kwargs)
            if after:
                original(*args, **kwargs)
            elif name == "write_data":  # The other rank is done with its part.
                wait_for(f"{path}/.2.tmp/__{other}_0.distcp")
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(owner, name, dying)

    def run(rank, victim, step, point):
        dist.init_process_group("gloo", init_method=f"file://{path}.store", rank=rank,
                                world_size=2, timeout=timedelta(seconds=30))
        manager = CheckpointManager(path, 1)
        manager.save(1, state(1, [rank]))
        if rank == victim:
            kill_at(*point, 1 - rank)
        (manager.save if victim else manager.save_async)(step, state(2, [rank]))
        manager.join()

    def start(*args):
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # What the survivor says of its peer.
            try:
                run(*args)
                os._exit(0)
            except BaseException:
                os._exit(1)
        return child

    def end(children):
        statuses, deadline = {}, time.monotonic() + 60
        while len(statuses) < len(children):
            for child in set(children) - set(statuses):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    statuses[child] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
        return [statuses[child] for child in children]

    outcomes = []
    for number, (victim, step, *point) in enumerate([
        (0, 2, Writer, "write_data", 0, False),
        (0, 2, Writer, "write_data", 0, True),
        (1, 2, Writer, "write_data", 0, False),
        (1, 2, Writer, "write_data", 0, True),
        (0, 2, Writer, "finish", 0, False),
        (0, 2, Writer, "finish", 0, True),
        (0, 1, module.os, "rename", 1, False),  # The one of the step that it replaces is gone.
        (0, 2, module, "sync_directory", 1, False),  # It has its name.
        (1, 2, CheckpointManager, "_agree", 1, False),
        (1, 2, CheckpointManager, "_agree", 2, False),
    ]):
        path = f"FOLDER/{number}"
        codes = end([start(rank, victim, step, point) for rank in (0, 1)])
        manager = CheckpointManager(path, 1, chkpt_on_preemption=False)
        found = state(0)
        newest = manager.restore_latest(found)
        values = {value for tensor in found.values() for value in tensor.tolist()}
        files = sorted(os.listdir(path))
        outcomes.append([codes[victim], codes[1 - victim], newest, sorted(values), files])
    report(outcomes=outcomes)
    """
    (tmp_path / "runs").mkdir()
    reported, _ = run_python(code.replace("FOLDER", str(tmp_path / "runs")), tmp_path)
    old, new = [1, [1.0], ["1"]], [2, [2.0], ["1", "2"]]
    replaced = [1, [2.0], ["1"]]
    expected = [old, old, old, old, old, new, replaced, new, new, new]
    for outcome, (killed, other, *found) in zip(expected, reported["outcomes"], strict=True):
        assert killed == -signal.SIGKILL
        assert other == 1  # It was told, and waited for nobody.
        assert found == outcome


@pytest.mark.parametrize("grad", [None, 2.0])
def test_prime_optimizer(device, grad):
    parameter = torch.nn.Parameter(torch.ones(3, device=device))
    if grad is not None:
        parameter.grad = torch.full((3,), grad, device=device)
    optimizer = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.5)
    prime_optimizer(optimizer)
    assert parameter.tolist() == [1, 1, 1]
    assert grad is None or parameter.grad.tolist() == [grad] * 3
    assert optimizer.state[parameter]["exp_avg"].tolist() == [0, 0, 0]
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.state[parameter]["exp_avg"].shape == (3,)


def test_gcs(device):
    pytest.importorskip("gcp_storage_emulator")
    with gcs_server():
        manager = CheckpointManager("gs://bucket/run", 1, 1, chkpt_on_preemption=False)
        for step in range(2):
            manager.save(step, _state(float(step)))
        assert manager.all_steps() == [1]
        state = _state(7.0)
        assert manager.restore_latest(state) == 1
        _check(state, 1.0)


def test_wrong_arguments(tmp_path, manager):
    for name in ("save_interval", "max_pending_async"):
        arguments = {"save_interval": 1, name: 0}
        with pytest.raises(ValueError, match=f"`{name}` of at least 1, got 0"):
            CheckpointManager(tmp_path, **arguments)
    with pytest.raises(ValueError, match="step of at least 0, got -1"):
        manager.save(-1, {})


@pytest.mark.multiprocess
def test_process_group(tmp_path):
    """Two ranks: one is preempted and both save; both restore the same."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = write_script(
        tmp_path,
        "import os, signal, sys, torch\n"
        "import torch.distributed as dist\n"
        "from torch_xla.experimental.distributed_checkpoint import CheckpointManager\n"
        "rank = int(sys.argv[1])\n"
        f"dist.init_process_group('gloo', init_method='tcp://127.0.0.1:{port}',\n"
        "                        rank=rank, world_size=2)\n"
        "manager = CheckpointManager(sys.argv[2], 100)\n"
        "if rank == 1:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "state = {'a': torch.ones(4), f'own{rank}': torch.full((2,), rank)}\n"
        "saved = manager.save_async(3, state)\n"
        "manager.join()\n"
        "state = {'a': torch.zeros(4), f'own{rank}': torch.zeros(2)}\n"
        "step = manager.restore_latest(state)\n"
        "assert saved and step == 3 and state['a'].eq(1).all()\n"
        "assert state[f'own{rank}'].eq(rank).all()\n"
        "manager.close()\n"
        "dist.destroy_process_group()\n",
    )
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), tmp_path / "run"]) for rank in (0, 1)
    ]
    try:
        assert [rank.wait(120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def run_while_writing(folder: str) -> dict[str, Any]:
    dist.init_process_group("gloo", init_method="xla://")
    rank = dist.get_rank()
    manager = CheckpointManager(folder, 2, chkpt_on_preemption=False)
    original, failing = saving.save, threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        if rank == 0:
            time.sleep(0.5)
        if rank == 1 and failing.is_set():
            raise OSError("no room")  # Of one rank alone, outside of what PyTorch agrees on.
        return original(*args, **kwargs)

    def slow_or_alone(*args: Any, **kwargs: Any) -> Any:
        return None if failing.is_set() and rank == 0 else slow(*args, **kwargs)

    saving.save = slow_or_alone
    saved = []
    for step in range(6):  # Ranks ask at each step, while the checkpoints are written.
        if manager.save_async(step, {f"own{rank}": torch.full((2,), float(step))}):
            saved.append(step)
        assert not manager.reached_preemption(step)
    manager.join()
    steps = manager.all_steps()
    failing.set()
    errors = []
    for step in range(6, 12):
        try:
            manager.save_async(step, {f"own{rank}": torch.full((2,), float(step))})
        except (OSError, RuntimeError) as error:
            errors.append((step, f"{type(error).__name__}: {error}"))
            failing.clear()
        if step == 6:
            time.sleep(0.2 if rank == 0 else 1.0)  # One knows of the failure, one does not yet.
    manager.join()
    saving.save = original
    return {"saved": saved, "steps": steps, "errors": errors, "last": manager.all_steps()}


@pytest.mark.multiprocess
def test_ranks_agree_while_they_write(tmp_path):
    """Questions in the training's thread meet no collective of the writing, and errors are one."""
    results = run_replicas(run_while_writing, 2, tmp_path, str(tmp_path / "run"))
    for out in results:
        assert out["saved"] == out["steps"] == [0, 2, 4]
        assert out["last"][-1] == 10
    [(step0, text0)], [(step1, text1)] = (out["errors"] for out in results)
    assert step0 == step1
    assert text1 == "OSError: no room"
    assert "rank 1 failed to save: OSError: no room" in text0
