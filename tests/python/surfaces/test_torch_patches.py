"""The import changes nothing for programs on the CPU; what it replaces works for xla."""

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from testing.ops import rand
from testing.processes import python_output

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._internal.patches import pytorch as torch_patches


def _run(code):
    return python_output(
        "from testing.cpu_programs import *\n" + code,
        PYTHONPATH=str(Path(__file__).parents[1]),
        PJRT_DEVICE="",  # Set, it asks for xla.
    )


def test_programs_on_the_cpu_before_and_after_the_import():
    _run(
        "before = programs()\n"
        "import torch_xla\n"
        "after = programs()\n"
        "for name, value in before.items():\n"
        "    assert after[name] == value, (name, value, after[name])\n"
        "assert not torch.xla.is_initialized()\n"
    )


def test_no_threads_for_backward_passes_on_the_cpu():
    """Autograd starts one for each device; a process that has them cannot fork any more."""
    code = (
        "torch.ones(2) + 1\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "assert fork() == 0\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    assert _run(code) == _run("import torch_xla\n" + code)


def test_backward_on_xla_after_one_on_the_cpu():
    python_output(
        "import threading, torch, torch_xla\n"
        "torch.ones(2, requires_grad=True).sum().backward()\n"
        "def work():\n"
        "    x = torch.ones(2, device='xla', requires_grad=True)\n"
        "    (x * x).sum().backward()\n"
        "    results.append(x.grad.tolist())\n"
        "results = []\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
        "work()\n"
        "assert results == [[2.0, 2.0]] * 3, results\n"
        "assert not torch._C._is_multithreading_enabled()\n"
    )


def test_replaced_once():
    functions = [
        torch.nn.Module._apply,
        torch.Tensor.__deepcopy__,
        torch.Tensor.data_ptr,
    ]
    torch_patches.apply()
    assert functions == [
        torch.nn.Module._apply, torch.Tensor.__deepcopy__, torch.Tensor.data_ptr,
    ]  # fmt: skip


def test_what_is_replaced_is_listed():
    """The number only shrinks."""
    # These have some when they are there.
    import torch.distributed.checkpoint._state_dict_stager
    import torch.distributed.fsdp
    import torch.nn.attention.flex_attention  # noqa: F401

    page = (Path(torch_patches.__file__).parents[3] / "docs" / "torch_patches.md").read_text()
    names = {name for name in torch_patches.replaced if not name.startswith("_accelerator_")}
    assert not {name for name in names if name not in page}
    assert len(torch_patches.replaced) <= 38


# ------------------------------------------------------------------ what shares memory


def _copied(tensors):
    return copy.deepcopy(tensors)


def _pickled(tensors):
    return pickle.loads(pickle.dumps(tensors))


def _saved(tensors):
    file = io.BytesIO()
    torch.save(tensors, file)
    return torch.load(io.BytesIO(file.getvalue()))


def _saved_the_old_way(tensors):
    file = io.BytesIO()
    torch.save(tensors, file, _use_new_zipfile_serialization=False)
    return torch.load(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("through", [_copied, _pickled, _saved, _saved_the_old_way])
def test_sharing_survives(device, through):
    def make(device):
        x = rand(4, 6).to(device)
        return [x, x[1:], x.t(), x[:, ::2], x.detach(), x.view(-1)[3:7], x]

    def check(tensors):
        results = through(tensors)
        assert results[0] is results[-1]
        for tensor, result in zip(tensors, results, strict=True):
            assert result.device == tensor.device and not result.requires_grad
            torch.testing.assert_close(result.cpu(), tensor.cpu(), rtol=0, atol=0)
        results[1][0, 0] = 7.0
        results[0][3, 5] = 8.0
        return [result.cpu() for result in results], [tensor.cpu() for tensor in tensors]

    for ours, reference in zip(check(make(device)), check(make("cpu")), strict=True):
        for a, b in zip(ours, reference, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("through", [_copied, _pickled, _saved])
def test_what_comes_along(device, through):
    leaf = rand(3).to(device).requires_grad_()
    leaf.grad = rand(3, seed=1).to(device)
    leaf.note = "text"
    complex_conj = torch.complex(rand(2), rand(2, seed=1)).to(device).conj()
    data = {
        "leaf": leaf,
        "conj": complex_conj,
        "bool": torch.tensor([True, False]).to(device),
        "bits": rand(3).to(device).view(torch.int32),
        "empty": torch.empty(0, 3, device=device),
        "scalar": torch.tensor(2.5).to(device),
        "parameter": torch.nn.Parameter(rand(2).to(device)),
    }
    if through is not _pickled:  # As on the CPU, whose plain pickles of these do not load.
        data["small"] = torch.tensor([0, 1, 2], dtype=torch.uint16).to(device)
    result = through(data)
    for name, tensor in data.items():
        assert result[name].device == device and result[name].dtype == tensor.dtype
        assert result[name].requires_grad == tensor.requires_grad and result[name].is_leaf
        assert torch.equal(result[name].detach().cpu(), tensor.detach().cpu()), name
    assert type(result["parameter"]) is torch.nn.Parameter
    assert result["leaf"].note == "text"
    if through is _copied:
        assert torch.equal(result["leaf"].grad.cpu(), leaf.grad.cpu())
    (result["leaf"] * 2).sum().backward()
    with torch.no_grad():
        result["leaf"].add_(1)
    result["scalar"].mul_(2)
    assert result["scalar"].item() == 5.0


def test_a_second_copy_has_the_new_values(device):
    x = rand(3).to(device)
    first = _saved([x])[0]
    x.add_(1)
    assert torch.equal(_saved([x])[0].cpu(), x.cpu())
    torch.testing.assert_close(first.cpu() + 1, x.cpu())


def test_saved_from_xla_is_loaded_elsewhere(device, tmp_path):
    x = rand(3, 4).to(device)
    torch.save({"x": x, "row": x[1]}, tmp_path / "file")
    for location in ("cpu", torch.device("cpu"), {"xla:0": "cpu"}, lambda storage, _: storage):
        loaded = torch.load(tmp_path / "file", map_location=location)
        assert loaded["x"].device.type == "cpu"
        loaded["row"].zero_()
        assert not loaded["x"][1].any()
    assert torch.load(tmp_path / "file", map_location="meta")["x"].device.type == "meta"
    assert torch.load(tmp_path / "file", mmap=True)["row"].device == device


# ------------------------------------------------------------------ storages


def test_storages_tell_who_shares_memory(device):
    x, y = rand(4, 2).to(device), rand(4).to(device)
    storage = x.untyped_storage()
    assert storage.data_ptr() == x.data_ptr() == x[1:].untyped_storage().data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 8
    assert x.data_ptr() not in (0, y.data_ptr()) and torch.empty(0, device=device).data_ptr() == 0
    assert storage.device == device and storage.nbytes() == 32
    assert bytes(storage.tolist()) == x.cpu().numpy().tobytes()
    assert x.storage()[3] == x[1, 1].item()
    x.resize_(6, 2)
    assert x.untyped_storage().nbytes() == 48


def test_a_storage_is_saved(device):
    x = rand(4).to(device)
    y = x + 0
    file = io.BytesIO()
    torch.save([x.untyped_storage(), y.storage()], file)
    untyped, typed = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")
    assert bytes(untyped.tolist()) == x.cpu().numpy().tobytes()
    assert typed.tolist() == x.tolist()


def test_kernels_that_read_the_host_get_an_error(device):
    """Not an address that is none."""
    with pytest.raises(RuntimeError, match="data pointer"):
        torch._C._to_dlpack(rand(2).to(device))


def test_set_to_a_storage(device):
    x = rand(6).to(device)
    view = torch.empty(0, device=device).set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    view.zero_()
    assert x[2:].tolist() == [0.0] * 4 and x[0].item() != 0
    bits = torch.empty(0, dtype=torch.int32, device=device).set_(x.untyped_storage())
    assert torch.equal(bits.cpu(), x.cpu().view(torch.int32))
    with pytest.raises(RuntimeError, match="cpu"):
        view.set_(torch.ones(2).untyped_storage())
    with pytest.raises(RuntimeError, match="out of bounds"):
        view.set_(x.untyped_storage(), 0, (9,), (1,))


def test_safetensors(device, tmp_path):
    from safetensors.torch import load_file, load_model, save_file, save_model

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    model.to(device)
    save_model(model, str(tmp_path / "model"))
    expected = model[0].weight.detach().cpu()
    other = copy.deepcopy(model)
    torch.nn.init.zeros_(other[0].weight)
    load_model(other, str(tmp_path / "model"))
    assert torch.equal(other[1].weight.detach().cpu(), expected)
    save_file({"a": rand(3).to(device), "b": rand(2, 2).to(device).bfloat16()}, tmp_path / "file")
    loaded = load_file(tmp_path / "file", device=str(device))
    assert torch.equal(loaded["a"].cpu(), rand(3)) and loaded["b"].dtype == torch.bfloat16


def test_tensor_xla(device):
    x = torch.ones(2).xla()
    assert x.device == device and x.xla(0) is x and torch.ones(1).xla(device).device == device
    with pytest.raises(ValueError, match="cpu"):
        x.xla("cpu")


def test_moved_modules_that_are_in_use_stay_tied(device):
    """A parameter that an autograd graph holds cannot be moved in place."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    kept = model[0].weight * 2
    model.to(device)
    assert model[0].weight is model[1].weight and model[0].weight.device == device
    assert kept.requires_grad
    xm.mark_step()
    torch_xla.sync()
