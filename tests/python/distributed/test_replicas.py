"""Replicas as processes: how they start, find each other, fail and end."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.processes import start_python, write_script
from testing.replicas import environment, run_replicas, start_replicas, wait_for_ends

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr

pytestmark = pytest.mark.multiprocess


# ------------------------------------------------------------------------- spawn, launch


def run_identity() -> dict[str, Any]:
    device = xm.xla_device()
    return {
        "device": str(device),
        "ordinals": (
            xm.get_ordinal(),
            xm.get_local_ordinal(),
            xr.global_ordinal(),
            xr.local_ordinal(),
            xr.process_index(),
        ),
        "counts": (
            xm.xrt_world_size(),
            xr.world_size(),
            xr.process_count(),
            xr.addressable_device_count(),
            xr.global_device_count(),
        ),
        "masters": (xm.is_master_ordinal(), xm.is_master_ordinal(local=False)),
        "sum": xm.all_reduce(xm.REDUCE_SUM, torch.ones(1, device=device) * xr.world_size()).item(),
    }


def test_replicas_know_their_place(tmp_path):
    for rank, found in enumerate(run_replicas(run_identity, 3, tmp_path)):
        assert found["device"] == "xla:0"
        assert found["ordinals"] == (rank,) * 5
        assert found["counts"] == (3, 3, 3, 1, 3)
        assert found["masters"] == (rank == 0,) * 2
        assert found["sum"] == 9


def _record(index: int, folder: str, word: str) -> None:
    Path(folder, str(index)).write_text(f"{word} {torch_xla.runtime.world_size()}")


def test_one_process_is_called_directly(tmp_path):
    with environment(CPU_NUM_DEVICES="4"):
        assert xmp.spawn(_record, (str(tmp_path), "one"), nprocs=1) is None
        torch_xla.launch(_record, (str(tmp_path), "one"), debug_single_process=True)
    assert (tmp_path / "0").read_text() == "one 1"
    with environment(CPU_NUM_DEVICES="1"):
        xmp.spawn(_record, (str(tmp_path), "default"))
    assert (tmp_path / "0").read_text() == "default 1"


def test_launch(tmp_path):
    with environment(CPU_NUM_DEVICES="2"):
        torch_xla.launch(_record, (str(tmp_path), "launched"))
    assert [(tmp_path / name).read_text() for name in "01"] == ["launched 2"] * 2


@pytest.mark.parametrize("nprocs", [0, 2, 3, 8])
def test_wrong_nprocs(nprocs):
    with environment(CPU_NUM_DEVICES="4"), pytest.raises(ValueError, match=r"nprocs.*of 4"):
        xmp.spawn(print, nprocs=nprocs)


def test_wrong_start_method():
    with environment(CPU_NUM_DEVICES="2"), pytest.raises(ValueError, match="start_method.*thread"):
        xmp.spawn(print, start_method="thread")


def test_fork_after_use_is_refused():
    torch.ones(1, device="xla").cpu()
    with environment(CPU_NUM_DEVICES="2"), pytest.raises(RuntimeError, match="has not used"):
        xmp.spawn(print, start_method="fork")


def _fail(index: int) -> None:
    if index == 1:
        raise KeyError("the second one")
    time.sleep(60)


def test_error_of_a_replica_is_raised():
    with (
        environment(CPU_NUM_DEVICES="2"),
        pytest.raises(torch.multiprocessing.ProcessRaisedException, match="the second one"),
    ):
        xmp.spawn(_fail)


def run_failing_with_a_collective() -> None:
    value = torch.ones(4, device=xm.xla_device())
    xm.all_reduce(xm.REDUCE_SUM, value).cpu()
    if xm.get_ordinal() == 0:
        xm.all_reduce(xm.REDUCE_SUM, [value])  # Traced, and nobody else ever comes.
        raise KeyError("the first one")
    time.sleep(600)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_failing_replica_does_not_wait_for_the_others(method, tmp_path):
    """Whatever it has traced; the timeout of collectives is longer than that of the test."""
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="the first one"):
        run_replicas(
            run_failing_with_a_collective,
            2,
            tmp_path,
            timeout=100,
            method=method,
            XLA_COLLECTIVE_TIMEOUT="1000",
        )


def run_inheriting() -> str:
    """Replica 1 is killed, and a process that it has forked lives on."""
    value = torch.ones(4, device=xm.xla_device())
    xm.all_reduce(xm.REDUCE_SUM, value).cpu()
    if xm.get_ordinal() == 1:
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "20"])
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 1 has ended"):
        xm.all_reduce(xm.REDUCE_SUM, value).cpu()
    assert time.monotonic() - begin < 15
    Path(os.environ["RESULT_FILE"]).write_text("named")
    return "named"


def test_a_forked_child_does_not_keep_a_replica_alive(tmp_path):
    file = tmp_path / "result"
    context = start_replicas(run_inheriting, 2, tmp_path / "out", RESULT_FILE=str(file))
    wait_for_ends(context, 60)
    assert file.read_text() == "named"


# ----------------------------------------------------------------------- host functions


def run_host_functions(folder: str) -> dict[str, Any]:
    device = xm.xla_device()
    rank = xm.get_ordinal()
    out: dict[str, Any] = {}
    out["payloads"] = xm.rendezvous("tag", f"from {rank}".encode())
    out["again"] = xm.rendezvous("tag", str(rank))
    if rank < 2:
        out["some"] = xm.rendezvous("some", bytes([rank]), replicas=[1, 0])
    out["reduced"] = xm.mesh_reduce("mean", torch.full((2,), float(rank), device=device), sum)
    out["objects"] = xm.mesh_reduce("objects", {"rank": rank}, lambda all: [d["rank"] for d in all])
    x = xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device=device))
    out["on_ordinals"] = xm.do_on_ordinals(
        lambda t, word: (t.device.type, t.tolist(), word), (x, "word"), ordinals=(0, 2)
    )
    # A pending collective does not make a rendezvous wait in a circle.
    y = xm.all_reduce(xm.REDUCE_SUM, torch.ones(1, device=device))
    if rank == 0:
        xm.rendezvous("after")
        out["pending"] = y.item()
    else:
        out["pending"] = y.item()
        xm.rendezvous("after")
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).to(device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(rank + 5))
        model[1].running_mean.fill_(float(rank + 7))
    xm.broadcast_master_param(model)
    out["model"] = {name: t.cpu() for name, t in model.state_dict().items()}
    xm.save({"rank": rank, "x": x}, f"{folder}/saved.pt")
    xm.save({"rank": rank}, f"{folder}/saved{rank}.pt", master_only=False)
    xm.rendezvous("saved")
    out["saved"] = torch.load(f"{folder}/saved.pt")
    out["own"] = torch.load(f"{folder}/saved{rank}.pt")["rank"]

    # optimizer_step: the mean of the gradients, of those that there are.
    weights = [torch.nn.Parameter(torch.ones(3, device=device)) for _ in range(3)]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    (weights[0].sum() * (rank + 1) + weights[1].sum() * 3).backward()
    xm.optimizer_step(optimizer, barrier=True)
    out["weights"] = [w.tolist() for w in weights]
    return out


def test_host_functions(tmp_path):
    results = run_replicas(run_host_functions, 3, tmp_path, str(tmp_path))
    for rank, out in enumerate(results):
        assert out["payloads"] == [b"from 0", b"from 1", b"from 2"]
        assert out["again"] == [b"0", b"1", b"2"]
        assert out.get("some") == ([b"\0", b"\1"] if rank < 2 else None)
        assert out["reduced"].tolist() == [3.0, 3.0]
        assert out["objects"] == [0, 1, 2]
        assert out["on_ordinals"] == (None if rank == 1 else ("cpu", [3.0, 3.0], "word"))
        assert out["pending"] == 3
        for name, tensor in out["model"].items():
            value = {"1.running_mean": 7, "1.running_var": 1, "1.num_batches_tracked": 0}
            assert torch.all(tensor == value.get(name, 5)), name
        assert out["saved"]["rank"] == 0 and out["saved"]["x"].tolist() == [3, 3]
        assert out["own"] == rank
        assert out["weights"] == [[-1.0] * 3, [-2.0] * 3, [1.0] * 3]


# ------------------------------------------------------------------- launchers and hosts

SCRIPT = """
import os
import sys

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr


