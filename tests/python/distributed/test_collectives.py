"""Every collective, reduction and dtype, over groups of 2 to 4 replicas, against numpy's sums."""

import random
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from testing.executor import count
from testing.replicas import run_replicas

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla import _XLAC

pytestmark = pytest.mark.multiprocess

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)

GROUPS: dict[int, list[Any]] = {
    2: [None, [[1, 0]], [[0], [1]]],
    3: [None, [[2, 0, 1]]],
    4: [None, [[0, 1], [2, 3]], [[3, 0], [2, 1]], [[0, 1, 2, 3]]],
}

SMALL = (3, 12, 2)
# Past what goes with the header; and past a segment of the pipeline.
LARGE = (12, 24, 40)
HUGE = (12, 1024, 401)


class Case(NamedTuple):
    kind: str
    reduction: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    groups: Any
    arguments: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return "/".join(map(str, self))


def reductions(dtype: torch.dtype) -> list[str]:
    if dtype.is_complex:
        return ["sum", "mul"]
    if dtype.is_floating_point:
        return ["sum", "mul", "min", "max"]
    return ["sum", "mul", "min", "max", "and", "or", "xor"]


def make_cases(count: int) -> list[Case]:
    cases = []
    permutations = [
        tuple((i, (i + 1) % count) for i in range(count)),
        ((0, 1),),
        ((0, 0), (1, count - 1)),
    ]
    for groups in GROUPS[count]:
        for dtype in DTYPES if groups is None else (torch.float32, torch.int32, torch.bool):
            for reduction in reductions(dtype):
                cases.append(Case("all_reduce", reduction, dtype, SMALL, groups))
            cases.append(Case("reduce_scatter", "sum", dtype, SMALL, groups, (1,)))
            cases.append(Case("all_gather", "", dtype, SMALL, groups, (1,)))
            cases.append(Case("all_to_all", "", dtype, SMALL, groups, (1, 2)))
            cases.append(Case("broadcast", "", dtype, SMALL, groups))
            if groups is None:
                cases += [Case("permute", "", dtype, SMALL, None, pairs) for pairs in permutations]
        for dtype in (
            (torch.float32, torch.bfloat16, torch.int64) if groups is None else (torch.float32,)
        ):
            for reduction in reductions(dtype):
                cases.append(Case("all_reduce", reduction, dtype, LARGE, groups))
                cases.append(Case("reduce_scatter", reduction, dtype, LARGE, groups, (0,)))
            for dim in (0, 1, 2, -1):
                cases.append(Case("all_gather", "", dtype, LARGE, groups, (dim,)))
            cases.append(Case("reduce_scatter", "sum", dtype, LARGE, groups, (-2,)))
            for dims in ((0, 0), (0, 2), (1, 0), (-3, -1)):
                cases.append(Case("all_to_all", "", dtype, LARGE, groups, dims))
            cases.append(Case("broadcast", "", dtype, LARGE, groups))
            if groups is None:
                cases += [Case("permute", "", dtype, LARGE, None, pairs) for pairs in permutations]
    cases += [
        Case("all_reduce", "sum", torch.float32, HUGE, None),
        Case("reduce_scatter", "sum", torch.float32, HUGE, None, (0,)),
        Case("all_gather", "", torch.float32, (), None, (0,)),
        Case("all_reduce", "sum", torch.float32, (), None),
        Case("all_reduce", "sum", torch.float32, (0, 3), None),
        Case("all_gather", "", torch.float32, (0, 3), None, (1,)),
    ]
    return cases


def make_input(case: Case, rank: int) -> torch.Tensor:
    generator = np.random.default_rng([*case.name.encode(), rank])
    if case.dtype == torch.bool:
        return torch.from_numpy(generator.integers(0, 2, case.shape).astype(bool))
    if case.dtype.is_floating_point or case.dtype.is_complex:
        values = generator.normal(size=case.shape)
        if case.dtype.is_complex:
            values = values + 1j * generator.normal(size=case.shape)
        return torch.as_tensor(np.asarray(values)).to(case.dtype)
    low = 0 if case.dtype in (torch.uint8, torch.uint16) else -100
    values = generator.integers(low, 100, case.shape)
    return torch.as_tensor(np.asarray(values)).to(case.dtype)


