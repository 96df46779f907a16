"""The names that frameworks (accelerate, Lightning, diffusers) reach for first."""

import inspect

import pytest
import torch
from testing.ops import rand
from testing.processes import run_python
from testing.replicas import run_replicas

import torch_xla.core.xla_model as xm
from torch_xla._internal import tpu
from torch_xla.experimental.custom_kernel import FlashAttention, flash_attention


class TestXlaModel:
    def test_set_replication(self, device):
        xm.set_replication(device, [device])
        xm.set_replication(str(device), xm.get_xla_supported_devices())
        xm.set_replication(torch.device("cpu"), [])  # As for a program on the CPU.
        assert torch.ones(1, device="xla").device == device
        with pytest.raises(ValueError, match="xla:0"):
            xm.set_replication(device, ["xla:1"])

    def test_fetch_gradients(self, device):
        a, b, c = (torch.nn.Parameter(torch.ones(n).to(device)) for n in (1, 2, 3))
        optimizer = torch.optim.SGD([{"params": [a, b]}, {"params": [c]}], lr=0.5)
        assert xm._fetch_gradients(optimizer) == []
        (a.sum() + c.sum()).backward()
        assert [g is p.grad for g, p in zip(xm._fetch_gradients(optimizer), (a, c), strict=True)]

    def test_maybe_convert_to_cpu(self, device):
        data = {"a": [torch.ones(2).to(device) + 1, "text"], "b": torch.ones(1)}
        same = xm._maybe_convert_to_cpu(data, convert=False)
        assert same is data and same["a"][0].device == device
        converted = xm._maybe_convert_to_cpu(data)
        assert converted["a"][0].device.type == "cpu" and converted["a"][0].tolist() == [2, 2]
        assert converted["a"][1] == "text" and converted["b"] is data["b"]


class TestTpu:
    def test_what_shares_memory_does_on_the_cpu(self, device):
        module = torch.nn.ModuleList([torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)])
        module[1].weight = module[0].weight
        module.to(device)
        state = module.state_dict()  # Different tensors that look at the same memory.
        state["row"] = state["0.weight"][1]
        state["alone"] = torch.arange(100.0, device=device)[3:5]
        copies = xm._maybe_convert_to_cpu(state)
        expected = copies["0.weight"].data_ptr()
        assert copies["1.weight"].data_ptr() == expected
        assert copies["row"].data_ptr() == expected + 4 * 4
        assert copies["0.bias"].data_ptr() != copies["1.bias"].data_ptr()
        assert copies["alone"].untyped_storage().nbytes() == 2 * 4
        for name, tensor in state.items():
            torch.testing.assert_close(copies[name], tensor.cpu(), rtol=0, atol=0)

    def test_devices(self, monkeypatch):
        monkeypatch.setenv("PJRT_DEVICE", "CPU")
        monkeypatch.setenv("CPU_NUM_DEVICES", "3")
        assert tpu.num_available_devices() == 3
        monkeypatch.delenv("PJRT_DEVICE")  # The CPU is not offered to who has not named it.
        assert tpu.num_available_devices() == tpu.num_available_chips()

    def test_environment(self, monkeypatch):
        monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-16")
        monkeypatch.setenv("TPU_WORKER_ID", "1")
        monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "10.0.0.1,10.0.0.2")
        assert tpu.get_tpu_env() == {"ACCELERATOR_TYPE": "v5litepod-16", "WORKER_ID": "1"}
        assert tpu.version() == 5
        assert tpu.get_worker_ips() == ["10.0.0.1", "10.0.0.2"]

    def test_metadata(self, monkeypatch):
        monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)
        answers = {"tpu-env": "ACCELERATOR_TYPE: 'v4-16'\nWORKER_ID: '0'\n"}
        monkeypatch.setattr(tpu, "_metadata", answers.__getitem__)
        assert tpu.version() == 4 and tpu.get_tpu_env()["WORKER_ID"] == "0"


class TestFlashAttention:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("segments", [False, True])
    @pytest.mark.parametrize("bias", [False, True])
    def test_values_and_gradients(self, device, causal, segments, bias):
        q, k, v = (rand(2, 3, 8, 4, seed=i) for i in range(3))
        ids = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 1, 1]])
        ab = rand(2, 3, 8, 8, seed=4)

        def reference(q, k, v, ab):
            scores = (q @ k.mT + (ab if bias else 0)) * 0.5
            if causal:
                scores = scores.masked_fill(torch.ones(8, 8).triu(1).bool(), -1e30)
            if segments:
                scores = scores.masked_fill(ids[:, None, :, None] != ids[:, None, None, :], -1e30)
            return scores.softmax(-1) @ v

        leaves = [t.clone().requires_grad_() for t in (q, k, v, ab)]
        expected = reference(*leaves)
        expected.square().sum().backward()
        ours = [t.to(device).requires_grad_() for t in (q, k, v, ab)]
        ids = ids.to(device) if segments else None
        actual = flash_attention(
            *ours[:3], causal, ids, ids, sm_scale=0.5, ab=ours[3] if bias else None
        )
        actual.square().sum().backward()
        torch.testing.assert_close(actual.cpu(), expected)
        for a, b in zip(ours[: 4 if bias else 3], leaves, strict=False):
            torch.testing.assert_close(a.grad.cpu(), b.grad)

    def test_a_row_without_a_key_is_a_mean(self, device):
        q, ids = rand(1, 1, 2, 4).to(device), torch.tensor([[0, 1]]).to(device)
        result = FlashAttention.apply(q, q, q, False, ids, ids + 5)
        torch.testing.assert_close(result.cpu(), q.cpu().mean(2, keepdim=True).expand(q.shape))

    def test_arguments(self, device):
        with pytest.raises(ValueError, match="kv_segment_ids"):
            q = torch.ones(1, 1, 2, 4, device=device)
            flash_attention(q, q, q, q_segment_ids=torch.zeros(1, 2, device=device))
        names = list(inspect.signature(flash_attention).parameters)
        assert names == [
            "q", "k", "v", "causal", "q_segment_ids", "kv_segment_ids", "sm_scale", "ab",
            "partition_spec", "mesh",
        ]  # fmt: skip


def run_gather_object() -> list:
    from accelerate import PartialState
    from accelerate.utils import gather_object

    import torch_xla  # noqa: F401

    state = PartialState()
    gathered = gather_object([state.process_index, "a" * state.process_index])
    one = gather_object([{"x": 1}])
    return [str(state.device), gathered, one]


@pytest.mark.multiprocess
def test_accelerate_gathers_objects(tmp_path):
    pytest.importorskip("accelerate")
    code = inspect.getsource(run_gather_object) + "report(results=run_gather_object())"
    reported, _ = run_python(code, tmp_path)
    results = {1: [reported["results"]], 2: run_replicas(run_gather_object, 2, tmp_path)}
    for count, of_count in results.items():
        assert len(of_count) == count
        for device, gathered, one in of_count:
            assert device.startswith("xla")
            assert gathered == [0, "", 1, "a"][: 2 * count]
            assert one == [{"x": 1}] * count
