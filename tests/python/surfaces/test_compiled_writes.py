"""torch.compile(backend="openxla") of functions that write to a part of a tensor."""

import pytest
import torch
import torch.nn.functional as F
from testing.ops import rand
from torch import nn

import torch_xla.debug.metrics as met


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def checked(device, f, *args, grad=True, dynamic=False):
    """Compares two calls of ``f``, compiled on the device, with those of the CPU.

    Compared are the result, the arguments afterwards and the gradients. Returns the operators that
    ran on the CPU in the second call.
    """

    def call(f, on):
        given = [arg.to(on) if isinstance(arg, torch.Tensor) else arg for arg in args]
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
        floats = [x for x in given if isinstance(x, torch.Tensor) and x.is_floating_point()]
        for x in floats:
            x.requires_grad_(grad)
        result = f(*given)
        if grad:
            result.square().sum().backward()
        found = [result, *(x for x in given if isinstance(x, torch.Tensor))]
        found += [x.grad for x in floats if x.grad is not None]
        return [x.detach().cpu() for x in found]

    run = torch.compile(f, backend="openxla", dynamic=dynamic)
    expected = call(f, "cpu")
    torch.testing.assert_close(call(run, device), expected, rtol=1e-4, atol=1e-5)
    met.clear_all()
    torch.testing.assert_close(call(run, device), expected, rtol=1e-4, atol=1e-5)
    return met.executed_fallback_ops()


def written(write):
    """Returns the function that makes a tensor of its argument and writes to a part of it."""

    def f(x, *args):
        y = x * 1
        write(y, *args)
        return y

    return f


def row(y):
    y[0] = 0


def columns(y):
    y[:, 1:3] += 1


def row_in_place(y):
    y[0].mul_(2)


def transposed(y):
    y.t()[0].mul_(3)


def steps(y):
    y[::2, 1::2] = y[1:2, ::2] * 2


def view_of_views(y):
    y[1:].view(-1)[2:5].add_(y[0, 1:4])


def diagonal(y):
    y.diagonal().copy_(y[0, :3] + y[1, 0])


def unsqueezed(y):
    y.unsqueeze(1)[:, 0, 1] = 5.0


def flat(y):
    y.view(-1)[3:9:2].zero_()


def narrowed(y):
    y.narrow(1, 0, 2).sub_(y.narrow(1, 2, 2))


def copied(y):
    y[1].copy_(y[2] * 2)


def expanded_value(y):
    y[:, :2] = y[:, 3:]


def last(y):
    y[..., -1].clamp_(-0.5, 0.5)


def by_tensor(y):
    y[torch.tensor([0, 2], device=y.device)] = y[1] * 3


SLICES = [
    *(row, columns, row_in_place, transposed, steps, view_of_views, diagonal, unsqueezed),
    *(flat, narrowed, copied, expanded_value, last, by_tensor),
]


@pytest.mark.parametrize("grad", [False, True])
def test_slices(device, grad):
    for write in SLICES:
        torch._dynamo.reset()
        assert checked(device, written(write), rand(3, 4), grad=grad) == [], write.__name__


def of_zeros(x):
    z = torch.zeros_like(x)
    z[1] = x[0]
    z[2:].add_(x[1] * 2)
    return z


def circular(x):
    return F.pad(x[None], (1, 2), mode="circular")


@pytest.mark.parametrize("f", [of_zeros, circular, lambda x: torch.diff(x, n=0) * 2])
def test_copies_that_pytorch_makes(device, f):
    assert checked(device, f, rand(3, 4)) == []


def of_rows(y, mask, values):
    y[mask] = values


def more(y, mask, values):
    y[mask] += 1


def of_both(y, mask, values):
    y[mask, torch.tensor([True, False, True, False], device=y.device)] = 5.0


def of_elements(y, mask, values):
    y[y > 0] = 0.25


def in_between(y, mask, values):
    y.t()[:, mask] = values.t()


@pytest.mark.parametrize("grad", [False, True])
def test_masks(device, grad):
    mask, values = torch.tensor([True, False, True]), rand(2, 4, seed=1)
    for write in (of_rows, more, of_both, of_elements, in_between):
        torch._dynamo.reset()
        checked(device, written(write), rand(3, 4), mask, values, grad=grad)