def group_of(case: Case, rank: int, count: int) -> list[int]:
    return next((group for group in case.groups or () if rank in group), list(range(count)))


def run_cases(count: int) -> dict[str, torch.Tensor]:
    device = xm.xla_device()
    rank = xm.get_ordinal()
    results = {}
    for case in make_cases(count):
        x = make_input(case, rank).to(device)
        size = len(group_of(case, rank, count))
        if case.kind == "all_reduce":
            result = xm.all_reduce(case.reduction, x, groups=case.groups)
        elif case.kind == "reduce_scatter":
            result = xm.reduce_scatter(
                case.reduction, x, 1.0, case.arguments[0], size, groups=case.groups
            )
        elif case.kind == "all_gather":
            result = xm.all_gather(x, case.arguments[0], groups=case.groups)
        elif case.kind == "all_to_all":
            result = xm.all_to_all(x, *case.arguments, size, groups=case.groups)
        elif case.kind == "broadcast":
            root = group_of(case, rank, count)[-1]
            result = xm.collective_broadcast([x], root, groups=case.groups)[0]
        else:
            result = xm.collective_permute(x, [list(pair) for pair in case.arguments])
        results[case.name] = result
    torch_xla.sync()
    return {name: result.cpu() for name, result in results.items()}


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.double() if tensor.dtype.is_floating_point else tensor).numpy()