def main(index, folder):
    device = xm.xla_device()
    total = xm.all_reduce(xm.REDUCE_SUM, torch.full((5000,), index + 1.0, device=device))
    values = (index, xr.world_size(), xr.local_ordinal(), xr.addressable_device_count(),
              int(total[0].item()), os.environ["CPU_NUM_DEVICES"])
    with open(os.path.join(folder, str(index)), "w") as file:
        file.write(" ".join(map(str, values)))


if __name__ == "__main__":
    if sys.argv[2] == "launch":
        torch_xla.launch(main, args=(sys.argv[1],))
    else:
        xmp.spawn(main, args=(sys.argv[1],))
"""


def torchrun(*arguments: str, **variables: str) -> None:
    """Has torchrun start two replicas of a script, and end well."""
    variables = {"XLA_COLLECTIVE_TIMEOUT": "60", **variables}
    options = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    result = start_python(*options, *arguments, timeout=200, **variables)
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.mark.parametrize("how", ["launch", "spawn"])
def test_torchrun(how, tmp_path):
    # One device each, also where the environment has more, which stays as it is.
    torchrun(write_script(tmp_path, SCRIPT), str(tmp_path), how, CPU_NUM_DEVICES="4")
    assert [(tmp_path / name).read_text() for name in "01"] == [
        "0 2 0 1 3 4",
        "1 2 1 1 3 4",
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return probe.getsockname()[1]


def test_two_hosts(tmp_path):
    script, port = write_script(tmp_path, SCRIPT), free_port()
    hosts = []
    for host in range(2):
        env = {
            **os.environ,
            "CPU_NUM_DEVICES": "2",
            "MASTER_ADDR": "127.0.0.2",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": "2",
            "RANK": str(host),
            "XLA_REPLICA_ADDRESS": f"127.0.0.{host + 2}",
            "XLA_COLLECTIVE_TIMEOUT": "60",
        }
        hosts.append(
            subprocess.Popen(
                [sys.executable, script, str(tmp_path), "spawn"],
                env=env,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for host in hosts:
            _, errors = host.communicate(timeout=150)
            assert host.returncode == 0, errors[-4000:]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    found = [(tmp_path / name).read_text() for name in "0123"]
    assert found == [*("0 4 0 1 10 2", "1 4 1 1 10 2", "2 4 0 1 10 2", "3 4 1 1 10 2")]


# ------------------------------------------------------------------------- shared models

FORKED = """
import os
import sys
import time

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

