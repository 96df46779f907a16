"""Checkpoints: serialization.save/load, safetensors, and torch.save/load of xla tensors."""

import collections
import io
import os
import signal
import time

import pytest
import torch
from testing.gcs import gcs_server
from testing.processes import run_python
from testing.replicas import end_replicas, start_replicas

import torch_xla.core.xla_model as xm
import torch_xla.utils.serialization as xser
from torch_xla._internal.replicas import replication
from torch_xla.utils import safetensors as xla_safetensors

Point = collections.namedtuple("Point", "x y")


def _assert_same(loaded, expected):
    assert loaded.dtype == expected.dtype and loaded.shape == expected.shape
    assert loaded.device.type == "cpu"
    assert torch.equal(loaded.view(torch.uint8), expected.view(torch.uint8))


_DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.uint16,
    torch.float8_e4m3fn,
    torch.complex64,
]


@pytest.mark.parametrize("mmap", [True, False])
def test_round_trip(device, tmp_path, mmap):
    cpu = {str(dtype): torch.tensor([0, 1, 3, 2.5]).to(dtype) for dtype in _DTYPES}
    data = {
        "xla": {name: tensor.to(device) for name, tensor in cpu.items()},
        "cpu": cpu,
        "empty": torch.empty(0, 3, device=device),
        "scalar": torch.tensor(3.5, device=device),
        "lazy": torch.arange(4.0, device=device) * 2 + 1,
        "plain": [1, "two", (3.0, None), {4, 5}, collections.OrderedDict(a=b"6")],
    }
    xser.save(data, tmp_path / "data.pt")
    loaded = xser.load(tmp_path / "data.pt", mmap=mmap)
    assert list(loaded) == list(data)
    for name, expected in cpu.items():
        _assert_same(loaded["xla"][name], expected)
        _assert_same(loaded["cpu"][name], expected)
    assert loaded["empty"].shape == (0, 3)
    assert loaded["scalar"].item() == 3.5 and loaded["scalar"].dim() == 0
    assert loaded["lazy"].tolist() == [1, 3, 5, 7]
    assert loaded["plain"] == data["plain"]
    again = torch.load(tmp_path / "data.pt")  # The format is PyTorch's.
    _assert_same(again["xla"]["torch.float32"], cpu["torch.float32"])


def test_module_and_optimizer(device, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device=device)).sum().backward()
    optimizer.step()
    xser.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a")
    state = xser.load(tmp_path / "a")
    other = torch.nn.Linear(3, 2).to(device)
    other.load_state_dict(state["model"])
    assert torch.equal(other.weight, model.weight)
    other_optimizer = torch.optim.Adam(other.parameters())
    other_optimizer.load_state_dict(state["optimizer"])
    expected = optimizer.state_dict()["state"][0]["exp_avg"]
    assert torch.equal(other_optimizer.state_dict()["state"][0]["exp_avg"], expected)


def test_parameters_and_attributes(device, tmp_path):
    parameter = torch.nn.Parameter(torch.ones(2, device=device))
    frozen = torch.nn.Parameter(torch.ones(2, device=device), requires_grad=False)
    leaf = torch.zeros(2, device=device, requires_grad=True)
    leaf.note = "kept"
    xser.save([parameter, frozen, leaf, Point(leaf, 2)], tmp_path / "a")
    a, b, c, point = xser.load(tmp_path / "a", weights_only=False)
    assert type(a) is type(b) is torch.nn.Parameter
    assert (a.requires_grad, b.requires_grad, c.requires_grad) == (True, False, True)
    assert c.note == "kept" and point.x is c and type(point) is Point


def test_shared_tensors_stay_shared(device, tmp_path):
    base = torch.arange(12.0, device=device).view(3, 4)
    data = {
        "a": base,
        "same": base,
        "alias": base.detach(),
        "row": base[1],
        "transposed": base.t(),
        "step": base[:, ::2],
    }
    xser.save(data, tmp_path / "a")
    assert os.path.getsize(tmp_path / "a") < 4096
    loaded = xser.load(tmp_path / "a", mmap=False)
    assert loaded["a"] is loaded["same"]
    for name, tensor in data.items():
        assert torch.equal(loaded[name], tensor.cpu()), name
    loaded["a"].mul_(2)
    for name, tensor in data.items():
        assert torch.equal(loaded[name], tensor.cpu() * 2), name


