"""What is written may not be what is read: the CPU's kernels say where."""

from collections.abc import Callable

import pytest
import torch

Line = Callable[[torch.Tensor], object]


def places(x: torch.Tensor, *numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device=x.device)


def indices(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(6, dtype=torch.int64, device=x.device)


# Of x = arange(6): each is refused by the CPU.
REFUSED: dict[str, Line] = {
    "add out": lambda x: torch.add(x[1:], 1, out=x[:-1]),
    "add_": lambda x: x[1:].add_(x[:-1]),
    "add_ of an element": lambda x: x.add_(x[2]),
    "mul_ of a transpose": lambda x: x[:4].view(2, 2).mul_(x[:4].view(2, 2).t()),
    "sub_ of a row": lambda x: x.view(2, 3).sub_(x.view(2, 3)[0]),
    "addcmul_": lambda x: x[1:].addcmul_(x[:-1], x[1:]),
    "addcdiv out": lambda x: torch.addcdiv(x[1:], x[1:], x[1:], out=x[:-1]),
    "lerp_": lambda x: x[1:].lerp_(x[:-1], 0.5),
    "clamp_ by tensors": lambda x: x[1:].clamp_(min=x[:-1]),
    "pow_": lambda x: x[1:].pow_(x[:-1]),
    "eq_": lambda x: x[1:].eq_(x[:-1]),
    "exp out": lambda x: torch.exp(x[1:], out=x[:-1]),
    "gelu out": lambda x: torch._C._nn.gelu(x[1:], out=x[:-1]),
    "where out": lambda x: torch.where(x[1:] > 2, x[1:], x[:-1], out=x[1:]),
    "cumsum out": lambda x: torch.cumsum(x[1:], 0, out=x[:-1]),
    "copy_": lambda x: x[1:].copy_(x[:-1]),
    "copy_ of a transpose": lambda x: x[:4].view(2, 2).copy_(x[:4].view(2, 2).t()),
    "copy_ of other bits": lambda x: x.view(torch.int32)[1:].copy_(x[:-1]),
    "assignment": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "several numbers by a mask": lambda x: x.__setitem__(x > 3, x[:2]),
    "assignment by index": lambda x: x.__setitem__(places(x, 1, 0), x[2:4]),
    "index_put_": lambda x: x.index_put_((places(x, 1, 0),), x[2:4]),
    "gather out": lambda x: torch.gather(x, 0, places(x, 1, 0, 2, 3, 4, 5), out=x),
    "index_select out": lambda x: torch.index_select(x, 0, places(x, 1, 0, 2, 3, 4, 5), out=x),
    "take out": lambda x: torch.take(x, places(x, 1, 0, 2, 3, 4, 5), out=x),
    "scatter_ of itself": lambda x: x.scatter_(0, places(x, 1, 0), x),
    "scatter_add_": lambda x: x.scatter_add_(0, places(x, 1, 0), x[2:]),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, places(x, 1, 0), x[2:], "sum"),
    "index_add_": lambda x: x.index_add_(0, places(x, 1, 0), x[2:4]),
    "index_copy_": lambda x: x.index_copy_(0, places(x, 1, 0), x[2:4]),
    "put_": lambda x: x.put_(places(x, 1, 0), x[2:4]),
    "cat out": lambda x: torch.cat([x[:3], x[3:]], out=x),
    "max out": lambda x: torch.max(x.view(2, 3), 0, out=(x[:3], indices(x)[:3])),
    "foreach": lambda x: torch._foreach_add_([x[1:]], [x[:-1]]),
    "foreach copy": lambda x: torch._foreach_copy_([x[1:]], [x[:-1]]),
    "complex parts": lambda x: torch.view_as_real(torch.view_as_complex(x.view(3, 2)))[1:].add_(
        x.view(3, 2)[:-1]
    ),
}
# The same memory, but in the same order or beside; or where strides hide it from the CPU, which
# then gives what was intended.
TAKEN: dict[str, Line] = {
    "itself": lambda x: x.add_(x),
    "itself by another name": lambda x: x[1:].add_(x[1:]),
    "out is an operand": lambda x: torch.add(x, 1, out=x),
    "out is a view of one": lambda x: torch.exp(x[1:], out=x[1:]),
    "beside": lambda x: x[3:].add_(x[:3]),
    "between": lambda x: x[::2].add_(x[1::2]),
    "a copy of the same": lambda x: x[2:].copy_(x[2:]),
    "augmented assignment": lambda x: x.__setitem__(1, x[1] + 1),
    "cumsum out": lambda x: torch.cumsum(x, 0, out=x),
    "a copy": lambda x: x[1:].add_(x[:-1].clone()),
    "sorted in place": lambda x: torch.sort(x, out=(x, indices(x))),
    "nothing": lambda x: x[:0].add_(x[1:1]),
    "one number by a mask": lambda x: x.__setitem__(x > 1, x[:1]),
    "one number of a row by a mask": lambda x: x.view(2, 3).__setitem__(x[:2] > 0, x[5]),
    "other bits": lambda x: x.view(torch.int32).copy_(x.view(torch.int32)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_write_over_what_is_read_is_refused(name: str) -> None:
    for device in ("cpu", "xla"):
        x = torch.arange(6.0, device=device)
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written"):
            REFUSED[name](x)
        assert x.tolist() == [0, 1, 2, 3, 4, 5]
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written"):
            REFUSED[name](x)  # as is known by now


@pytest.mark.parametrize("name", TAKEN)
def test_a_write_beside_what_is_read(name: str) -> None:
    x, y = torch.arange(6.0), torch.arange(6.0, device="xla")
    TAKEN[name](x)
    TAKEN[name](y)
    torch.testing.assert_close(y.cpu(), x)


def test_an_operator_that_the_cpu_does_not_check() -> None:
    """The CPU reads what it has written here; ours reads first."""
    x = torch.arange(4.0, device="xla").view(2, 2)
    product = x.cpu() @ x.cpu()
    torch.mm(x, x, out=x)
    torch.testing.assert_close(x.cpu(), product)


def test_a_tensor_is_its_own_mask() -> None:
    x = torch.tensor([True, False, True], device="xla")
    x[x] = x[:1]
    assert x.tolist() == [True, False, True]
    x[x] = False
    assert x.tolist() == [False, False, False]


def test_writes_to_what_overlaps_are_refused(device: torch.device) -> None:
    x = torch.ones(1, 2, device=device)
    with pytest.raises(RuntimeError, match="single memory location"):
        x.expand(3, 2).add_(1)