REDUCE = {
    "sum": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def expected(case: Case, rank: int, count: int) -> np.ndarray:
    members = group_of(case, rank, count)
    me, size = members.index(rank), len(members)
    inputs = [as_numpy(make_input(case, member)) for member in members]
    if case.kind == "all_gather":
        inputs = [np.atleast_1d(x) for x in inputs]
        return np.concatenate(inputs, case.arguments[0])
    if case.kind == "all_to_all":
        split, concat = case.arguments
        return np.concatenate([np.split(x, size, split)[me] for x in inputs], concat)
    if case.kind == "broadcast":
        return inputs[-1]
    if case.kind == "permute":
        sources = [source for source, target in case.arguments if target == rank]
        return inputs[sources[0]] if sources else np.zeros_like(inputs[me])
    reduced = inputs[0]
    for x in inputs[1:]:
        reduced = REDUCE[case.reduction](reduced, x)
    if case.kind == "reduce_scatter":
        return np.split(reduced, size, case.arguments[0])[me]
    return reduced


# Of a sum or product of four, in units of its size.
TOLERANCE = {
    torch.float32: 1e-6,
    torch.float64: 1e-14,
    torch.bfloat16: 3e-2,
    torch.float16: 4e-3,
    torch.complex64: 1e-6,
    torch.complex128: 1e-14,
}


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.timeout(300)
def test_against_numpy(count, tmp_path):
    results = run_replicas(run_cases, count, tmp_path, count, timeout=240)
    cases = make_cases(count)
    assert len({case.name for case in cases}) == len(cases) == len(results[0])
    wrong = []
    for case in cases:
        for rank in range(count):
            result, reference = results[rank][case.name], expected(case, rank, count)
            assert result.dtype == case.dtype
            assert tuple(result.shape) == reference.shape, case
            tolerance = TOLERANCE.get(case.dtype, 0) * (np.abs(reference).max(initial=1))
            if not np.allclose(as_numpy(result), reference, rtol=0, atol=tolerance):
                wrong.append((rank, case))
    assert not wrong, wrong[:10]


def run_variants() -> dict[str, Any]:
    device = xm.xla_device()
    rank = xm.get_ordinal()
    out: dict[str, Any] = {}

    # A list: in place, of several dtypes and shapes, one node for each dtype.
    before = count("xla::all_reduce")
    tensors = [
        torch.full((2, 3), rank + 1.0, device=device),
        torch.full((70, 80), rank + 2.0, device=device),
        torch.full((5,), rank + 1, dtype=torch.int32, device=device),
        torch.arange(4.0, device=device) * rank,
    ]
    base = torch.zeros(4, 2, device=device)
    view = base[1]
    view += rank + 1
    tensors.append(view)
    versions = [tensor._version for tensor in tensors]
    returned = xm.all_reduce(xm.REDUCE_SUM, tensors, scale=0.5)
    out["list_nodes"] = count("xla::all_reduce") - before
    out["list_same"] = returned is tensors
    out["list_versions"] = all(t._version > v for t, v in zip(tensors, versions, strict=True))
    out["list"] = [tensor.cpu() for tensor in tensors]
    out["list_base"] = base.cpu()

    # A single tensor stays as it is.
    x = torch.full((3,), float(rank), device=device)
    y = xm.all_reduce(xm.REDUCE_SUM, x, scale=2.0)
    out["single"] = (x.cpu(), y.cpu())
    integers = xm.all_reduce(xm.REDUCE_SUM, torch.full((2,), 3, device=device), scale=0.5)
    out["scaled_integers"] = integers.cpu()

    # output=
    gathered = torch.zeros(2 * 2, device=device)
    xm.all_gather(torch.full((2,), float(rank), device=device), output=gathered)
    scattered = torch.zeros(1, device=device)
    xm.reduce_scatter(xm.REDUCE_SUM, torch.arange(2.0, device=device), 3.0, 0, 2, output=scattered)
    out["outputs"] = (gathered.cpu(), scattered.cpu())

    # Steps alike are one program.
    compiles = []
    torch_xla.sync()
    w = torch.ones(10, device=device)
    for _ in range(4):
        w = xm.all_reduce(xm.REDUCE_SUM, w, scale=0.5)
        xm.mark_step()
        xm.wait_device_ops()
        compiles.append(count("UncachedCompile"))
    out["compiles"] = compiles
    out["steps"] = w.cpu()

    # A collective whose result nobody wants runs all the same: the others take part in it.
    del tensors, gathered
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(3, device=device))
    if rank == 0:
        torch_xla.sync(wait=True)
    else:
        out["unused"] = xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device=device)).cpu()
    if rank == 0:
        out["unused"] = xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device=device)).cpu()

    # A read in the middle of a step does not run a collective twice, nor out of order.
    a = xm.all_reduce(xm.REDUCE_SUM, torch.full((4,), rank + 1.0, device=device))
    b = xm.all_gather(a.sum().reshape(1) * (rank + 1))
    c = (a + 1).sum()
    if rank == 0:
        out["read_c"] = c.item()
    d = xm.all_reduce(xm.REDUCE_MAX, b * 2)
    if rank == 1:
        out["read_b"] = b.tolist()
    out["end"] = (a.tolist(), b.tolist(), c.item(), d.tolist())
    return out


def test_variants(tmp_path):
    results = run_replicas(run_variants, 2, tmp_path)
    for rank, out in enumerate(results):
        assert out["list_nodes"] == 2
        assert out["list_same"] and out["list_versions"]
        first, second, third, fourth, view = out["list"]
        assert torch.equal(first, torch.full((2, 3), 1.5))
        assert torch.equal(second, torch.full((70, 80), 2.5))
        assert torch.equal(third, torch.full((5,), 1, dtype=torch.int32))
        assert torch.equal(fourth, torch.arange(4.0) * 0.5)
        assert torch.equal(view, torch.full((2,), 1.5))
        assert torch.equal(out["list_base"][1], view) and out["list_base"][0].sum() == 0
        assert torch.equal(out["single"][0], torch.full((3,), float(rank)))
        assert torch.equal(out["single"][1], torch.full((3,), 2.0))
        assert out["scaled_integers"].tolist() == [3, 3]
        assert out["outputs"][0].tolist() == [0, 0, 1, 1]
        assert out["outputs"][1].tolist() == [6.0 * rank]
        assert out["compiles"][1] == out["compiles"][-1]  # The first one starts from a constant.
        assert torch.equal(out["steps"], torch.ones(10))
        assert out["unused"].tolist() == [2, 2]
        assert out["end"] == ([3.0] * 4, [12.0, 24.0], 16.0, [24.0, 48.0])
    assert results[0]["read_c"] == 16.0
    assert results[1]["read_b"] == [12.0, 24.0]