def test_tied_weights_are_written_once(device, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, False))
    model[1].weight = model[0].weight
    model.to(device)
    xser.save(model.state_dict(), tmp_path / "a")
    assert os.path.getsize(tmp_path / "a") < 64 * 64 * 4 + 4096
    loaded = xser.load(tmp_path / "a")
    assert loaded["0.weight"].data_ptr() == loaded["1.weight"].data_ptr()


def test_a_view_alone_is_written_alone(device, tmp_path):
    big = torch.zeros(100_000, device=device)
    xser.save([big[7:9], big.view(100, 1000).t()[3].t()[5:8]], tmp_path / "views")
    # Two different looks: the memory is written, so that they share it.
    assert os.path.getsize(tmp_path / "views") > 400_000
    xser.save(big[7:9], tmp_path / "view")
    assert os.path.getsize(tmp_path / "view") < 4096
    assert xser.load(tmp_path / "view").tolist() == [0, 0]


def test_views_that_strides_cannot_express(device, tmp_path):
    base = torch.arange(6.0, device=device).view(2, 3)
    views = [base, base.t().reshape(6)[1:4], base.view(torch.int32), torch.tensor([1 + 2j]).conj()]
    views.append(torch.tensor([1 + 2j, 3j], device=device).conj())
    xser.save(views, tmp_path / "a")
    for loaded, view in zip(xser.load(tmp_path / "a"), views, strict=True):
        assert torch.equal(loaded, view.cpu())


def test_onto_a_device(device, tmp_path):
    base = torch.arange(6.0, device=device).view(2, 3)
    xser.save({"base": base, "row": base[1]}, tmp_path / "a")
    loaded = xser.load(tmp_path / "a", map_location="xla")
    assert loaded["base"].device == loaded["row"].device == device
    loaded["base"].add_(1)
    assert loaded["row"].tolist() == [4, 5, 6]
    with pytest.raises(RuntimeError, match="XLA device 99, but this process has"):
        xser.load(tmp_path / "a", map_location="xla:99")


def test_mmap_reads_the_file_s_pages(tmp_path):
    xser.save(torch.zeros(1000), tmp_path / "mapped")
    tensor = xser.load(tmp_path / "mapped")
    with open("/proc/self/maps") as maps:
        assert "mapped" in maps.read()
    tensor.add_(1)
    assert xser.load(tmp_path / "mapped").sum() == 0
    xser.save(tensor, tmp_path / "mapped")  # Over the file whose pages it is.
    assert tensor.sum() == xser.load(tmp_path / "mapped").sum() == 1000


