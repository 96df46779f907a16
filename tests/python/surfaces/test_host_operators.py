"""Operators of the user that have a CPU kernel alone, as calls of the host by programs."""

import threading

import numpy as np
import pytest
import torch
from testing.processes import python_output

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.experimental.scan import scan

_LOG = []
_LIBRARY = torch.library.Library("hosttest", "DEF")


def _define(schema, kernel, fake):
    name = _LIBRARY.define(schema)
    _LIBRARY.impl(name, kernel, "CPU")
    if fake is not None:
        torch.library.register_fake(f"hosttest::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.hosttest, name)


def _sine(x, scale):
    _LOG.append(threading.current_thread())
    return torch.from_numpy(np.sin(x.numpy()) * np.asarray(scale).astype(x.numpy().dtype))


SINE = _define("sine(Tensor x, float scale) -> Tensor", _sine, lambda x, s: torch.empty_like(x))
SPLIT = _define(
    "split(Tensor x, Tensor[] y, int[] sizes, *, str mode, ScalarType? dtype=None) "
    "-> (Tensor, Tensor)",
    lambda x, y, sizes, *, mode, dtype=None: (
        (x.sum() * len(mode)).reshape(sizes[:1] * 0),
        torch.cat([x, *y]).to(dtype or x.dtype),
    ),
    lambda x, y, sizes, *, mode, dtype=None: (
        x.new_empty([]),
        x.new_empty([len(x) + sum(map(len, y)), *x.shape[1:]], dtype=dtype or x.dtype),
    ),
)
WRONG = _define("wrong(Tensor x) -> Tensor", lambda x: x[1:].clone(), torch.empty_like)
FAILS = _define("fails(Tensor x) -> Tensor", lambda x: x * (1 // int(x[0])), torch.empty_like)
NO_FAKE = _define("no_fake(Tensor x) -> Tensor", lambda x: x * 2, None)


def _no_values(x):
    return x.new_empty([torch.library.get_ctx().new_dynamic_size()])


VALUES = _define("values(Tensor x) -> Tensor", lambda x: x[x > 1].clone(), _no_values)


def _square_in_place(x):
    x.mul_(x)  # Its operand is its own.
    return x.clone()


SQUARE = _define("square(Tensor x) -> Tensor", _square_in_place, torch.empty_like)


@torch.library.custom_op("hosttest::cube", mutates_args=(), device_types="cpu")
def _cube(x: torch.Tensor) -> torch.Tensor:
    return x**3


_cube.register_fake(torch.empty_like)
_cube.register_autograd(
    lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def _cuts():
    names = [name for name in met.counter_names() if name.startswith("hosttest::")]
    return sum(met.counter_value(name) for name in names)


def test_it_is_a_part_of_the_program():
    x = torch.arange(6.0).reshape(2, 3)
    on = x.to("xla")
    torch_xla.sync(wait=True)
    met.clear_all()
    _LOG.clear()
    y = SINE(on + 1, 2.0).t() * 3
    z = SINE(y, 0.5).sum()
    assert not _LOG
    torch.testing.assert_close(z.cpu(), SINE(SINE(x + 1, 2.0).t() * 3, 0.5).sum())
    assert threading.main_thread() not in _LOG[:2]
    assert _cuts() == 0 and met.metric_data("CompileTime")[0] == 1


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64])
def test_arguments_and_results_of_many_kinds(dtype):
    x = torch.tensor([[1, 0], [1, 1]]).to(dtype)
    if dtype != torch.bool:
        on = SPLIT(x.to("xla").t(), [x.to("xla"), x[:0].to("xla")], [2, 3], mode="abc")
        for got, expected in zip(on, SPLIT(x.t(), [x, x[:0]], [2, 3], mode="abc"), strict=True):
            assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected)
    on = SPLIT(x.float().to("xla"), [x.float().to("xla")], [1], mode="a", dtype=dtype)[1]
    assert torch.equal(on.cpu(), torch.cat([x, x]))
    ones = torch.ones(3, device="xla")
    assert SQUARE(ones * 3).tolist() == [9.0] * 3 and (ones + 0).tolist() == [1.0] * 3
    assert _cuts() == 0


def test_gradients_loops_and_compiled_functions():
    met.clear_all()
    x = torch.tensor([1.0, 2.0, 3.0], device="xla", requires_grad=True)
    _cube(x).sum().backward()
    assert x.grad.tolist() == [3.0, 12.0, 27.0]

    def body(carry, element):
        carry = _cube(carry + element)
        return carry, carry

    last, _ = scan(body, torch.zeros((), device="xla"), torch.ones(3, device="xla"))
    assert last.item() == 729.0

    def step(x):
        return SINE(x, 2.0) + 1

    for run in (
        torch_xla.compile(step),
        torch_xla.compile(step, full_graph=True),
        torch_xla.compile(step, replay=True),
        torch.compile(step, backend="openxla", fullgraph=True),
    ):
        for i in range(6):
            given = torch.full((2,), float(i))
            torch.testing.assert_close(run(given.to("xla")).cpu(), step(given))
    assert _cuts() == 0


def test_errors_are_those_of_the_program():
    bad = FAILS(torch.zeros(2, device="xla"))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        bad.cpu()
    bad = WRONG(torch.ones(3, device="xla"))
    with pytest.raises(RuntimeError, match=r"result 0 is torch.float32 of shape \[2\], but its"):
        bad.cpu()
    assert (torch.ones(2, device="xla") + 1).tolist() == [2.0, 2.0]
    with pytest.raises(NotImplementedError, match="has a CPU kernel alone"):
        from torch_xla.stablehlo import exported_program_to_stablehlo

        class Model(torch.nn.Module):
            def forward(self, x):
                return SINE(x, 1.0)

        exported = torch.export.export(Model(), (torch.ones(2),))
        exported_program_to_stablehlo(exported)


def test_what_cannot_be_a_part_runs_on_the_cpu():
    x = torch.tensor([1.0, 2.0, 3.0], device="xla")
    met.clear_all()
    assert NO_FAKE(x).tolist() == [2.0, 4.0, 6.0]
    assert VALUES(x).tolist() == [2.0, 3.0]
    assert _cuts() == 2


def test_threads_and_the_end_of_the_process():
    out = python_output(
        """
        import copy, faulthandler, io, threading, time, torch, torch_xla
        import torch_xla.core.xla_model as xm
        faulthandler.dump_traceback_later(60, exit=True)
        lib = torch.library.Library("t", "DEF")
        lib.define("twice(Tensor x) -> Tensor")
        def twice(x):
            time.sleep(0.02)
            return torch.from_numpy(x.numpy() * 2)
        lib.impl("twice", twice, "CPU")
        torch.library.register_fake("t::twice", torch.empty_like, lib=lib)
        def work(n):
            x = torch.full((4,), float(n), device="xla")
            for _ in range(8):
                x = torch.ops.t.twice(x) * 0.5
                x.tolist(), x.sum().item()
            torch_xla.sync(wait=True)
            print(n, x[0].item(), flush=True)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for t in threads: t.start()
        for t in threads: t.join()
        def pending():
            y = torch.ops.t.twice(torch.ones(3, device="xla"))
            torch_xla.sync()
            return y
        # PyTorch holds the interpreter in some of these while it waits.
        torch.save(pending(), io.BytesIO())
        xm.save({"y": pending()}, io.BytesIO())
        torch.from_dlpack(pending())
        copy.deepcopy(pending()).cpu().numpy()
        torch.equal(pending(), pending())
        str(torch_xla.debug.memory_report())
        many = [pending() for _ in range(40)]
        pending()
        """
    )
    assert sorted(out.splitlines()) == ["0 0.0", "1 1.0", "2 2.0"]
