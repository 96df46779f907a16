"""Random numbers on the device: reproducible, well distributed, and never a new program."""

import copy
import math
import pickle
import threading

import pytest
import torch
from scipy import stats
from testing.executor import compiles
from testing.ops import C64, I8, I64, U8

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

N = 20_000
# With fixed seeds the tests below either pass or fail for ever; a right generator falls
# below this p-value for one seed in a thousand.
P = 1e-3

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


DRAWS = {
    "rand": lambda d, g: torch.rand(8, device=d, generator=g),
    "randn": lambda d, g: torch.randn(8, device=d, generator=g),
    "randint": lambda d, g: torch.randint(5, 1000, (8,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(16, device=d, generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((32,), 0.5, device=d), generator=g),
    "bernoulli_": lambda d, g: torch.empty(32, device=d).bernoulli_(0.5, generator=g),
    "normal": lambda d, g: torch.normal(torch.zeros(8, device=d), 2.0, generator=g),
    "normal_": lambda d, g: torch.empty(8, device=d).normal_(1, 3, generator=g),
    "uniform_": lambda d, g: torch.empty(8, device=d).uniform_(-2, 3, generator=g),
    "exponential_": lambda d, g: torch.empty(8, device=d).exponential_(1.5, generator=g),
    "random_": lambda d, g: torch.empty(8, device=d, dtype=torch.int64).random_(generator=g),
    "random_ to": lambda d, g: torch.empty(8, device=d).random_(1000, generator=g),
    "cauchy_": lambda d, g: torch.empty(8, device=d).cauchy_(generator=g),
    "geometric_": lambda d, g: torch.empty(32, device=d).geometric_(0.2, generator=g),
    "log_normal_": lambda d, g: torch.empty(8, device=d).log_normal_(generator=g),
    "poisson": lambda d, g: torch.poisson(torch.full((32,), 4.0, device=d), generator=g),
    "binomial": lambda d, g: torch.binomial(
        torch.full((32,), 9.0, device=d), torch.full((32,), 0.4, device=d), generator=g
    ),
    "_standard_gamma": lambda d, g: torch._standard_gamma(torch.ones(8, device=d), generator=g),
    "_sample_dirichlet": lambda d, g: torch._sample_dirichlet(
        torch.ones(2, 3, device=d), generator=g
    ).flatten(),
    "multinomial": lambda d, g: torch.multinomial(
        torch.ones(50, device=d), 10, replacement=True, generator=g
    ),
    "multinomial without": lambda d, g: torch.multinomial(
        torch.ones(50, device=d), 10, generator=g
    ),
}


# ------------------------------------------------------------------ the state


@pytest.mark.parametrize("name", DRAWS)
def test_same_seed_same_numbers_other_seed_others(device, name):
    def draw(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        numbers = [DRAWS[name](device, None) for _ in range(2)]
        torch_xla.sync()
        return [x.cpu() for x in numbers]

    first, again, other = draw(5), draw(5), draw(6)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("name", DRAWS)
def test_generator_of_ones_own(device, name):
    def draw(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator(device="xla").manual_seed(seed)
        return [DRAWS[name](device, generator).cpu() for _ in range(2)]

    state = xm.get_rng_state()
    first, again, other = draw(5), draw(5), draw(6)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])
    assert xm.get_rng_state() == state  # the device's own is left alone


@pytest.mark.parametrize("name", DRAWS)
def test_steps_differ_and_need_no_program(device, name):
    def step() -> torch.Tensor:
        x = DRAWS[name](device, None)
        torch_xla.sync()
        return x.cpu()

    torch.manual_seed(0)
    drawn = [step(), step()]
    before = compiles()
    drawn += [step() for _ in range(4)]
    assert compiles() == before
    distinct = {tuple(x.tolist()) for x in drawn}
    assert len(distinct) == len(drawn)


def test_set_and_get_rng_state(device):
    xm.set_rng_state(1234)
    assert xm.get_rng_state() == 1234
    first = torch.rand(4, device=device)
    middle = xm.get_rng_state()
    assert middle != 1234
    second = torch.rand(4, device=device)
    xm.set_rng_state(middle)
    assert torch.equal(torch.rand(4, device=device).cpu(), second.cpu())
    xm.set_rng_state(1234, device)
    assert torch.equal(torch.rand(4, device=device).cpu(), first.cpu())
    xm.set_rng_state(2**64 - 1)
    assert xm.get_rng_state(device) == 2**64 - 1


def test_manual_seed_of_the_package(device):
    torch_xla.manual_seed(3)
    first = torch.rand(4, device=device).cpu()
    torch_xla.manual_seed(3, device)
    assert torch.equal(torch.rand(4, device=device).cpu(), first)
    torch_xla.manual_seed(-3)
    assert xm.get_rng_state() == 2**64 - 3


def test_generator_state_round_trip(device):
    generator = torch.Generator(device="xla").manual_seed(7)
    assert generator.initial_seed() == 7
    torch.rand(3, device=device, generator=generator)
    state = generator.get_state()
    first = torch.rand(3, device=device, generator=generator).cpu()
    copy = torch.Generator(device="xla")
    copy.set_state(state)
    assert torch.equal(torch.rand(3, device=device, generator=copy).cpu(), first)
    with pytest.raises(RuntimeError, match="state"):
        copy.set_state(torch.zeros(5, dtype=torch.uint8))


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))]
)
def test_copied_generators_go_on_alike(device, copied):
    generator = torch.Generator(device="xla").manual_seed(-7)
    torch.rand(3, device=device, generator=generator)
    other = copied(generator)
    assert other.device == generator.device and other.initial_seed() == generator.initial_seed()
    for _ in range(2):
        first = torch.rand(3, device=device, generator=generator)
        assert torch.equal(torch.rand(3, device=device, generator=other).cpu(), first.cpu())