def test_operators_that_look_at_values(device):
    """They stand on the CPU between two programs."""
    lengths = torch.tensor([2, 1])

    def reduced(x, lengths):
        return torch.segment_reduce(x * 2, "sum", lengths=lengths, unsafe=True) + 1

    checked(device, reduced, rand(3), lengths)
    checked(device, lambda x: torch.hash_tensor(x * 2).to(torch.float64), rand(3), grad=False)


def test_copy_into_arguments_and_buffers(device):
    def into_itself(a):
        return a.copy_(a + 1)

    def into_cache(cache, a):
        cache[:2].copy_(a)
        return cache * 2

    for f, args in (into_itself, (rand(4),)), (into_cache, (rand(4, 3), rand(2, 3))):
        torch._dynamo.reset()
        assert checked(device, f, *args, grad=False) == []

    def trained(on, compile):
        torch.manual_seed(0)
        norm = nn.InstanceNorm2d(3, affine=True, track_running_stats=True).to(on)
        call, found = compile(norm), []
        for seed in range(3):
            x = rand(2, 3, 4, 4, seed=seed).to(on).requires_grad_()
            call(x).square().sum().backward()
            found.append(x.grad)
        found += [norm.weight.grad, norm.running_mean, norm.running_var, norm.num_batches_tracked]
        return [x.cpu() for x in found]

    run = trained(device, lambda f: torch.compile(f, backend="openxla"))
    torch.testing.assert_close(run, trained("cpu", lambda f: f), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [None, True])
def test_positions_that_change(device, dynamic):
    """The program that dynamo makes with a symbol for the position is called, too."""

    def of_a_new_one(cache, x, p):
        y = cache.clone()
        y[:, p : p + 1] = x
        return y

    def of_an_argument(cache, x, p):
        cache[:, p : p + 1] = x
        cache[:, p] += 1
        return cache[:, : p + 1].sum()

    def of_a_closure(held):
        def f(cache, x, p):
            held[:, p : p + 2] = x
            return held * 2

        return f

    for f in of_a_new_one, of_an_argument, of_a_closure:
        torch._dynamo.reset()
        states = [torch.zeros(2, 8), torch.zeros(2, 8, device=device)]
        calls = [f(state) if f is of_a_closure else f for state in states]
        calls[1] = torch.compile(calls[1], backend="openxla", dynamic=dynamic)
        for p in range(6):
            expected, found = (
                call(state, torch.full((2, 1), 1.0 + p, device=state.device), p)
                for call, state in zip(calls, states, strict=True)
            )
            torch.testing.assert_close(found.cpu(), expected)
        torch.testing.assert_close(states[1].cpu(), states[0])


def test_a_device_by_name(device):
    def f(x):
        y = torch.zeros(4, device="xla") + torch.arange(4, device="xla")
        y[1] = torch.tensor(3.0, device="xla")
        return x + y.to("xla") + torch.rand(4, device="xla") * 0

    assert checked(device, lambda x: x + torch.ones(4, device=x.device), rand(4)) == []
    for dynamic in False, True:
        run = torch.compile(f, backend="openxla", dynamic=dynamic)
        assert run(torch.ones(4, device=device)).tolist() == [1, 4, 3, 4]


def test_placeholders_tell_who_reads_them(device):
    """An operator that reads a tensor while a function is traced is named, with its line."""
    from torch_xla._internal.compile import tracing

    def run(f, match):
        with pytest.raises(RuntimeError, match=match), tracing.trace("test", device) as capture:
            f(capture.placeholder(torch.empty(2, device="meta")))

    here = r"test_compiled_writes\.py:\d+"
    lengths = torch.tensor([1, 1], device=device)
    run(lambda x: torch.segment_reduce(x, "sum", lengths=lengths), "aten::segment_reduce.*" + here)
    run(lambda x: x.nonzero(), here)
    run(lambda x: x[0].item(), r"item\(\).*" + here)
    run(lambda x: x.tolist(), here)
    assert (torch.ones(2, device=device) + 1).tolist() == [2, 2]