# ------------------------------------------------------------------------------------ fuzz


def fuzz_step(generator: random.Random, state: list[Any], count: int, run: Any) -> None:
    """One random collective over one of the arrays in ``state``, in place of another."""
    source, target = generator.randrange(len(state)), generator.randrange(len(state))
    kind = generator.choice(["all_reduce", "gather", "permute", "scatter", "broadcast", "local"])
    groups = generator.choice(GROUPS[count])
    shift = generator.randrange(1, count)
    reduction = generator.choice(["sum", "max", "min"])
    state[target] = run(kind, state[source], groups, shift, reduction)


def run_fuzz(count: int, seed: int, steps: int) -> list[np.ndarray]:
    device = xm.xla_device()
    rank = xm.get_ordinal()
    state = [torch.arange(48.0, device=device) * (rank + 1) - 20 * i for i in range(3)]
    shared, own = random.Random(seed), random.Random(f"{seed}/{rank}")

    def run(kind, x, groups, shift, reduction):
        size = len(next((g for g in groups or () if rank in g), range(count)))
        if kind == "all_reduce":
            return xm.all_reduce(reduction, x, scale=0.5, groups=groups)
        if kind == "gather":
            return xm.all_gather(x, groups=groups)[::size].contiguous()
        if kind == "permute":
            return xm.collective_permute(x, [[i, (i + shift) % count] for i in range(count)])
        if kind == "scatter":
            part = xm.reduce_scatter(reduction, x, 0.5, 0, size, groups=groups)
            return part.repeat(size)
        if kind == "broadcast":
            x = x.clone()
            return xm.collective_broadcast([x], shift)[0]
        return x * 0.5 + rank

    for _ in range(steps):
        fuzz_step(shared, state, count, run)
        # What a replica reads, and where it ends its steps, is its own affair.
        choice = own.random()
        if choice < 0.15:
            state[own.randrange(3)].sum().item()
        elif choice < 0.3:
            torch_xla.sync()
    return [x.cpu().numpy() for x in state]


def simulate_fuzz(count: int, seed: int, steps: int) -> list[list[np.ndarray]]:
    state = [
        [np.arange(48, dtype=np.float32) * (r + 1) - 20 * i for r in range(count)] for i in range(3)
    ]

    def members(groups, rank):
        return next((g for g in groups or () if rank in g), list(range(count)))

    def reduced(x, group, reduction):
        total = x[group[0]]
        for member in group[1:]:
            total = REDUCE[reduction](total, x[member])
        return total * np.float32(0.5)

    def run(kind, x, groups, shift, reduction):
        result = []
        for rank in range(count):
            group = members(groups, rank)
            size = len(group)
            if kind == "all_reduce":
                result.append(reduced(x, group, reduction))
            elif kind == "gather":
                result.append(np.concatenate([x[m] for m in group])[::size])
            elif kind == "permute":
                result.append(x[(rank - shift) % count])
            elif kind == "scatter":
                part = np.split(reduced(x, group, reduction), size)[group.index(rank)]
                result.append(np.tile(part, size))
            elif kind == "broadcast":
                result.append(x[shift])
            else:
                result.append(x[rank] * np.float32(0.5) + np.float32(rank))
        return result

    shared = random.Random(seed)
    for _ in range(steps):
        fuzz_step(shared, state, count, run)
    return [[state[i][rank] for i in range(3)] for rank in range(count)]


