"""What frameworks call of torch.accelerator and of the device module, each call a row with a check.

The table was read from transformers, accelerate, Lightning, diffusers, peft, trl, timm, torchtitan,
torchao and vLLM, and from what PyTorch's own modules ask a device module.
"""

import copy
import gc
import os
from collections.abc import Callable

import pytest
import torch
from testing.ops import rand
from testing.processes import fork_child, python_output
from torch import nn

A = torch.accelerator
X = torch.xla
XLA = torch.device("xla")


def _restores_randomness() -> bool:
    state = X.get_rng_state()
    first = torch.rand(3, device=XLA)
    X.set_rng_state(state)
    return torch.equal(first, torch.rand(3, device=XLA))


def _seeded(seed: Callable[[int], None]) -> bool:
    seed(7)
    first = torch.rand(3, device=XLA)
    seed(7)
    return torch.equal(first, torch.rand(3, device=XLA))


def _recorded(stream: torch.Stream) -> bool:
    event = stream.record_event()
    stream.wait_event(event)
    event.wait(stream)
    event.synchronize()
    return event.query()


def _overlapped() -> bool:
    """As optimizers and activations that are offloaded: a second stream, events, pinned memory."""
    side = X.Stream()
    side.wait_stream(X.current_stream())
    x = torch.arange(4.0, device=XLA)
    with X.stream(side):
        host = x.to("cpu", non_blocking=True).pin_memory()
    x.record_stream(side)
    X.current_stream().wait_stream(side)
    return host.to(XLA, non_blocking=True).tolist() == [0, 1, 2, 3]


def _index_kept() -> bool:
    with A.device_index(0):
        inside = A.current_device_index()
    with A.device_index(None), X.device(0), X.device_of(torch.ones(1, device=XLA)):
        return inside == A.current_device_index() == X.current_device() == 0


def _is_current_in_its_block() -> bool:
    with torch.Stream("xla") as stream:
        return A.current_stream() == stream and stream.record_event().device.index == 0


def _graph_of(make: Callable[[], torch.xla.Graph]) -> bool:
    x = torch.ones(2, device=XLA)
    graph = make()
    with graph:
        y = x + 1
    graph.replay()
    return y.tolist() == [2, 2]


def _is_the_devices_own(generator: torch.Generator) -> bool:
    """What it is told the device draws by, and the other way round."""
    torch.manual_seed(3)
    states = [generator.get_state().tolist() == X.get_rng_state().tolist()]
    drawn = [torch.rand(3, device=XLA), torch.rand(3, device=XLA)]
    generator.manual_seed(3)
    states += [generator.initial_seed() == X.initial_seed() == 3, generator.get_offset() == 0]
    again = [torch.rand(3, device=XLA, generator=generator), torch.rand(3, device=XLA)]
    generator.set_state(torch.Generator(XLA).manual_seed(3).get_state())
    generator.set_offset(1)
    states.append(torch.equal(torch.rand(3, device=XLA), drawn[1]))
    other = generator.clone_state()
    states.append(
        torch.equal(torch.rand(3, device=XLA, generator=other), torch.rand(3, device=XLA))
    )
    return all(states) and all(torch.equal(*pair) for pair in zip(drawn, again, strict=True))


def _refuses(call: Callable[[], object], what: str) -> bool:
    with pytest.raises(RuntimeError, match=what):
        call()
    return True