def test_master_only(device, tmp_path, monkeypatch):
    data = {"a": torch.ones(2, device=device)}

    def be(rank, world_size, local_rank, local_world_size):
        place = replication.Topology(rank, world_size, local_rank, local_world_size)
        monkeypatch.setattr(replication, "topology", lambda: place)

    be(1, 2, 0, 1)  # The master of its host.
    xser.save(data, tmp_path / "a", global_master=True)
    assert not os.path.exists(tmp_path / "a")
    xser.save(data, tmp_path / "a")
    assert xser.load(tmp_path / "a")["a"].tolist() == [1, 1]
    be(1, 2, 1, 2)
    xser.save(data, tmp_path / "b")
    xla_safetensors.save_file(data, tmp_path / "b")
    assert not os.path.exists(tmp_path / "b")
    xser.save(data, tmp_path / "b", master_only=False)
    assert xser.load(tmp_path / "b")["a"].tolist() == [1, 1]


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        xser.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        xser.save(1, tmp_path / "no folder" / "file")
    foreign = tmp_path / "foreign"
    for content in (b"", b"PK", b"hello world", b"\x80\x02}q\x00."):
        foreign.write_bytes(content)
        with pytest.raises(RuntimeError, match="foreign is no checkpoint: expected a file that"):
            xser.load(foreign)
    xser.save({"a": torch.arange(1000.0), "b": [1, 2]}, tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    truncated = tmp_path / "truncated"
    for size in (4, 30, len(whole) // 2, len(whole) - 100, len(whole) - 1):
        truncated.write_bytes(whole[:size])
        for mmap in (True, False):
            with pytest.raises(RuntimeError, match=f"truncated is truncated.*got {size} bytes"):
                xser.load(truncated, mmap=mmap)
    with pytest.raises(RuntimeError, match="to have one dtype, got torch.float32 and torch.int32"):
        tensor = torch.ones(2)
        xser.save([tensor, tensor.view(torch.int32)], tmp_path / "dtypes")
    assert sorted(os.listdir(tmp_path)) == ["foreign", "truncated", "whole"]


def test_xm_save_leaves_the_old_file_when_it_fails(device, tmp_path):
    xm.save({"a": torch.ones(2, device=device)}, tmp_path / "file")
    with pytest.raises(Exception, match="pickle"):
        xm.save({"a": torch.zeros(2, device=device), "b": lambda: 0}, tmp_path / "file")
    assert torch.load(tmp_path / "file")["a"].tolist() == [1, 1]
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_no_file_is_not_replaced():
    xser.save(torch.ones(2), "/dev/null")
    assert not os.path.isfile("/dev/null")


def test_gcs(device):
    pytest.importorskip("gcp_storage_emulator")
    with gcs_server():
        data = {"a": torch.arange(1000.0, device=device)}
        xser.save(data, "gs://bucket/checkpoint")
        loaded = xser.load("gs://bucket/checkpoint")
        assert torch.equal(loaded["a"], torch.arange(1000.0))


@pytest.mark.multiprocess
def test_host_memory(tmp_path):
    """The peak is below the largest tensor and 64 MB, for 192 MB in tensors of 24."""
    code = """
    import os
    import torch_xla.utils.serialization as xser

    os.chdir(FOLDER)

    def status(field):
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith(field))
        return int(line.split()[1]) * 1024

    size = 24 * 2**20
    data = [torch.full((size // 4,), float(i), device=device) for i in range(8)]
    data = [tensor + 1 for tensor in data]
    xm.mark_step(wait=True)
    xser.save(data[0][:10].clone(), "warm.pt")
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    xser.save(data, "data.pt")
    growth = status("VmHWM") - before
    loaded = xser.load("data.pt")
    correct = [tensor[-1].item() for tensor in loaded] == [i + 1.0 for i in range(8)]
    report(growth=growth, size=size, file=os.path.getsize("data.pt"), correct=correct)
    """
    code = code.replace("FOLDER", repr(str(tmp_path)))
    reported, _ = run_python(code, tmp_path)
    assert reported["correct"] and reported["file"] > 8 * reported["size"]
    assert reported["growth"] < reported["size"] + 64 * 2**20, reported


@pytest.mark.multiprocess
def test_killed_while_saving(tmp_path):
    """Processes that save over one file are killed at named points, and at any time."""
    code = """
    import os, random, signal, time
    import torch_xla.utils.serialization as xser

    os.chdir(FOLDER)
    torch.set_num_threads(1)  # Threads do not survive a fork.
    path = "checkpoint"

    def write(number):
        xser.save({"a": torch.full((2**20,), float(number)), "number": number}, path)

    def whole():
        loaded = xser.load(path, mmap=False)
        assert loaded["a"].eq(loaded["number"]).all()
        return loaded["number"]

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def killed(function):
        child = os.fork()
        if child == 0:
            try:
                function()
            finally:
                os._exit(0)
        return child

    def at(name, call, after):
        def function():
            original = getattr(os, name)
            calls = iter(range(1000))
            def patched(*args, **kwargs):
                if next(calls) < call:
                    return original(*args, **kwargs)
                if after:
                    original(*args, **kwargs)
                die()
            setattr(os, name, patched)
            write(1)
        return function

    outcomes, left = [], []
    write(0)
    points = [("fsync", 0, False), ("fsync", 0, True), ("replace", 0, False),
              ("replace", 0, True), ("fsync", 1, False)]
    for point in points:
        write(0)
        _, status = os.waitpid(killed(at(*point)), 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, point
        outcomes.append(whole())
        left.append(len(os.listdir(".")))

    random.seed(0)
    kills = 0
    for trial in range(30):
        def function():
            for number in range(1, 1000):
                write(number)
        child = killed(function)
        time.sleep(random.uniform(0.001, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        whole()
        kills += 1
    write(7)
    report(outcomes=outcomes, kills=kills, left=left, last=whole(), files=os.listdir("."))
    """
    code = code.replace("FOLDER", repr(str(tmp_path / "files")))
    (tmp_path / "files").mkdir()
    reported, _ = run_python(code, tmp_path, timeout=90)
    assert reported["outcomes"] == [0, 0, 0, 1, 1]
    assert reported["kills"] == 30 and reported["last"] == 7
    # Those killed before the rename left a temporary file; the next save removed it.
    assert reported["left"] == [2, 2, 2, 1, 1]
    assert reported["files"] == ["checkpoint"]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_save(case: str, folder: str) -> None:
    """One replica of two: saves 1 over 0, and dies where the case says."""
    rank = xm.get_ordinal()
    own = {"path": f"{folder}/{rank}", "master_only": False}
    options = own if case == "own files" else {"path": f"{folder}/0", "global_master": rank == 0}

    def save(number: int) -> None:
        total = xm.all_reduce(xm.REDUCE_SUM, torch.full((1000,), number / 2, device="xla"))
        xser.save({"sum": total, "number": number}, **options)

    def when_the_other_has_saved(*args: str) -> None:
        while xser.load(f"{folder}/{1 - rank}")["number"] == 0:
            time.sleep(0.01)
        _die()

    save(0)
    xm.rendezvous("saved")
    if case == "own files" and rank == 1:
        os.replace = when_the_other_has_saved
    elif case == "master, renaming" and rank == 0:
        os.replace = lambda *args: _die()
    elif case == "other, before the sum" and rank == 1:
        _die()
    elif case == "other, after the sum" and rank == 1:
        xser._is_master = when_the_other_has_saved
    save(1)
    while True:  # Whoever lives is ended by the test.
        time.sleep(0.1)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("case", "dies", "expected"),
    [
        ("own files", 1, {"0": 1, "1": 0}),
        ("master, renaming", 0, {"0": 0}),
        ("other, before the sum", 1, {"0": 0}),
        ("other, after the sum", 1, {"0": 1}),
    ],
)
def test_one_of_two_replicas_killed_while_they_save(tmp_path, case, dies, expected):
    (tmp_path / "files").mkdir()
    context = start_replicas(run_save, 2, tmp_path / "results", case, str(tmp_path / "files"))
    try:
        context.processes[dies].join(100)
        assert context.processes[dies].exitcode == -signal.SIGKILL
    finally:
        end_replicas(context)
    for name, number in expected.items():
        loaded = xser.load(tmp_path / "files" / name)
        assert loaded["number"] == number and loaded["sum"].tolist() == [float(number)] * 1000
        xser.save(0, tmp_path / "files" / name)
    assert {p.name for p in (tmp_path / "files").iterdir()} == set(expected)  # Nothing is left.


# ---------------------------------------------------------------- safetensors


def test_safetensors(device, tmp_path):
    pytest.importorskip("safetensors")
    from safetensors.torch import load_file, save_file

    cpu = {str(dtype): torch.tensor([[0, 1, 3, 2.5]]).to(dtype) for dtype in _DTYPES}
    state = {name: tensor.to(device) for name, tensor in cpu.items()}
    state |= {"scalar": torch.tensor(2.0, device=device), "empty": torch.empty(0, device=device)}
    xla_safetensors.save_file(state, tmp_path / "a", metadata={"format": "pt"})
    for loaded in (load_file(tmp_path / "a"), xla_safetensors.load_file(tmp_path / "a")):
        assert loaded.keys() == state.keys()
        for name, expected in cpu.items():
            _assert_same(loaded[name], expected)
        assert loaded["scalar"].shape == () and loaded["empty"].shape == (0,)
    save_file({"x": torch.arange(4.0)}, tmp_path / "b")
    loaded = xla_safetensors.load_file(tmp_path / "b", device)
    assert loaded["x"].device == device and loaded["x"].tolist() == [0, 1, 2, 3]


def test_safetensors_ties(device, tmp_path):
    weight = torch.ones(8, device=device)
    state = {"a": weight, "b": weight.detach(), "c": weight[:4], "d": torch.ones(8)}
    state["e"] = state["d"].detach()
    xla_safetensors.save_file(state, tmp_path / "a")
    loaded = xla_safetensors.load_file(tmp_path / "a")
    assert loaded["a"] is loaded["b"] and loaded["d"] is loaded["e"]
    assert loaded["c"].tolist() == [1] * 4 and loaded["a"] is not loaded["d"]


def test_safetensors_errors(tmp_path):
    pytest.importorskip("safetensors")
    with pytest.raises(TypeError, match="names to tensors, got dict under 'a'"):
        xla_safetensors.save_file({"a": {"b": torch.ones(1)}}, tmp_path / "a")
    with pytest.raises(ValueError, match="no dtype torch.complex128"):
        xla_safetensors.save_file({"a": torch.ones(1, dtype=torch.complex128)}, tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        xla_safetensors.load_file(tmp_path / "a")
    xla_safetensors.save_file({"a": torch.ones(100)}, tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    for size in (0, 4, 20, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(RuntimeError, match="cut is truncated or no safetensors file"):
            xla_safetensors.load_file(tmp_path / "cut")


# ---------------------------------------------------------------- torch.save, torch.load


def _saved(data) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(data, file)
    file.seek(0)
    return file


def test_torch_save_remembers_the_device(device):
    x = torch.arange(6.0, device=device)
    file = _saved({"x": x, "view": x[1:3]})
    loaded = torch.load(file)
    assert loaded["x"].device == loaded["view"].device == device
    loaded["x"].zero_()  # They share memory again.
    assert loaded["view"].tolist() == [0, 0]
    file.seek(0)
    assert torch.load(file, map_location="cpu")["x"].device.type == "cpu"


def test_torch_load_onto_a_missing_device(device):
    content = _saved(torch.ones(2, device=device)).getvalue().replace(b"xla:0", b"xla:9")
    with pytest.raises(RuntimeError, match="XLA device 9, but this process has"):
        torch.load(io.BytesIO(content))
    with pytest.raises(RuntimeError, match="XLA device 9, but this process has"):
        torch.load(_saved(torch.ones(2)), map_location="xla:9")


@pytest.mark.parametrize(
    "map_location", ["xla", "xla:0", torch.device("xla"), {"cpu": "xla:0"}, "callable"], ids=str
)
@pytest.mark.parametrize("mmap", [False, True])
def test_torch_load_of_a_cpu_checkpoint(device, tmp_path, map_location, mmap):
    if map_location == "callable":

        def map_location(storage, location):
            return torch.serialization.default_restore_location(storage, "xla")

    if mmap and isinstance(map_location, torch.device):
        map_location = str(map_location)
    weight = torch.arange(12.0).view(3, 4)
    data = {
        "row": weight[1],
        "weight": torch.nn.Parameter(weight),
        "transposed": weight.t(),
        "uint16": torch.tensor([1, 2], dtype=torch.uint16),
        "empty": torch.empty(0, 3),
        "conj": torch.tensor([1 + 2j]).conj(),
    }
    torch.save(data, tmp_path / "a")
    loaded = torch.load(tmp_path / "a", map_location=map_location, mmap=mmap)
    for name, tensor in data.items():
        assert loaded[name].device == device
        assert torch.equal(loaded[name].cpu(), tensor), name
    assert isinstance(loaded["weight"], torch.nn.Parameter) and loaded["weight"].is_leaf
    with torch.no_grad():
        loaded["weight"].mul_(2)
    assert torch.equal(loaded["row"].cpu(), weight[1] * 2)
    assert torch.equal(loaded["transposed"].cpu(), weight.t() * 2)


def test_torch_load_onto_the_cpu_is_unchanged():
    loaded = torch.load(_saved({"a": torch.ones(2)}), map_location="cpu")
    assert loaded["a"].device.type == "cpu" and loaded["a"].untyped_storage().nbytes() == 8