@pytest.mark.parametrize(("count", "seed"), [(2, 0), (4, 1)])
def test_random_sequences(count, seed, tmp_path):
    steps = 40
    results = run_replicas(run_fuzz, count, tmp_path, count, seed, steps)
    reference = simulate_fuzz(count, seed, steps)
    for rank in range(count):
        for x, y in zip(results[rank], reference[rank], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-4)


# ---------------------------------------------------------------------------- bad arguments


def run_bad_arguments() -> list[tuple[str, str]]:
    device = xm.xla_device()
    x = torch.ones(3, 4, device=device)
    calls = [
        lambda: xm.all_reduce("mean", x),
        lambda: xm.all_reduce("and", x),
        lambda: xm.all_reduce("max", x.to(torch.complex64)),
        lambda: xm.all_reduce("sum", torch.ones(2)),
        lambda: xm.all_reduce("sum", x, groups=[[0]]),
        lambda: xm.all_reduce("sum", x, groups=[[0, 1], [1]]),
        lambda: xm.all_gather(x, dim=2),
        lambda: xm.all_to_all(x, 0, 1, 2),
        lambda: xm.all_to_all(x, 1, 0, 4),
        lambda: xm.reduce_scatter("sum", x, 1.0, 0, 2),
        lambda: xm.reduce_scatter("sum", x, 1.0, 1, 4),
        lambda: xm.collective_permute(x, [[0, 2]]),
        lambda: xm.collective_permute(x, [[0, 1], [1, 1]]),
        lambda: xm.collective_broadcast([x], 2),
        lambda: xm.rendezvous("tag", replicas=[0, 5]),
        lambda: xm.all_reduce("sum", 3.0),
    ]
    errors = []
    for call in calls:
        try:
            call()
        except Exception as error:
            errors.append((type(error).__name__, str(error)))
        else:
            errors.append(("", ""))
    # None of them has left anything behind.
    assert xm.all_reduce("sum", torch.ones(2, device=device)).tolist() == [2, 2]
    return errors


def test_bad_arguments(tmp_path):
    for errors in run_replicas(run_bad_arguments, 2, tmp_path):
        expected_errors = [
            ("ValueError", "'mean'"),
            ("TypeError", "'and'"),
            ("TypeError", "'max'"),
            ("ValueError", "cpu"),
            ("ValueError", "[[0]]"),
            ("ValueError", "[[0, 1], [1]]"),
            ("IndexError", "got 2"),
            ("ValueError", "[3, 4]"),
            ("ValueError", "got 4"),
            ("ValueError", "[3, 4]"),
            ("ValueError", "got 4"),
            ("ValueError", "[[0, 2]]"),
            ("ValueError", "twice"),
            ("ValueError", "got 2"),
            ("ValueError", "[0, 5]"),
            ("TypeError", "float"),
        ]
        for (kind, message), (expected_kind, part) in zip(errors, expected_errors, strict=True):
            assert kind == expected_kind and part in message, (kind, message, part)


def run_asking_while_tracing() -> int:
    value = torch.ones(2, device=xm.xla_device())
    xm.all_reduce(xm.REDUCE_SUM, value).cpu()

    asking = threading.Event()

    def trace() -> None:
        asking.wait(30)
        for _ in range(200):
            xm.all_reduce(xm.REDUCE_SUM, value)

    thread = threading.Thread(target=trace)
    thread.start()
    asked = 0
    while thread.is_alive():
        _XLAC._xla_collective_pending()
        asked += 1
        asking.set()
    thread.join()
    torch_xla.sync(wait=True)
    return asked


def test_asking_for_what_is_pending_does_not_keep_the_interpreter(tmp_path):
    """Tracing, which holds the lock that is asked for, takes the user's line from Python."""
    asked = run_replicas(run_asking_while_tracing, 2, tmp_path, timeout=60, XLA_IR_DEBUG="1")
    assert min(asked) > 0
