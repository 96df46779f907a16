"""DLPack, with NumPy, PyTorch and JAX as the other side."""

import gc
import weakref

import numpy as np
import pytest
import torch
from testing.processes import run_python

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.utils.dlpack import from_dlpack, to_dlpack

pytestmark = pytest.mark.skipif(
    torch_xla.runtime.device_type() != "CPU", reason="shares memory on the host"
)


def _address(tensor: torch.Tensor) -> int:
    return np.from_dlpack(tensor).__array_interface__["data"][0]


_DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.float16, torch.complex64]


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_numpy(device, dtype):
    cpu = torch.arange(6).to(dtype).view(2, 3)
    tensor = cpu.to(device)
    array = np.from_dlpack(tensor)
    assert array.dtype == cpu.numpy().dtype and not array.flags.writeable
    np.testing.assert_array_equal(array, cpu.numpy())
    assert _address(tensor) == array.__array_interface__["data"][0]  # No copy.
    np.testing.assert_array_equal(from_dlpack(cpu.numpy()).cpu().numpy(), cpu.numpy())
    # Through the protocol's other names.
    assert torch.equal(torch.from_dlpack(tensor), cpu)
    assert torch.equal(torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor)), cpu)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int8], ids=str)
def test_pytorch(device, dtype):
    cpu = torch.tensor([0, 1, 1, 0]).to(dtype)
    tensor = cpu.to(device)
    assert torch.equal(torch.from_dlpack(tensor), cpu)
    assert torch.equal(torch.utils.dlpack.from_dlpack(to_dlpack(tensor)), cpu)
    assert from_dlpack(to_dlpack(tensor)).dtype == dtype
    assert torch.equal(from_dlpack(cpu), tensor)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_shapes(device, shape):
    cpu = torch.ones(shape)
    assert np.from_dlpack(cpu.to(device)).shape == shape
    imported = from_dlpack(cpu.numpy())
    assert imported.shape == shape and torch.equal(imported.cpu(), cpu)


def test_lazy_tensors_and_views(device):
    base = torch.arange(12.0, device=device).view(3, 4)
    np.testing.assert_array_equal(
        np.from_dlpack(base * 2 + 1), np.arange(12.0).reshape(3, 4) * 2 + 1
    )
    np.testing.assert_array_equal(np.from_dlpack(base.t()), np.arange(12.0).reshape(3, 4).T)
    np.testing.assert_array_equal(np.from_dlpack(base[1, ::2]), [4, 6])


def test_an_export_is_a_snapshot(device):
    """Steps that overwrite a tensor do not donate memory that others look at."""
    tensor = torch.zeros(1000, device=device) + 1
    xm.mark_step()
    array = np.from_dlpack(tensor)
    for _ in range(3):
        tensor.add_(1)
        xm.mark_step()
    assert tensor[0].item() == 4
    assert (array == 1).all()


def test_an_export_outlives_its_tensor(device):
    array = np.from_dlpack(torch.full((1000,), 3.0, device=device) * 2)
    gc.collect()
    for _ in range(5):
        (torch.zeros(1000, device=device) + 1).cpu()
    assert (array == 6).all()


def test_import_is_the_same_memory(device):
    cpu = torch.arange(1000.0)  # PyTorch aligns to 64 bytes.
    tensor = from_dlpack(cpu)
    assert tensor.device == device
    assert _address(tensor) == cpu.data_ptr()
    cpu[0] = 7
    assert tensor[0].item() == 7
    # And its own operations leave that memory alone.
    tensor.add_(1)
    xm.mark_step()
    tensor.mul_(2)
    xm.mark_step()
    assert tensor[:3].tolist() == [16, 4, 6]
    assert cpu[:3].tolist() == [7, 1, 2]


def test_an_import_keeps_and_releases_its_source():
    class Array(np.ndarray):
        pass

    memory = np.zeros(2000 + 64, dtype=np.uint8)
    start = -memory.__array_interface__["data"][0] % 64
    array = memory[start : start + 2000].view(np.float32).view(Array)
    alive = weakref.ref(array)
    tensor = from_dlpack(array)
    assert _address(tensor) == array.__array_interface__["data"][0]
    del array
    gc.collect()
    assert alive() is not None
    assert (tensor + 1).sum().item() == 500
    del tensor
    gc.collect()
    xm.wait_device_ops()
    assert alive() is None


