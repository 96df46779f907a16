"""The device refuses what the CPU refuses (rules/cpu_trial.h): dtypes, attributes and numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from testing.ops import BF16, F32, F64, I32, I64, INF, NAN, check_many, rand, special
from testing.processes import python_output
from torch.utils._pytree import tree_map

import torch_xla
import torch_xla.debug.metrics as met

C = rand(2, 3, dtype=torch.complex64)
I = rand(2, 3, dtype=I64)  # noqa: E741
B = rand(2, 3, dtype=torch.bool)
X = rand(2, 3)


def refusal(fn: Callable[..., Any], args: Any, kwargs: Any) -> Exception | None:
    try:
        fn(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - it is compared
        return error
    return None


def check_refused(device: torch.device, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Refused with the CPU's class of error and its words, each time."""
    ours = tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, (args, kwargs))
    expected = refusal(fn, args, kwargs)
    assert expected is not None, "the CPU takes it"
    for _ in range(2):
        actual = refusal(fn, *ours)
        assert type(actual) is type(expected), f"{actual!r}, on CPU {expected!r}"
        assert str(actual).splitlines()[0] == str(expected).splitlines()[0]


DTYPES = {
    "var(int)": (torch.var, I),
    "bool - 1": (lambda x: x - 1, B),
    "sub(alpha=True)": (lambda x: torch.sub(x, x, alpha=True), X),
    "relu(complex)": (F.relu, C),
    "minimum(complex)": (torch.minimum, C, C),
    "mse_loss(complex)": (F.mse_loss, C, C),
    "round(complex)": (torch.round, C),
    "atan2(complex)": (torch.atan2, C, C),
    "gcd(float)": (torch.gcd, X, X),
    "lerp(int)": (lambda x: torch.lerp(x, x, 0.5), I),
    "frac(int)": (torch.frac, I),
    "hardsigmoid(int)": (F.hardsigmoid, I),
    "argmax(bool)": (torch.argmax, B),
    "trace(bool)": (torch.trace, B),
    "median(bool)": (lambda x: x.median(0), B),
    "isin(bool)": (torch.isin, B, B),
    "ldexp(bool)": (torch.ldexp, X, B),
    "ldexp(uint16)": (torch.ldexp, X, torch.ones(2, 3, dtype=torch.uint16)),
    "ldexp(float8)": (torch.ldexp, X.to(torch.float8_e5m2), I),
    "cross_entropy(int32)": (F.cross_entropy, X, torch.zeros(2, dtype=I32)),
    "linear(int)": (F.linear, I[None], rand(4, 3), rand(4)),
    "linear(double)": (F.linear, X[None], rand(4, 3, dtype=F64), rand(4)),
    "linear(columns)": (F.linear, X[None], rand(4, 5), rand(4)),
    "linear(bias)": (F.linear, X[None], rand(4, 3), rand(3)),
    "linear(weight)": (F.linear, X[None], rand(4, 3, 1), rand(4)),
}


@pytest.mark.parametrize("call", DTYPES.values(), ids=DTYPES)
def test_dtypes(device, call):
    check_refused(device, *call)


def test_dtypes_of_many_elements(device):
    """They are tried on fewer: also where sizes are arguments, or must fit together."""
    x = torch.ones(600, 512)
    for fn, dtype in (
        (lambda x: x @ x.mT, torch.bool),
        (lambda x: F.layer_norm(x, (512,)), I64),
        (lambda x: torch.relu(x), torch.complex64),
        (lambda x: x.var(1), I32),
    ):
        check_refused(device, fn, x.to(dtype))
    big = torch.ones(2048, 1030, dtype=torch.complex64, device=device)
    with pytest.raises(RuntimeError, match="not implemented|not supported"):
        torch.relu(big)
    big = big.real.clone()
    taken = [
        big @ big.mT,
        torch.relu(big),
        F.layer_norm(big, (1030,)),
        F.glu(big),
        big.gather(0, big.long()),
    ]
    assert taken[0][0, 0].item() == 1030 and taken[3].shape == (2048, 515)