def test_the_offset_of_a_generator_counts_its_draws(device):
    generator = torch.Generator(device="xla").manual_seed(7)
    drawn = [torch.rand(3, device=device, generator=generator).tolist() for _ in range(3)]
    assert generator.get_offset() == 3
    for offset in (2, 0, 1):
        generator.set_offset(offset)
        assert torch.rand(3, device=device, generator=generator).tolist() == drawn[offset]


def test_generator_of_another_device_is_an_error(device):
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=device, generator=torch.Generator())
    with pytest.raises(RuntimeError, match="generator"):
        torch.empty(3, device=device).normal_(generator=torch.Generator())


def test_fork_rng(device):
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type="xla"):
        inside = torch.rand(4, device=device).cpu()
    assert torch.equal(torch.rand(4, device=device).cpu(), inside)


def test_reading_does_not_draw_again(device):
    x = torch.rand(4, device=device)
    first = x.cpu()
    y = x + 1
    torch_xla.sync()
    assert torch.equal(x.cpu(), first)
    torch.testing.assert_close(y.cpu(), first + 1)


def test_evaluating_a_part_keeps_the_rest_consistent(device):
    # The random node is run twice, once for the part: both must give the same numbers.
    x = torch.randn(6, device=device)
    y = x * 2
    part = y.cpu()
    torch_xla.sync()
    torch.testing.assert_close(x.cpu() * 2, part)


def test_independent_streams(device):
    torch.manual_seed(11)
    x, y = torch.randn(N, device=device).cpu(), torch.randn(N, device=device).cpu()
    assert abs(torch.corrcoef(torch.stack([x, y]))[0, 1]) < 4 / math.sqrt(N)
    # Adjacent seeds, too.
    draws = []
    for seed in range(4):
        torch.manual_seed(seed)
        draws.append(torch.randn(N, device=device).cpu())
    correlation = torch.corrcoef(torch.stack(draws)) - torch.eye(4)
    assert correlation.abs().max() < 4 / math.sqrt(N)


# ------------------------------------------------------------------ distributions


def follows(x: torch.Tensor, distribution: str, *args: float) -> float:
    """The p-value of Kolmogorov and Smirnov's test."""
    return stats.kstest(x.double().numpy().ravel(), distribution, args=args).pvalue


