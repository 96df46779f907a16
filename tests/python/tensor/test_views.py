"""Random programs of views and in-place ops, run on xla and on the CPU and compared.

To the user an xla tensor is always contiguous, so on xla `reshape` and `contiguous` of a
transposed view share memory where the CPU copies. Such results are only read here.
"""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import torch_xla

# Shrinking recompiles a graph per attempt: off in the suite; turn it on to study a failure.
RANDOM = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

SHAPES = [(6,), (3, 4), (2, 3, 4), (4, 4), (1, 5), (2, 1, 3, 2)]
DTYPES = [torch.float32, torch.int32, torch.complex64, torch.float64]


class Pair:
    """A tensor on both devices. `writable`: xla and CPU share memory with the same others."""

    def __init__(self, cpu, xla, writable=True):
        self.cpu, self.xla, self.writable = cpu, xla, writable


def overlaps(tensor):
    """Whether elements of a CPU tensor share memory (then the order of writes matters)."""
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return places.unique().numel() != places.numel()


def draw_view(draw, t):
    """A random view of the CPU tensor `t`: its name and the function that makes it."""
    rank = t.dim()
    # sampled_from prefers what comes first.
    names = []
    if rank >= 2:
        names += ["transpose", "diagonal", "permute"]
    if t.is_complex():
        names += ["view_as_real", "real"]
    elif rank > 0 and t.is_contiguous() and t.stride(-1) == 1:
        names.append("view dtype")
    if rank > 0:
        names += ["slice", "narrow", "select", "unfold", "split", "view", "chunk", "movedim"]
        names += ["reshape", "squeeze dim", "expand"]
        if t.shape[0] > 0:
            names.append("unbind")
    if rank == 2:
        names.append("t")
    names += ["as_strided", "flatten", "squeeze", "unsqueeze", "alias", "expand_as"]
    name = draw(st.sampled_from(names))
    dim = draw(st.integers(-rank, rank - 1)) if rank else 0
    size = t.shape[dim] if rank else 1

    def among(low, high):
        return draw(st.integers(low, max(low, high)))

    if name == "unsqueeze":
        at = among(-rank - 1, rank)
        return name, lambda x: x.unsqueeze(at)
    if name == "squeeze":
        return name, lambda x: x.squeeze()
    if name == "squeeze dim":
        return name, lambda x: x.squeeze(dim)
    if name == "alias":
        return name, lambda x: x.detach()
    if name == "expand_as":
        return name, lambda x: x.expand(2, *x.shape)
    if name == "expand":
        sizes = [3 if s == 1 else -1 for s in t.shape]
        return name, lambda x: x.expand(sizes)
    if name == "flatten":
        return name, lambda x: x.flatten()
    if name == "as_strided":
        if t.numel() < 2 or not t.is_contiguous():
            return "alias", lambda x: x.view(x.shape)
        columns = among(1, t.numel() // 2)
        rows = among(1, t.numel() // columns)
        step = among(1, (t.numel() - columns) // max(rows - 1, 1))
        return name, lambda x: x.as_strided((rows, columns), (step, 1))
    if name == "narrow":
        start = among(0, size)
        length = among(0, size - start)
        return name, lambda x: x.narrow(dim, start, length)
    if name == "slice":
        start, step = among(-size - 1, size), among(1, 3)
        stop = among(-size - 1, size + 1)
        index = [slice(None)] * rank
        index[dim] = slice(start, stop, step)
        return name, lambda x: x[tuple(index)]
    if name == "select":
        if size == 0:
            return "alias", lambda x: x.view(x.shape)
        at = among(-size, size - 1)
        return name, lambda x: x.select(dim, at)
    if name == "movedim":
        to = among(0, rank - 1)
        return name, lambda x: x.movedim(dim, to)
    if name == "unfold":
        window, step = among(1, max(size, 1)), among(1, 3)
        if window > size:
            return "alias", lambda x: x.view(x.shape)
        return name, lambda x: x.unfold(dim, window, step)
    if name == "split":
        parts = among(1, max(size, 1))
        which = among(0, max((size + parts - 1) // parts - 1, 0))
        return name, lambda x: x.split(parts, dim)[which]
    if name == "chunk":
        parts = among(1, 3)
        which = among(0, len(t.chunk(parts, dim)) - 1)
        return name, lambda x: x.chunk(parts, dim)[which]
    if name == "unbind":
        which = among(0, t.shape[0] - 1)
        return name, lambda x: x.unbind(0)[which]
    if name in ("view", "reshape"):
        count = t.numel()
        divisors = [d for d in range(1, count + 1) if count % d == 0] or [1]
        first = draw(st.sampled_from(divisors))
        sizes = (first, count // first)
        return name, lambda x: x.reshape(sizes)
    if name == "t":
        return name, lambda x: x.t()
    if name == "transpose":
        other = among(0, rank - 1)
        return name, lambda x: x.transpose(dim, other)
    if name == "permute":
        order = draw(st.permutations(range(rank)))
        return name, lambda x: x.permute(order)
    if name == "diagonal":
        one, two = draw(st.permutations(range(rank)))[:2]
        offset = among(-2, 2)
        return name, lambda x: x.diagonal(offset, one, two)
    if name == "view_as_real":
        return name, torch.view_as_real
    if name == "real":
        part = draw(st.sampled_from(["real", "imag"]))
        return name, lambda x: getattr(x, part)
    assert name == "view dtype"
    size = t.element_size()
    choices = [torch.int16, torch.uint8] if size >= 4 else [torch.int8]
    if t.numel() == 0:
        return "alias", lambda x: x.view(x.shape)
    dtype = draw(st.sampled_from(choices))
    return name, lambda x: x.view(dtype)


def draw_write(draw, t):
    """A random in-place op for a CPU tensor like `t`."""
    names = ["add_", "mul_", "copy_", "fill_", "zero_", "setitem", "out", "itself", "mask"]
    name = draw(st.sampled_from(names))
    number = draw(st.integers(-3, 3))
    values = (torch.arange(t.numel()) % 5 - 1).view(t.shape).to(t.dtype)
    if name == "add_":
        return name, lambda x: x.add_(number)
    if name == "mul_":
        return name, lambda x: x.mul_(values.to(x.device))
    if name == "copy_":
        return name, lambda x: x.copy_(values.to(x.device) + number)
    if name == "fill_":
        return name, lambda x: x.fill_(number)
    if name == "zero_":
        return name, lambda x: x.zero_()
    if name == "itself":
        return name, lambda x: x.add_(x)
    if name == "mask":
        return name, lambda x: x.__setitem__((values == 1).to(x.device), number)
    if name == "setitem":
        if t.dim() == 0 or t.shape[0] == 0:
            return name, lambda x: x.__setitem__(..., number)
        at = draw(st.integers(0, t.shape[0] - 1))
        return name, lambda x: x.__setitem__(at, number)
    assert name == "out"
    return name, lambda x: torch.add(values.to(x.device), number, out=x)


def check(pairs, log):
    # One graph for all of them.
    torch_xla.sync()
    for i, pair in enumerate(pairs):
        found, expected = pair.xla.cpu(), pair.cpu
        assert found.dtype == expected.dtype and found.shape == expected.shape, (i, log)
        same = torch.equal(found.nan_to_num(), expected.nan_to_num())
        assert same, f"tensor {i} after {log}\nfound {found}\nexpected {expected}"


def run_program(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from(SHAPES))
    base = torch.arange(1, torch.Size(shape).numel() + 1).view(shape).to(dtype)
    pairs = [Pair(base.clone(), base.to("xla"))]
    log = [f"{dtype} {shape}"]
    for _ in range(draw(st.integers(3, 9))):
        source = draw(st.sampled_from(range(len(pairs))))
        pair = pairs[source]
        kind = draw(st.sampled_from(["view", "view", "write", "write", "sync"]))
        if kind == "view":
            name, view = draw_view(draw, pair.cpu)
            log.append(f"{len(pairs)} = {name}({source})")
            cpu = view(pair.cpu)
            copied = cpu.numel() > 0 and (
                cpu.untyped_storage().data_ptr() != pair.cpu.untyped_storage().data_ptr()
            )
            pairs.append(Pair(cpu, view(pair.xla), pair.writable and not copied))
            if copied:  # a copy on the CPU, an alias on xla: it cannot be compared any longer
                check(pairs, log)
                pairs.pop()
                log.append("dropped")
        elif kind == "write" and pair.writable and not overlaps(pair.cpu):
            name, write = draw_write(draw, pair.cpu)
            log.append(f"{name}({source})")
            write(pair.cpu)
            write(pair.xla)
        elif kind == "sync":
            log.append("sync")
            torch_xla.sync()
    check(pairs, log)


@RANDOM
@given(st.data())
def test_random_views_and_writes(data):
    run_program(data.draw)


# ---------------------------------------------------------------- what must hold in particular

BASE = torch.arange(24.0).view(4, 6)

WRITES = {
    "narrow": lambda x: x.narrow(1, 2, 3).add_(100),
    "step": lambda x: x[::2, 1::2].mul_(-1),
    "select": lambda x: x.select(1, -1).fill_(5),
    "transpose": lambda x: x.t()[2].copy_(torch.arange(4.0, device=x.device)),
    "diagonal": lambda x: x.diagonal(1).zero_(),
    "view of a transpose": lambda x: x.t().view(8, 3)[1].add_(100),
    "unfold apart": lambda x: x.unfold(1, 2, 2)[:, 1].add_(100),
    "as_strided": lambda x: x.as_strided((3, 2), (7, 2), 3).mul_(10),
    "as_strided of a view": lambda x: x[1:].as_strided((2, 2), (6, 1)).mul_(10),
    "chain": lambda x: x[1:].t()[1:5].view(2, 2, 3)[:, 0].add_(100),
    "bits": lambda x: x[1].view(torch.int32)[2:].zero_(),
    "bits of a column": lambda x: x[:, 1:2].view(torch.int32)[2:].zero_(),
    "expanded fill": lambda x: x[:1].expand(3, 6).fill_(2),
    "empty": lambda x: x[:, 3:3].add_(1),
    "squeeze_": lambda x: x[:1].squeeze_().add_(100),
    "unsqueeze_": lambda x: x[1].unsqueeze_(0)[0].add_(100),
    "t_": lambda x: x.detach().t_()[0].add_(100),
    "transpose_": lambda x: x.detach().transpose_(0, 1)[1].add_(100),
    "as_strided_": lambda x: x.detach().as_strided_((2, 2), (6, 1), 1).add_(100),
    "out": lambda x: torch.add(x[0], 1000, out=x[2]),
    "set_": lambda x: torch.empty(0, device=x.device).set_(x[1:3]).mul_(3),
    "overlapping source": lambda x: x[1:].copy_(x[:-1].clone()),
    "swap": lambda x: (lambda a, b: (x[0].copy_(b), x[3].copy_(a)))(x[0].clone(), x[3].clone()),
}


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_writes_reach_the_base_and_other_views(name, synced):
    def run(device):
        x = BASE.to(device, copy=True)
        others = [x[1:3], x.detach(), x[:, 1], x.t(), x.diagonal()]
        if synced and device == "xla":
            torch_xla.sync()
        if name == "view of a transpose" and device == "cpu":
            # The CPU cannot view it; the same elements by their places.
            places = torch.arange(24).view(4, 6).t().reshape(8, 3)[1]
            x.view(-1)[places] += 100
        elif name == "chain" and device == "cpu":
            places = torch.arange(24).view(4, 6)[1:].t()[1:5].reshape(2, 2, 3)[:, 0]
            x.view(-1)[places] += 100
        else:
            WRITES[name](x)
        return [x, *others]

    for found, expected in zip(run("xla"), run("cpu"), strict=True):
        assert found.tolist() == expected.tolist()


PARTS = {
    "whole": lambda x: x,
    "transpose": lambda x: x.t(),
    "rows": lambda x: x[1:3],
    "columns": lambda x: x[:, 2:5],
    "column": lambda x: x[:, 1],
    "step": lambda x: x[::2],
    "expanded": lambda x: x[:, :1].expand(4, 6),
    "expanded before": lambda x: x.expand(2, 4, 6),
    "permuted": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "blocks": lambda x: x.view(2, 2, 2, 3).transpose(1, 2),
    "diagonal": lambda x: x.diagonal(1),
    "no dimension": lambda x: x[1, 2],
    "empty": lambda x: x.t()[:, :0],
}

RESHAPES = {
    "reshape to a row": lambda x: x.reshape(-1),
    "reshape": lambda x: x.reshape(*x.shape[:-2], -1),
    "split": lambda x: x.reshape(2, -1),
    "the same": lambda x: x.reshape(x.shape),
    "reshape_as": lambda x: x.reshape_as(torch.empty(x.numel())),
    "flatten": lambda x: x.flatten(),
    "flatten the last": lambda x: x.flatten(-2),
    "flatten one": lambda x: x.flatten(0, 0),
    "ravel": lambda x: x.ravel(),
    "module": lambda x: torch.nn.Flatten(0)(x),
}


@pytest.mark.parametrize("name", RESHAPES)
@pytest.mark.parametrize("part", PARTS)
def test_reshapes_share_memory_where_the_cpu_does(name, part):
    def run(device):
        x = BASE.to(device, copy=True)
        weight = BASE.to(device, copy=True).requires_grad_()
        seen = PARTS[part](x)
        try:
            shaped = RESHAPES[name](seen)
        except (RuntimeError, IndexError) as error:
            return type(error), str(error)
        total = (RESHAPES[name](PARTS[part](weight * 2)) ** 2).sum()
        found = [shaped.tolist(), *torch.autograd.grad(total, weight)[0].tolist()]
        found += [shaped is seen, shaped._is_view()]
        if not shaped._is_view() or not part.startswith("expanded"):  # else the CPU refuses it
            found += [shaped.add_(100).tolist(), x.tolist()]
        return found

    assert run("xla") == run("cpu")


def test_write_to_expanded_memory_raises():
    x = torch.zeros(1, 3, device="xla")
    for write in (
        lambda v: v.add_(1),
        lambda v: v.copy_(torch.ones(2, 3, device="xla")),
        lambda v: torch.add(v, 1, out=v),
    ):
        with pytest.raises(RuntimeError, match="single memory location"):
            write(x.expand(2, 3))
    assert x.tolist() == [[0, 0, 0]]


def test_complex_parts():
    x = torch.tensor([1 + 2j, 3 - 4j], device="xla")
    x.real.mul_(10)
    x.imag[0] = 7
    torch.view_as_real(x)[1, 1] = -1
    assert x.tolist() == [10 + 7j, 30 - 1j]
    conj = x.conj()
    conj[0] = 1 + 1j  # writes the conjugate into x
    x[1] = 2j
    assert conj.tolist() == [1 + 1j, -2j] and x.tolist() == [1 - 1j, 2j]
    assert conj[1:].imag.tolist() == [-2]


def test_view_dtype():
    x = torch.tensor([1.0, -2.0], device="xla")
    bits = x.view(torch.int32)
    assert bits.tolist() == [0x3F800000, -0x40000000]
    assert x.view(torch.uint8).shape == (8,)
    bits[0] = 0x40000000
    assert x.tolist() == [2, -2]
    assert x.view(torch.uint8).view(torch.float32).tolist() == [2, -2]
    wide = x.view(torch.float64)
    x.zero_()
    assert wide.tolist() == [0]
    halves = x.view(torch.int16)  # Read of a storage that bytes were written to.
    x.view(torch.uint8)[:2] = 1
    kept = x.clone(), halves.clone()
    assert kept[1].tolist() == [257, 0, 0, 0] and kept[0].view(torch.int32)[0] == 257


def test_views_of_a_resized_storage():
    x = torch.arange(6, dtype=torch.int32, device="xla")
    bits, tail, alias = x.view(torch.int16), x[4:], x.detach()
    x.resize_(2, 4)
    x[0].fill_(9)
    assert tail.tolist() == [4, 5] and alias.tolist() == [9, 9, 9, 9, 4, 5]
    assert bits.tolist() == [9, 0] * 4 + [4, 0, 5, 0]
    alias.zero_()
    assert x.view(-1)[:6].tolist() == [0] * 6


def test_view_identity_of_autograd():
    x = torch.zeros(2, 3, device="xla")
    for view in (x[0], x.t(), x.view(-1), x.unfold(1, 2, 1), x.detach()[0]):
        assert view._is_view()
    assert x.t()._base is x and x[0][1:]._base is x


def test_many_views_of_one_base():
    x = torch.zeros(40, device="xla")
    views = [x[i : i + 3] for i in range(0, 38)]
    for i, view in enumerate(views):
        view.add_(i)
        if i % 10 == 0:
            torch_xla.sync()
    expected = torch.zeros(40)
    for i in range(38):
        expected[i : i + 3] += i
    assert torch.equal(x.cpu(), expected)
    assert torch.equal(torch.stack(views).cpu(), expected.unfold(0, 3, 1))


def test_a_view_of_many_steps_is_as_short_as_what_it_shows(device):
    """A queue that takes its first element off, a matrix that is turned again and again."""
    chains = {
        "slices": (torch.arange(900.0), lambda x: x[1:]),
        "turns": (torch.arange(12.0).view(3, 4), lambda x: x.t()),
        "both": (torch.arange(1800.0).view(900, 2), lambda x: x.t()[:, 1:].t()),
        "shapes": (torch.arange(16.0).view(4, 4), lambda x: x.view(2, 8).view(4, 4)),
        "dimensions of one": (torch.arange(4.0), lambda x: x[None].squeeze(0)),
    }
    for name, (cpu, step) in chains.items():
        lines = []
        for count in (20, 200):
            x, y = cpu.to(device), cpu
            torch_xla.sync()
            for _ in range(count):
                x, y = step(x), step(y)
            lines.append(len(torch_xla._XLAC._get_xla_tensors_text([x]).splitlines()))
            assert torch.equal(x.cpu(), y), (name, count)
            x.add_(1)
            assert torch.equal(x.cpu(), y + 1), (name, count)
        assert lines[0] == lines[1], (name, lines)


def test_reading_a_view_does_not_change_the_base():
    x = torch.arange(6.0, device="xla").view(2, 3)
    y = x + 1
    assert y.t()[1].tolist() == [2, 5]
    y[0].zero_()
    assert y.t()[1].tolist() == [0, 5] and x.tolist() == [[0, 1, 2], [3, 4, 5]]


STRIDED = {
    "offset": lambda x: x[1:].as_strided((2, 2), (2, 1)),
    "offset, given": lambda x: x[1:].as_strided((2, 2), (2, 1), 5),
    "its own strides": lambda x: x.t().as_strided((4, 3), x.t().stride()),
}


@pytest.mark.parametrize("name", STRIDED)
def test_as_strided_gradient(name):
    def gradient(device):
        x = torch.arange(12.0).reshape(3, 4).to(device).requires_grad_()
        y = STRIDED[name](x)
        y.backward(torch.arange(float(y.numel()), device=device).view_as(y))
        return x.grad.cpu()

    torch.testing.assert_close(gradient("xla"), gradient("cpu"))


CUTS = {
    "split": lambda x: x.split([1, 2], 0)[1],
    "split along the last": lambda x: x.split([1, 2, 1], 1)[1],
    "tensor_split": lambda x: x.tensor_split([1], 0)[1],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "unflatten": lambda x: x.unflatten(1, (2, 2))[:, 1],
    "hsplit": lambda x: x.hsplit([1])[1],
    "as_strided": lambda x: x.as_strided((2, 3), x.stride(), x.storage_offset()),
    "unfold": lambda x: x.unfold(1, 2, 2)[:, 1],
}
SOURCES = {
    "whole": lambda x: x[:3],
    "rows": lambda x: x[12:],
    "columns": lambda x: x.view(10, 6)[2:5, 1:5],
    "steps": lambda x: x.view(6, 10)[::2, ::3],
    "transpose": lambda x: x.view(4, 15)[:, 3:6].t(),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("cut", CUTS)
def test_cuts_of_views_read_and_write(source, cut):
    """PyTorch's own composites find their way by stride() and storage_offset()."""

    def run(device):
        x = torch.arange(60.0).view(15, 4).to(device)
        part = CUTS[cut](SOURCES[source](x))
        read = part.clone()
        part.mul_(-1)
        return read.cpu(), x.cpu()

    for on_xla, on_cpu in zip(run("xla"), run("cpu"), strict=True):
        torch.testing.assert_close(on_xla, on_cpu)


def test_a_gradient_that_is_expanded_can_be_written():
    """That of a sum: autograd keeps it as it came, taking it for contiguous."""
    w = torch.ones(3, device="xla", requires_grad=True)
    w.sum().backward()
    w.grad.mul_(torch.tensor([1.0, 2.0, 3.0], device="xla"))
    assert w.grad.tolist() == [1, 2, 3]
    x = torch.zeros(1, device="xla").expand(3)
    base = x[:1]
    with pytest.raises(RuntimeError, match="more than one element"):
        x.add_(torch.arange(3.0, device="xla"))
    assert base.tolist() == [0]