ROWS: dict[str, Callable[[], bool]] = {
    # torch.accelerator
    "Graph": lambda: _graph_of(A.Graph) and isinstance(A.Graph(), A.Graph),
    "current_accelerator": lambda: A.current_accelerator(True) == XLA == A.current_accelerator(),
    "current_device_idx": lambda: A.current_device_idx() == 0,
    "current_device_index": lambda: A.current_device_index() == 0,
    "current_stream": lambda: A.current_stream() == A.current_stream("xla:0") == X.Stream(0),
    "device_count": lambda: A.device_count() == X.device_count() >= 1,
    "device_index": _index_kept,
    "empty_cache": lambda: A.empty_cache() is None,
    "empty_host_cache": lambda: A.empty_host_cache() is None,
    "get_device_capability": lambda: torch.float in A.get_device_capability()["supported_dtypes"],
    "get_memory_info": lambda: 0 < A.get_memory_info()[0] <= A.get_memory_info("xla:0")[1],
    "is_available": A.is_available,
    "max_memory_allocated": lambda: A.max_memory_allocated() >= A.memory_allocated(),
    "max_memory_reserved": lambda: A.max_memory_reserved() >= A.memory_reserved(),
    "memory_allocated": lambda: A.memory_allocated() == A.memory_allocated("xla:0"),
    "memory_reserved": lambda: A.memory_reserved() == X.memory_reserved(),
    "memory_stats": lambda: "allocated_bytes.all.peak" in A.memory_stats(),
    "reset_accumulated_memory_stats": lambda: A.reset_accumulated_memory_stats() is None,
    "reset_peak_memory_stats": lambda: A.reset_peak_memory_stats() is None,
    "set_device_idx": lambda: A.set_device_idx(0) is None,
    "set_device_index": lambda: A.set_device_index("xla:0") is None,
    "set_stream": lambda: A.set_stream(torch.Stream(XLA)) is None,
    "synchronize": lambda: A.synchronize() is None and A.synchronize("xla:0") is None,
    # torch.get_device_module(), torch.xla, getattr(torch, device.type)
    "xla.__name__": lambda: torch.get_device_module().__name__.split(".")[-1] == XLA.type,
    "xla.Event": lambda: _recorded(X.current_stream()),
    "xla.Graph": lambda: _graph_of(X.Graph),
    "xla.Stream": lambda: X.Stream(device=XLA, priority=-1) == X.current_stream(),
    "xla.StreamContext": lambda: isinstance(X.stream(None), X.StreamContext),
    "xla.current_device": lambda: X.current_device() == 0,
    "xla.current_stream": lambda: X.current_stream(0) == X.default_stream("xla:0"),
    "xla.default_generators": lambda: _is_the_devices_own(X.default_generators[0]),
    "xla.device": lambda: isinstance(X.device(XLA), X.device),
    "xla.device_count": lambda: X.device_count() >= 1,
    "xla.empty_cache": lambda: X.empty_cache() is None,
    "xla.get_amp_supported_dtype": lambda: torch.bfloat16 in X.get_amp_supported_dtype(),
    "xla.get_device_capability": lambda: _refuses(X.get_device_capability, "xla:0, cpu, has none"),
    "xla.get_device_name": lambda: bool(X.get_device_name(torch.device("xla:0"))),
    "xla.get_device_properties": lambda: X.get_device_properties(XLA).total_memory > 1 << 20,
    "xla.get_rng_state": _restores_randomness,
    "xla.get_rng_state_all": lambda: len(X.get_rng_state_all()) == X.device_count(),
    "xla.graph": lambda: not X.is_current_stream_capturing(),
    "xla.graph_pool_handle": lambda: X.graph_pool_handle() != X.graph_pool_handle(),
    "xla.init": lambda: X.init() is None and X.is_initialized(),
    "xla.is_available": X.is_available,
    "xla.is_bf16_supported": X.is_bf16_supported,
    "xla.manual_seed": lambda: _seeded(X.manual_seed),
    "xla.manual_seed_all": lambda: _seeded(X.manual_seed_all),
    "xla.mem_get_info": lambda: X.mem_get_info(0)[1] == A.get_memory_info()[1],
    "xla.memory._record_memory_history": lambda: X.memory._record_memory_history(None) is None,
    "xla.memory._snapshot": lambda: "segments" in X.memory._snapshot(),
    "xla.memory_summary": lambda: f"{X.max_memory_allocated():,}" in X.memory_summary(XLA, True),
    "xla.reset_accumulated_memory_stats": lambda: X.reset_accumulated_memory_stats(0) is None,
    "xla.set_device": lambda: X.set_device(XLA) is None,
    "xla.stream": _overlapped,
    "xla.synchronize": lambda: X.synchronize() is None and X.synchronize(XLA) is None,
    # of torch, with a device
    "Event": lambda: _recorded(torch.Stream(device="xla")) and torch.Event("xla").query(),
    "Generator": lambda: _seeded(torch.Generator(XLA).manual_seed) or True,
    "Stream": lambda: torch.Stream("xla:0") == torch.Stream("xla") == X.current_stream(),
    "Stream of a block": _is_current_in_its_block,
    "random.fork_rng": lambda: torch.random.fork_rng(device_type="xla") is not None,
}


@pytest.fixture(autouse=True)
def in_use(device):
    torch.ones(1, device=device).item()


@pytest.mark.parametrize("row", ROWS)
def test_call(row):
    assert ROWS[row]()


def test_the_table_has_all_of_torch_accelerator():
    assert set(A.__all__) <= set(ROWS)


def test_the_capability_of_a_gpu(monkeypatch):
    attributes = [(0, {"compute_capability": "9.0"})]
    monkeypatch.setattr(torch.xla._XLAC, "_xla_device_attributes", lambda: attributes)
    assert X.get_device_capability("xla:0") == (9, 0)


def test_a_forked_child_has_no_devices():
    def answer(pipe):
        pipe.write(f"{A.device_count()} {X.device_count()} {A.is_available()}".encode())

    pid, answers, _ = fork_child(answer)
    os.waitpid(pid, 0)
    with open(answers, "rb") as pipe:
        assert pipe.read() == b"0 0 False"


# ------------------------------------------------------------------ graphs