NUMBERS = {
    "softshrink": (F.softshrink, X, 0.5, -0.5),
    "hardtanh": (lambda x, low: F.hardtanh(x, low, 5), I, 0, NAN),
    "addmm": (lambda x, alpha: torch.addmm(x, x[:, :2], x, alpha=alpha), X, 2.0, 1j),
    "addcmul": (lambda x, value: torch.addcmul(x, x, x, value=value), I, 3, NAN),
    "threshold": (lambda x, value: F.threshold(x, 0, value), X.to(torch.uint8), 3, 300),
    "lerp": (lambda x, weight: torch.lerp(x, x, weight), X, 0.5, 1j),
    "half": (
        lambda x, value: x.index_fill(0, torch.zeros(1, dtype=I64, device=x.device), value),
        X.half(),
        1.0,
        1e6,
    ),
}


@pytest.mark.parametrize(("fn", "x", "good", "bad"), NUMBERS.values(), ids=NUMBERS)
def test_numbers_after_good_ones(device, fn, x, good, bad):
    """A number is a parameter of the program; what is checked of it is checked each time."""
    check_many([(fn, (x, good))])
    check_refused(device, fn, x, bad)
    check_many([(fn, (x, good))])


def test_numbers_of_all_classes_are_one_program(device):
    x = rand(4).to(device)
    before = None
    for value in (0.25, 0.5, -7.0, 300.0, 1e30, INF, -INF, NAN):
        y = x * value
        torch_xla.sync(wait=True)
        torch.testing.assert_close(y.cpu(), rand(4) * value, equal_nan=True)
        compiled = met.counter_value("UncachedCompile")
        assert before in (None, compiled)
        before = compiled


@pytest.fixture
def default_dtype():
    yield torch.set_default_dtype
    torch.set_default_dtype(F32)


def test_default_dtype(device, default_dtype):
    """The same call is another one after it has changed, and its program another program."""
    integers, floats = torch.arange(4), special()
    calls = [
        lambda x: x / 2,
        lambda x: x * 0.5,
        lambda x: x + 0.5j,
        lambda x: torch.where(x > 1, 0.1, 2.5),
        lambda x: x > 0.1,
        torch.sqrt,
    ]
    for dtype in (F32, F64, BF16, F32, F64):
        default_dtype(dtype)
        check_many([(fn, (x,)) for fn in calls for x in (integers, floats)])


def test_default_dtype_changes_before_the_sync(device, default_dtype):
    """What a call meant, it means when it is compiled."""
    x = torch.arange(-4, 4)
    results = []
    for dtype in (F64, F32):
        default_dtype(dtype)
        results.append((x.to(device) * 0.1 > 0.3, x * 0.1 > 0.3))
        results.append((x.to(device) / 3, x / 3))
        results.append((x.to(device) > 0.1, x > 0.1))
    for actual, expected in results:
        torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