torch.manual_seed(0)  # With "spawn" each replica makes its own.
WRAPPED = xmp.MpModelWrapper(torch.nn.Linear(4, 4))
SERIAL = xmp.MpSerialExecutor()


def main(index, folder):
    def alone():
        path = os.path.join(folder, "busy")
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        time.sleep(0.2)
        os.remove(path)
        return index

    assert SERIAL.run(alone) == index
    model = WRAPPED.to(xm.xla_device())
    weight = WRAPPED._model.weight
    assert model.weight is weight and weight.device.type == "xla"
    total = xm.all_reduce(xm.REDUCE_SUM, model.weight).cpu()
    torch.testing.assert_close(total, 3 * weight.detach().cpu())


if __name__ == "__main__":
    xmp.spawn(main, args=(sys.argv[1],), start_method=sys.argv[2])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_wrapped_model_and_serial_executor(method, tmp_path):
    script = write_script(tmp_path, FORKED)
    variables = {"CPU_NUM_DEVICES": "3", "XLA_COLLECTIVE_TIMEOUT": "60"}
    result = start_python(script, str(tmp_path), method, timeout=150, **variables)
    assert result.returncode == 0, result.stderr[-4000:]


REPEATED = """
import os
import sys
import time

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp


def main(index):
    x = torch.full((8000,), index + 1.0, device=xm.xla_device())
    assert xm.all_reduce(xm.REDUCE_SUM, x)[0].item() == 3
    xm.rendezvous("end")


def held():
    children = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == os.getpid():
            children.append(name)
    return len(os.listdir("/proc/self/fd")), len(children), len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    xmp.spawn(main, start_method="fork")
    before = held()
    for _ in range(int(sys.argv[1])):
        xmp.spawn(main, start_method="fork")
        deadline = time.monotonic() + 10
        # The kernel lists a thread for a moment after it was joined.
        while any(a > b for a, b in zip(held(), before)):
            assert time.monotonic() < deadline, (before, held())
            time.sleep(0.01)
    leftovers = os.listdir(os.environ["TMPDIR"])
    assert not leftovers, leftovers
"""


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(5, marks=pytest.mark.timeout(200)),
        pytest.param(200, marks=[pytest.mark.conformance, pytest.mark.timeout(1500)]),
    ],
)
def test_repeated_spawns_leave_nothing(count, tmp_path):
    script = write_script(tmp_path, REPEATED)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    ports = _listening_ports()
    variables = {"CPU_NUM_DEVICES": "2", "TMPDIR": str(temporary)}
    result = start_python(script, str(count), timeout=1400, **variables)
    assert result.returncode == 0, result.stderr[-4000:]
    # Other tests have opened some meanwhile, but not as many.
    assert len(_listening_ports() - ports) < max(60, count // 2)


def _listening_ports() -> set[str]:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines if line.split()[3] == "0A"}


RESTARTED = """
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank = int(os.environ["RANK"])
dist.init_process_group("cpu:gloo,xla:xla", init_method="xla://")
device = xm.xla_device()
assert xm.rendezvous("start", str(attempt).encode()) == [str(attempt).encode()] * 2
x = xm.all_reduce(xm.REDUCE_SUM, torch.full((2,), attempt + 1.0, device=device))
assert x.tolist() == [2.0 * (attempt + 1)] * 2
x = torch.ones(2)
dist.all_reduce(x)
assert x.tolist() == [2, 2]
if attempt == 0 and rank == 1:
    raise SystemExit(3)
if attempt == 1 and rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
x = xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device=device))
with open(os.path.join(sys.argv[1], str(rank)), "w") as file:
    file.write(f"{attempt} {int(x[0].item())}")
"""


def test_restarts(tmp_path):
    """The store of a launcher that starts its processes again has what the first ones wrote."""
    script = write_script(tmp_path, RESTARTED)
    torchrun("--max-restarts=2", "--monitor-interval=0.1", script, str(tmp_path))
    assert [(tmp_path / name).read_text() for name in "01"] == ["2 2", "2 2"]