CONTINUOUS = {
    "rand": (lambda d: torch.rand(N, device=d), ("uniform",)),
    "rand f64": (lambda d: torch.rand(N, device=d, dtype=torch.float64), ("uniform",)),
    "randn": (lambda d: torch.randn(N, device=d), ("norm",)),
    "randn f64": (lambda d: torch.randn(N, device=d, dtype=torch.float64), ("norm",)),
    "uniform_": (lambda d: torch.empty(N, device=d).uniform_(-3, 5), ("uniform", -3, 8)),
    "normal_": (lambda d: torch.empty(N, device=d).normal_(2, 3), ("norm", 2, 3)),
    "normal": (lambda d: torch.normal(-1.0, 0.5, (N,), device=d), ("norm", -1, 0.5)),
    "normal tensors": (
        lambda d: torch.normal(torch.full((N,), 2.0).to(d), torch.full((N,), 3.0).to(d)),
        ("norm", 2, 3),
    ),
    "exponential_": (lambda d: torch.empty(N, device=d).exponential_(2.5), ("expon", 0, 0.4)),
    "rand_like": (lambda d: torch.rand_like(torch.empty(N, device=d)), ("uniform",)),
    "randn_like": (lambda d: torch.randn_like(torch.empty(N, device=d)), ("norm",)),
    "kaiming": (
        lambda d: torch.nn.init.normal_(torch.empty(100, 200, device=d), 0.5, 0.1),
        ("norm", 0.5, 0.1),
    ),
    "log_normal_": (lambda d: torch.empty(N, device=d).log_normal_(0, 1).log(), ("norm",)),
    "cauchy_": (lambda d: torch.empty(N, device=d).cauchy_(1, 2), ("cauchy", 1, 2)),
    "log_normal_ parameters": (
        lambda d: torch.empty(N, device=d).log_normal_(1, 0.5).log(),
        ("norm", 1, 0.5),
    ),
    "gamma below 1": (
        lambda d: torch._standard_gamma(torch.full((N,), 0.3, device=d)),
        ("gamma", 0.3),
    ),
    "gamma": (lambda d: torch._standard_gamma(torch.full((N,), 2.5, device=d)), ("gamma", 2.5)),
    "gamma f64": (
        lambda d: torch._standard_gamma(torch.full((N,), 50.0, device=d, dtype=torch.float64)),
        ("gamma", 50.0),
    ),
    "dirichlet": (
        lambda d: torch._sample_dirichlet(torch.tensor([0.5, 2.0, 3.0]).to(d).expand(N, 3))[:, 0],
        ("beta", 0.5, 5.0),
    ),
    "Beta.sample": (
        lambda d: torch.distributions.Beta(
            torch.full((N,), 2.0, device=d), torch.full((N,), 5.0, device=d)
        ).sample(),
        ("beta", 2.0, 5.0),
    ),
    "StudentT.sample": (
        lambda d: torch.distributions.StudentT(torch.full((N,), 4.0, device=d)).sample(),
        ("t", 4.0),
    ),
    "Normal.sample": (
        lambda d: torch.distributions.Normal(
            torch.zeros(N, device=d), torch.ones(N, device=d)
        ).sample(),
        ("norm",),
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distribution(device, name):
    torch.manual_seed(17)
    draw, (distribution, *args) = CONTINUOUS[name]
    x = draw(device).cpu()
    assert torch.isfinite(x).all()
    assert follows(x, distribution, *args) > P


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_bounds_and_dtype(device, dtype):
    torch.manual_seed(2)
    x = torch.rand(N, device=device, dtype=dtype)
    assert (x.dtype, x.device.type) == (dtype, "xla")
    x = x.cpu()
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.double().mean() - 0.5) < 5 / math.sqrt(12 * N)
    assert x.unique().numel() > (100 if dtype == torch.bfloat16 else 500)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normal_moments_and_dtype(device, dtype):
    torch.manual_seed(3)
    x = torch.randn(N, device=device, dtype=dtype)
    assert x.dtype == dtype
    x = x.cpu().double()
    assert torch.isfinite(x).all()
    assert abs(x.mean()) < 5 / math.sqrt(N)
    assert abs(x.var() - 1) < 5 * math.sqrt(2 / N)
    assert 3.3 < x.abs().max() < 6


def fits(x: torch.Tensor, distribution: stats.rv_discrete) -> float:
    """The p-value of a chi-squared test, with rare values taken together."""
    low, high = (int(distribution.ppf(q)) for q in (0.002, 0.998))
    edges = torch.arange(low, high + 1)
    counts = torch.histc(x.double(), high - low + 1, low - 0.5, high + 0.5).numpy()
    expected = distribution.pmf(edges.numpy()) * x.numel()
    # The tails.
    below, above = (x < low).sum().item(), (x > high).sum().item()
    counts[0] += below
    counts[-1] += above
    expected[0] += distribution.cdf(low - 1) * x.numel()
    expected[-1] += distribution.sf(high) * x.numel()
    return stats.chisquare(counts, expected * (counts.sum() / expected.sum())).pvalue


DISCRETE = {
    **{
        f"poisson {rate}": (
            lambda d, rate=rate: torch.poisson(torch.full((N,), rate, device=d)),
            stats.poisson(rate),
        )
        for rate in (0.7, 9.5, 10.5, 400.0)
    },
    **{
        f"binomial {n} {p}": (
            lambda d, n=n, p=p: torch.binomial(
                torch.full((N,), float(n), device=d), torch.full((N,), p, device=d)
            ),
            stats.binom(n, p),
        )
        for n, p in ((7, 0.5), (12, 0.9), (30, 0.1), (200, 0.3), (1000, 0.97))
    },
    "geometric_": (lambda d: torch.empty(N, device=d).geometric_(0.2), stats.geom(0.2)),
    "geometric_ of integers": (
        lambda d: torch.empty(N, device=d, dtype=torch.int64).geometric_(0.7),
        stats.geom(0.7),
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distribution(device, name):
    torch.manual_seed(23)
    draw, distribution = DISCRETE[name]
    x = draw(device).cpu()
    assert torch.equal(x, x.floor() if x.is_floating_point() else x)
    assert fits(x.double(), distribution) > P


def test_parameters_at_their_bounds(device):
    nan = float("nan")
    draws = (
        torch.poisson(torch.tensor([0.0, -1.0, nan]).to(device)),
        torch.binomial(
            torch.tensor([0.0, 5.0, 5.0, nan, 30.0]).to(device),
            torch.tensor([0.3, 0.0, 1.0, 0.5, 1.0]).to(device),
        ),
        torch._standard_gamma(torch.tensor([-1.0, nan]).to(device)),
    )
    poisson, binomial, gamma = (x.cpu() for x in draws)
    assert poisson[0] == 0 and poisson[1:].isnan().all()
    torch.testing.assert_close(binomial, torch.tensor([0, 0, 5, nan, 30]), equal_nan=True)
    assert gamma.isnan().all()
    small = torch._standard_gamma(torch.full((100,), 1e-4, device=device)).cpu()
    assert (small > 0).all()
    simplex = torch._sample_dirichlet(torch.full((50, 4), 1e-3, device=device)).cpu()
    torch.testing.assert_close(simplex.sum(-1), torch.ones(50))
    assert torch.poisson(torch.empty(0, device=device)).shape == (0,)


def test_uniform_includes_small_numbers_and_excludes_the_end(device):
    torch.manual_seed(4)
    x = torch.empty(200_000, device=device).uniform_(2, 4).cpu()
    assert x.min() >= 2 and x.max() < 4
    assert x.min() < 2 + 1e-4 and x.max() > 4 - 1e-4


BOUNDS = ((0, 1), (-1, 3), (-2, -1), (1, 2), (100, 101), (0.1, 0.2), (-0.5, 0), (3, 3))


@pytest.mark.parametrize("dtype", (*FLOATS, torch.complex64), ids=str)
def test_uniform_excludes_its_end_in_each_dtype(device, dtype):
    """It is drawn in more bits than the dtype may have, and rounded."""
    torch.manual_seed(4)
    drawn = [torch.empty(N, device=device, dtype=dtype).uniform_(*b) for b in BOUNDS]
    torch_xla.sync()
    real = torch.float32 if dtype.is_complex else dtype
    for x, (low, high) in zip(drawn, BOUNDS, strict=True):
        x = (torch.view_as_real(x) if dtype.is_complex else x).cpu()
        assert x.min() >= torch.tensor(low, dtype=real)
        assert x.max() < torch.tensor(high, dtype=real) or low == high
        assert abs(x.double().mean() - (low + high) / 2) <= (high - low) / 4


def test_what_is_made_of_uniform_numbers_has_no_infinity(device):
    torch.manual_seed(4)
    for dtype in (torch.bfloat16, torch.float16):
        u = torch.rand(N, device=device, dtype=dtype)
        assert torch.isfinite(torch.log(1 - u)).all()
        assert (torch.rand(N, device=device, dtype=dtype) * 8).long().max() < 8
        noise = torch.nn.functional.rrelu(-torch.ones_like(u), 0.25, 0.5, training=True)
        assert -0.5 < noise.min() and noise.max() <= -0.25


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_gammas_are_positive_in_each_dtype(device, dtype):
    torch.manual_seed(4)
    gamma = torch._standard_gamma(torch.full((N,), 0.01, device=device, dtype=dtype))
    simplex = torch._sample_dirichlet(torch.full((N // 4, 3), 0.01, device=device, dtype=dtype))
    torch_xla.sync()
    assert gamma.min() > 0
    assert 0 < simplex.min() and simplex.max() < 1


RANGES = ((0, 257), (0, 300), (0, 999), (0, 30000), (999, 1001), (-1001, -900), (2000, 2049))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_random_integers_of_floats_stay_within_their_range(device, dtype):
    torch.manual_seed(4)
    wide = ((0, 2**25 - 1), (2**24, 2**24 + 3)) if dtype == torch.float32 else ()
    ranges = (*RANGES, *wide)
    drawn = [torch.empty(N, device=device, dtype=dtype).random_(*r) for r in ranges]
    torch_xla.sync()
    for x, (low, high) in zip(drawn, ranges, strict=True):
        x = x.cpu().double()
        assert low <= x.min() and x.max() < high
        assert abs(x.mean() - (low + high) / 2) < max(1, (high - low) / 20)


def test_threads_that_share_a_generator_draw_different_numbers(device):
    generator = torch.Generator(device="xla").manual_seed(0)
    drawn = [[] for _ in range(4)]

    def draw(mine: list[torch.Tensor]) -> None:
        for _ in range(500):
            mine.append(torch.rand(2, device=device, generator=generator))  # noqa: PERF401

    threads = [threading.Thread(target=draw, args=(mine,)) for mine in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = torch.stack([x for mine in drawn for x in mine]).cpu()
    assert len({tuple(row) for row in rows.tolist()}) == len(rows)


@pytest.mark.parametrize(
    "dtype", (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8, torch.float32)
)
def test_randint_is_uniform(device, dtype):
    torch.manual_seed(5)
    x = torch.randint(3, 13, (N,), device=device, dtype=dtype)
    assert x.dtype == dtype
    counts = torch.bincount(x.cpu().long() - 3, minlength=10)
    assert counts.numel() == 10  # none outside
    assert stats.chisquare(counts.numpy()).pvalue > P


def test_randint_of_wide_and_negative_ranges(device):
    torch.manual_seed(6)
    x = torch.randint(-(2**62), 2**62, (N,), device=device).cpu()
    assert follows(x.double() / 2**62, "uniform", -1, 2) > P
    y = torch.randint(-5, -2, (N,), device=device).cpu()
    assert sorted(y.unique().tolist()) == [-5, -4, -3]
    assert (torch.randint(7, 8, (5,), device=device).cpu() == 7).all()


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [
        (torch.bool, 2),
        (torch.uint8, 256),
        (torch.int8, 128),
        (torch.int16, 2**15),
        (torch.int32, 2**31),
        (torch.int64, 2**63),
        (torch.float16, 2**11 + 1),
        (torch.bfloat16, 2**8 + 1),
        (torch.float32, 2**24 + 1),
        (torch.float64, 2**53 + 1),
    ],
)
def test_random_covers_the_dtype(device, dtype, limit):
    torch.manual_seed(7)
    x = torch.empty(N, device=device, dtype=dtype).random_()
    assert x.dtype == dtype
    x = x.cpu().double()
    assert x.min() >= 0 and x.max() < limit or limit == 2**63
    if limit <= 256:
        counts = torch.bincount(x.long(), minlength=limit)
        assert counts.numel() == limit
        assert stats.chisquare(counts.numpy()).pvalue > P
    else:
        assert follows(x, "uniform", 0, limit) > P


@pytest.mark.parametrize("p", (0.0, 0.1, 0.5, 0.9, 1.0))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64, torch.bool))
def test_bernoulli(device, p, dtype):
    torch.manual_seed(8)
    x = torch.empty(N, device=device, dtype=dtype).bernoulli_(p)
    assert x.dtype == dtype
    x = x.cpu().double()
    assert ((x == 0) | (x == 1)).all()
    assert abs(x.mean() - p) <= 4.5 * math.sqrt(p * (1 - p) / N)


def test_bernoulli_of_a_tensor(device):
    torch.manual_seed(9)
    p = torch.tensor([0.0, 0.2, 0.7, 1.0]).repeat(N // 4, 1)
    for x in (
        torch.bernoulli(p.to(device)),
        torch.empty(p.shape, device=device).bernoulli_(p.to(device)),
    ):
        mean = x.cpu().mean(0)
        assert mean[0] == 0 and mean[3] == 1
        assert (mean - p[0]).abs().max() < 4.5 * math.sqrt(0.25 / (N // 4))


@pytest.mark.parametrize("p", (0.0, 0.1, 0.75, 1.0))
def test_dropout_scale_and_gradient(device, p):
    torch.manual_seed(10)
    x = torch.linspace(1, 2, N).to(device).requires_grad_()
    y = torch.nn.functional.dropout(x, p, training=True)
    y.sum().backward()
    out, grad, cpu = y.detach().cpu(), x.grad.cpu(), x.detach().cpu()
    kept = out != 0
    assert abs(kept.float().mean() - (1 - p)) <= 4.5 * math.sqrt(p * (1 - p) / N)
    if p < 1:
        torch.testing.assert_close(out[kept], cpu[kept] / (1 - p))
        torch.testing.assert_close(grad, kept / (1 - p))
    else:
        assert (grad == 0).all()


def test_dropout_of_evaluation_is_the_identity(device):
    x = torch.linspace(1, 2, 9).to(device)
    assert torch.equal(torch.nn.functional.dropout(x, 0.5, training=False).cpu(), x.cpu())


def test_dropout_rate_is_no_part_of_the_program(device):
    x = torch.linspace(1, 2, 64).to(device)
    history = []
    for k in range(4):
        y = torch.nn.functional.dropout(x, 0.1 + 0.2 * k)
        torch_xla.sync()
        history.append(compiles())
        assert y.shape == (64,)
    assert history[0] == history[-1]


@pytest.mark.parametrize("variant", ("dropout2d", "feature_alpha_dropout", "alpha_dropout"))
def test_other_dropouts(device, variant):
    torch.manual_seed(12)
    x = torch.ones(40, 50, 2, 2).to(device)
    y = getattr(torch.nn.functional, variant)(x, 0.4, training=True).cpu()
    low, high = y.min(), y.max()
    assert low != high
    if variant != "alpha_dropout":  # whole features share their fate
        assert (y == y[:, :, :1, :1]).all()
    share = (y == high).float().mean()
    assert abs(share - 0.6) < 0.06


@pytest.mark.parametrize("dtype", (torch.int64, torch.int32, torch.float32))
def test_randperm(device, dtype):
    torch.manual_seed(13)
    x = torch.randperm(1000, device=device, dtype=dtype)
    assert x.dtype == dtype
    x = x.cpu()
    assert torch.equal(x.sort().values, torch.arange(1000).to(dtype))
    assert abs(stats.spearmanr(x.numpy(), range(1000)).statistic) < 4 / math.sqrt(1000)
    # The index is a part of the key that is sorted.
    for n in (1023, 1024, 1025, 100_000):
        assert torch.equal(torch.randperm(n, device=device).cpu().sort().values, torch.arange(n))
    assert torch.randperm(0, device=device).shape == (0,)
    assert torch.randperm(1, device=device).tolist() == [0]


def test_randperm_gives_each_permutation_alike(device):
    torch.manual_seed(14)
    drawn = []
    for _ in range(600):
        drawn.append(torch.randperm(3, device=device))
        torch_xla.sync()
    drawn = torch.stack([x.cpu() for x in drawn])
    codes = drawn[:, 0] * 2 + (drawn[:, 1] > drawn[:, 2]).long()
    assert stats.chisquare(torch.bincount(codes, minlength=6).numpy()).pvalue > P


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: torch.empty(2, device=d).uniform_(2, 1), "uniform_"),
        (lambda d: torch.empty(2, device=d).normal_(0, -1), "std"),
        (lambda d: torch.empty(2, device=d).exponential_(-1), "lambda"),
        (lambda d: torch.empty(2, device=d).bernoulli_(1.5), "p to be in"),
        (lambda d: torch.empty(2, device=d).cauchy_(0, 0), "sigma"),
        (lambda d: torch.empty(2, device=d).geometric_(1), "p to be in"),
        (lambda d: torch.empty(2, device=d).log_normal_(0, -1), "std"),
        (lambda d: torch.poisson(torch.ones(2, device=d).long()), "not implemented"),
        (lambda d: torch.randint(3, 3, (2,), device=d), "from"),
        (lambda d: torch.randperm(-1, device=d), "negative"),
        (lambda d: torch.multinomial(torch.ones(3, device=d), 4), "n_sample"),
        (lambda d: torch.multinomial(torch.ones(3, device=d).long(), 1), "floating"),
        (lambda d: torch.multinomial(torch.ones(1, 1, 3, device=d), 1), "dim"),
    ],
)
def test_arguments_are_checked(device, call, message):
    with pytest.raises(RuntimeError, match=message):
        call(device)


def test_no_cpu_fallback(device):
    before = {n: met.counter_value(n) for n in met.executed_fallback_ops()}
    for draw in DRAWS.values():
        draw(device, None)
    torch.nn.functional.dropout(torch.ones(4, device=device), 0.3)
    torch_xla.sync()
    after = {n: met.counter_value(n) for n in met.executed_fallback_ops()}
    assert after == before


def test_gradients_of_samples(device):
    """By the concentration, as PyTorch approximates them, in every part of the plane."""
    alpha = torch.logspace(-2, 2.5, 40, dtype=torch.float64)
    gamma = alpha[:, None] * torch.logspace(-1.5, 0.8, 30, dtype=torch.float64)
    alpha = alpha[:, None].expand(gamma.shape).contiguous()
    torch.testing.assert_close(
        torch._standard_gamma_grad(alpha.to(device), gamma.to(device)).cpu(),
        torch._standard_gamma_grad(alpha, gamma),
        rtol=1e-6,
        atol=1e-9,
    )
    grid = torch.meshgrid(
        torch.tensor([1e-3, 0.02, 0.3, 0.49, 0.55, 0.8, 0.97, 0.999], dtype=torch.float64),
        torch.logspace(-1, 2, 12, dtype=torch.float64),
        torch.logspace(-1, 2, 12, dtype=torch.float64),
        indexing="ij",
    )
    x, a, b = (t.contiguous() for t in grid)
    torch.testing.assert_close(
        torch._dirichlet_grad(x.to(device), a.to(device), (a + b).to(device)).cpu(),
        torch._dirichlet_grad(x, a, a + b),
        rtol=1e-6,
        atol=1e-9,
    )
    concentration = torch.tensor([0.5, 2.0, 9.0], device=device, requires_grad=True)
    torch.distributions.Gamma(concentration, 1.0).rsample().sum().backward()
    assert concentration.grad.isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(U8, -1, 2), (U8, 0, 257), (I8, -129, 3), (torch.bool, -1, 1), (torch.float16, 0, 70000)],
)
def test_random_integers_beyond_the_dtype(dtype: torch.dtype, low: int, high: int) -> None:
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError, match="out of bounds"):
            torch.zeros(3, dtype=dtype, device=device).random_(low, high)


def test_nothing_is_drawn_of_any_dtype() -> None:
    draws = ("normal_", "log_normal_", "exponential_")
    for dtype in (I64, torch.bool, C64):
        for device in ("cpu", "xla"):
            x = torch.zeros(0, 3, dtype=dtype, device=device)
            for draw in draws:
                assert getattr(x, draw)() is x
            assert x.geometric_(0.5) is x and x.bernoulli_(0.5) is x
            assert torch.bernoulli(x).dtype == torch.randn_like(x).dtype == dtype
            if dtype != C64:
                with pytest.raises(NotImplementedError):
                    x.uniform_()


def test_dropout_that_is_not_told_whether_it_trains(device: torch.device) -> None:
    x = torch.ones(200, device=device)
    drop = torch.ops.aten.native_dropout
    assert drop(x, 1.0, None)[0].sum() == 0
    result, kept = drop(x, 0.5, None)
    assert 0 < int(kept.sum()) < 200
    torch.testing.assert_close(result.cpu(), kept.cpu() * 2.0)
    assert drop(x, 0.5, False)[1].all()