def test_modes_do_not_see_the_trial(device):
    """Nor does it see them: autocast for the CPU would change the dtypes."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        devices: list[str] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            self.devices.append(result.device.type)
            return result

    x = rand(5, 7).to(device)
    state = torch.get_rng_state()
    with torch.autocast("cpu", dtype=BF16), Seen() as seen:
        y = torch.mm(x, x.mT)
    assert y.dtype == F32 and set(seen.devices) == {"xla"}
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(torch.vmap(torch.dot)(x, x).cpu(), (rand(5, 7) ** 2).sum(1))


def test_a_trial_takes_no_cores_from_others():
    """Threads that are born during one have as many as PyTorch was given."""
    code = """
    import threading, torch, torch_xla
    torch.set_num_threads(3)
    seen, ended = set(), threading.Event()
    def look():
        while not ended.is_set():
            thread = threading.Thread(target=lambda: seen.add(torch.get_num_threads()))
            thread.start()
            thread.join()
    looking = threading.Thread(target=look)
    looking.start()
    x = torch.ones(40, 3).to("xla")
    for size in range(1, 40):
        part = x[:size]
        torch.cat([part, part]).cumsum(0).argsort().sort(1)
        (part @ part.t()).tril().prod(0)
    ended.set()
    looking.join()
    print(sorted(seen), torch.get_num_threads())
    """
    assert python_output(code) == "[3] 3"


def test_sparse_tensors_are_refused_with_what_to_do_instead(device):
    layer = torch.nn.Embedding(4, 2, sparse=True).to(device)
    with pytest.raises(NotImplementedError, match="make it with sparse=False"):
        layer(torch.tensor([1], device=device)).sum().backward()
    with pytest.raises(NotImplementedError, match=r"no sparse tensors.*\.to_dense\(\)"):
        torch.eye(2).to_sparse().to(device)
    with pytest.raises(NotImplementedError, match="no sparse tensors"):
        torch.eye(2, device=device).to_sparse()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_clamps_of_integers_by_numbers_outside_their_range(device, dtype):
    """Since PyTorch 2.15 the range's ends; wrapped around, or refused, before."""
    x = torch.tensor([-100, 0, 1, 5, 100]).to(dtype)
    calls = [
        *((torch.clamp, (x, *bounds)) for bounds in ((-1, 2), (2, 300), (-5, -1), (300, None))),
        *((F.hardtanh, (x, *bounds)) for bounds in ((-200, 200), (-1, 2))),
        *((torch.clamp_min, (x, low)) for low in (-1, 150)),
        *((torch.clamp_max, (x, high)) for high in (-1, 150, 300)),
        *((op, ([x], -1)) for op in (torch._foreach_clamp_min, torch._foreach_minimum)),
    ]
    refused = [refusal(*call, {}) is not None for call in calls]
    for call, is_refused in zip(calls, refused, strict=True):
        if is_refused:
            check_refused(device, call[0], *call[1])
    check_many([call for call, is_refused in zip(calls, refused, strict=True) if not is_refused])


QUERY, KEY = rand(2, 4, 3, 8), rand(2, 4, 5, 8)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.bool, F32])
@pytest.mark.parametrize("sizes", [(), (1,), (5,), (6,)])
def test_masks_of_attention_have_two_dimensions(device, sizes, dtype, grad):
    """Or more, where the CPU looks at them."""

    def attend(query, key, mask, **kwargs):
        query = query.clone().requires_grad_(grad)
        return F.scaled_dot_product_attention(query, key, key, mask, **kwargs)

    mask = torch.ones(sizes, dtype=dtype)
    check_refused(device, attend, QUERY, KEY, mask)
    check_refused(device, attend, QUERY, KEY, mask, is_causal=True)
    check_refused(device, attend, QUERY, KEY[:, :2], mask, enable_gqa=True)
    check_refused(device, attend, QUERY, KEY, torch.ones(sizes, dtype=I64))
    if sizes == (6,):
        return
    taken = [(QUERY[0], KEY[0], mask), (QUERY, KEY[:1], mask), (QUERY[:, :, :0], KEY, mask)]
    check_many([(attend, args) for args in taken])
    if dtype == F32:
        check_many([(lambda q, k, m: attend(q, k, m.requires_grad_()), (QUERY, KEY, mask))])


def test_what_the_cpu_refuses() -> None:
    for device in ("cpu", "xla"):
        for dtype in (torch.uint16, torch.uint32, torch.uint64):
            with pytest.raises(NotImplementedError):
                torch.arange(3, dtype=dtype, device=device)
        x = torch.arange(4, device=device)
        for value in (torch.tensor(8.6), torch.tensor([8.6])):
            with pytest.raises(RuntimeError, match="source and destination dtypes match"):
                x[torch.tensor([3], device=device)] = value.to(device)