class _Legacy:
    """An array of before DLPack 1.0."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()

    def __dlpack__(self):
        return self._tensor.__dlpack__()


def test_legacy_arrays_and_capsules_are_shared_too(device):
    for wrap in (_Legacy, torch.utils.dlpack.to_dlpack, lambda cpu: cpu.__dlpack__()):
        cpu = torch.arange(1000.0)
        tensor = from_dlpack(wrap(cpu), device)
        assert _address(tensor) == cpu.data_ptr()
        assert _address(from_dlpack(tensor)) == cpu.data_ptr()  # An xla tensor's own, too.
    capsule = cpu[1:].__dlpack__()  # Not aligned: copied, and consumed all the same.
    assert from_dlpack(capsule).sum().item() == 999 * 500
    with pytest.raises(RuntimeError, match="consumed only once"):
        from_dlpack(capsule)


@pytest.mark.parametrize("in_place", [True, False])
def test_programs_do_not_write_to_imported_memory(device, in_place):
    """Nothing reads it afterwards, so that memory of the device's own would be donated."""
    cpu = torch.arange(1000.0)
    tensor = from_dlpack(cpu)
    xm.mark_step()
    if in_place:
        tensor.mul_(2)
    else:
        tensor = tensor * 2
    xm.mark_step()
    assert tensor[999].item() == 1998
    assert cpu[999] == 999


def test_unaligned_or_strided_memory_is_copied():
    array = np.arange(100, dtype=np.float32)
    for part in (array[1:50], array[::3], array.reshape(10, 10).T, array[::-1].copy()):
        assert torch.equal(from_dlpack(part).cpu(), torch.from_numpy(part.copy()))


def test_a_capsule_that_nobody_takes(device):
    tensor = torch.ones(10, device=device)
    for _ in range(3):
        to_dlpack(tensor)
    capsule = to_dlpack(tensor)
    torch.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="consumed only once"):
        torch.from_dlpack(capsule)


def test_copy(device):
    tensor = torch.ones(10, device=device)
    array = np.from_dlpack(tensor, copy=True)
    array[0] = 5
    assert tensor[0].item() == 1
    capsule = tensor.__dlpack__(dl_device=(1, 0), copy=False)
    assert torch.utils.dlpack.from_dlpack(capsule).data_ptr() == _address(tensor)


def test_errors(device):
    with pytest.raises(BufferError, match="require gradient"):
        np.from_dlpack(torch.ones(2, device=device, requires_grad=True))
    with pytest.raises(RuntimeError, match="expected an xla tensor"):
        to_dlpack(torch.ones(2))
    with pytest.raises(TypeError, match="__dlpack__ or a DLPack capsule, got list"):
        from_dlpack([1, 2])
    with pytest.raises(BufferError, match="expected `stream` to be None"):
        torch.ones(2, device=device).__dlpack__(stream=3)
    with pytest.raises(BufferError, match="expected `dl_device`"):
        torch.ones(2, device=device).__dlpack__(dl_device=(2, 0))
    assert torch.ones(2).__dlpack_device__()[0] == 1  # CPU tensors as ever.


@pytest.mark.multiprocess
def test_jax(tmp_path):
    """In a process of its own: JAX starts threads, which forks in later tests would not have."""
    pytest.importorskip("jax")
    code = """
    import jax
    import numpy as np
    from torch_xla.utils.dlpack import from_dlpack

    def address(tensor):
        return np.from_dlpack(tensor).__array_interface__["data"][0]

    tensor = torch.arange(6.0, device=device).view(2, 3) + 0
    array = jax.dlpack.from_dlpack(tensor)
    ours, back = jax.numpy.ones((64, 64)), from_dlpack(jax.numpy.arange(1000.0) * 2)
    report(
        values=np.asarray(array).tolist(),
        exported=array.unsafe_buffer_pointer() == address(tensor),
        imported=address(from_dlpack(ours)) == ours.unsafe_buffer_pointer(),
        device=str(back.device),
        last=back[999].item(),
    )
    """
    reported, _ = run_python(code, tmp_path, timeout=240, JAX_PLATFORMS="cpu")
    assert reported == {
        "values": [[0, 1, 2], [3, 4, 5]],
        "exported": True,
        "imported": True,
        "device": "xla:0",
        "last": 1998,
    }