class TestGraph:
    def test_capture_runs_nothing(self, device):
        x = torch.arange(4.0, device=device)
        total, weight = torch.zeros(4, device=device), torch.ones(4, device=device)
        state = X.get_rng_state()
        with A.Graph() as graph:
            y = x * 2 + weight
            total += y
            made = torch.zeros(4, device=device)
            made[1:] += total[:3]
            drawn = torch.rand(4, device=device)
        assert torch.equal(state, X.get_rng_state())
        assert total.tolist() == y.tolist() == made.tolist() == [0] * 4
        graph.replay()
        first = drawn.tolist()
        assert y.tolist() == total.tolist() == [1, 3, 5, 7] and made.tolist() == [0, 1, 3, 5]
        x.fill_(1)
        weight.mul_(3)
        graph.replay()
        assert total.tolist() == [6, 8, 10, 12] and made.tolist() == [0, 6, 8, 10]
        assert drawn.tolist() != first and x.tolist() == [1] * 4

    def test_training_step(self, device):
        model = nn.Linear(4, 2)
        ours = copy.deepcopy(model).to(device)
        static = torch.zeros(3, 4, device=device)

        def step(model, optimizer, x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        first = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        second = torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
        step(model, first, rand(3, 4))
        step(ours, second, rand(3, 4).to(device))
        graph = X.Graph()
        with X.graph(graph, pool=X.graph_pool_handle(), stream=X.Stream()):
            assert X.is_current_stream_capturing()
            loss = step(ours, second, static)
        for seed in range(3):
            x = rand(3, 4, seed=seed)
            static.copy_(x)
            graph.replay()
            torch.testing.assert_close(loss.cpu(), step(model, first, x))
            torch.testing.assert_close(ours.weight.cpu(), model.weight)
            torch.testing.assert_close(ours.weight.grad.cpu(), model.weight.grad)

    def test_graphed_callables(self, device):
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
        plain = copy.deepcopy(model)
        sample = torch.zeros(3, 4, device=device, requires_grad=True)
        graphed = X.make_graphed_callables(model, (sample,))
        results = []
        for seed in range(3):  # Gradients of parameters add up.
            x = rand(3, 4, seed=seed)
            found, expected = (x.to(device).requires_grad_() for _ in range(2))
            results.append((graphed(found), plain(expected)))
            for result in results[-1]:
                result.square().sum().backward()
            torch.testing.assert_close(found.grad, expected.grad)
            for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, other.grad)
        for found, expected in results:
            torch.testing.assert_close(found, expected)

    def test_other_memory_is_not_kept(self, device):
        x, other = torch.ones(2, device=device), torch.ones(1 << 16, device=device) + 1
        X.synchronize()
        graph = X.Graph()
        with graph:
            y = x + 1
        torch.ones(1, device=device).item()
        before = X.memory_allocated()
        del other
        gc.collect()
        assert before - X.memory_allocated() >= 4 << 16
        graph.replay()
        assert y.tolist() == [2, 2]

    def test_tensors_that_wrap_others_are_no_memory(self):
        class Wrapper(torch.Tensor):
            @staticmethod
            def __new__(cls, inner):
                return torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=inner.device)

            __torch_dispatch__ = None

        x = torch.ones(2, device="xla")
        wrapper = Wrapper(x)
        graph = torch.accelerator.Graph()
        with graph:
            y = x * 2
        x.fill_(3.0)
        graph.replay()
        assert y.tolist() == [6, 6] and wrapper.device == x.device

    def test_errors(self, device, tmp_path):
        graph = A.Graph()
        with pytest.raises(RuntimeError, match="captured nothing"):
            graph.replay()
        with pytest.raises(RuntimeError, match="capture_begin"):
            graph.capture_end()
        with pytest.raises(RuntimeError, match="enable_debug_mode"):
            graph.debug_dump(str(tmp_path / "text"))
        x = torch.ones(2, device=device)
        with pytest.raises(RuntimeError, match=r"Graph.* traces"), graph:
            x += 1
            x.tolist()
        assert x.tolist() == [1, 1]
        graph.enable_debug_mode()
        with graph:
            with pytest.raises(RuntimeError, match="no other capture"):
                A.Graph().capture_begin()
            y = x * 3
        graph.debug_dump(str(tmp_path / "text"))
        assert "multiply" in (tmp_path / "text").read_text()
        with pytest.raises(RuntimeError, match="reset"):
            graph.capture_begin()
        graph.replay()
        assert y.tolist() == [3, 3]


def test_pinned_memory(device):
    x = rand(3, 4).t()
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned.pin_memory() is pinned and not x.is_pinned()
    assert pinned[1:].is_pinned() and not (pinned + 1).is_pinned()
    assert pinned.stride() == x.stride() and torch.equal(pinned, x)
    assert pinned.data_ptr() != x.data_ptr() and torch.ones(0).pin_memory().numel() == 0
    torch.testing.assert_close(pinned.to(device, non_blocking=True).cpu(), x)
    assert rand(2).requires_grad_().pin_memory().is_pinned()


def test_pinning_is_as_before_for_a_program_that_does_not_ask_for_xla():
    code = """
    import torch, torch_xla
    try:
        torch.ones(2).pin_memory()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
    """
    expected = "Cannot access accelerator device when none is available."
    assert torch.cuda.is_available() or python_output(code, PJRT_DEVICE=None) == expected
