"""The executor: what runs when, what errors do, what the environment changes."""

import copy
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch
from testing.executor import compiles, executed_on_device, executions, model, out_of_memory
from testing.processes import run_python, start_python

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC

# ------------------------------------------------------------------ what runs when


def test_a_loop_that_reads_something_else_is_cut_by_its_rounds(device: torch.device) -> None:
    """As generate() without an end token: whether all have ended says nothing of the tokens."""
    torch_xla.sync(wait=True)
    x, expected = torch.ones(3, device=device), torch.ones(3)
    ended = torch.zeros(3, dtype=torch.int64, device=device)
    before, after = compiles(), []
    for _ in range(8):
        for _ in range(80):
            x, expected = (x * 0.5).cos(), (expected * 0.5).cos()
        assert not bool(ended.max() != 0)
        after.append(compiles() - before)
    # What is read, two rounds, one round.
    assert after[-1] <= 4 and after[2] == after[-1]
    assert _XLAC._get_xla_tensors_text([x]).count("cos") == 0
    torch.testing.assert_close(x.cpu(), expected)


def test_reads_that_need_the_same_again_compute_all(device: torch.device) -> None:
    """As Adafactor, which reads a norm of each gradient."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4) for _ in range(16)]
    expected = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.Tanh())))
    net = copy.deepcopy(expected).to(device)
    x = torch.ones(3, 4)
    torch_xla.sync(wait=True)
    expected(x).sum().backward()
    net(x.to(device)).sum().backward()
    before = compiles()
    for ours, theirs in zip(net.parameters(), expected.parameters(), strict=True):
        assert ours.grad.norm().item() == pytest.approx(theirs.grad.norm().item(), rel=1e-4)
    # One, all, a norm of each of two shapes.
    assert compiles() - before <= 4


def test_what_fails_is_told_by_its_own_read(device: torch.device) -> None:
    """And not by the read of another tensor in a loop, which cuts what is pending."""
    torch_xla.sync(wait=True)
    bad = torch.ones(3, device=device).to(torch.complex32)
    x, ended = torch.ones(3, device=device), torch.zeros(3, device=device)
    for _ in range(6):
        for _ in range(80):
            x = (x * 0.5).cos()
        assert not bool(ended.max() != 0)
    with pytest.raises(NotImplementedError, match="ComplexHalf"):
        bad.cpu()


def test_reads_between_steps_cut_nothing(device: torch.device) -> None:
    torch_xla.sync(wait=True)
    x = torch.ones(3, device=device)
    ended = torch.zeros(3, dtype=torch.int64, device=device)
    for _ in range(4):
        for _ in range(80):
            x = (x * 0.5).cos()
        assert not bool(ended.max() != 0)
        assert _XLAC._get_xla_tensors_text([x]).count("cos") == 80
        torch_xla.sync()


class SlowStep:
    """Overwrites its state by a chain of matrix products: tens of milliseconds."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        self.state = (torch.rand(600, 600, generator=generator) / 300).to(device)
        self.weight = (torch.rand(600, 600, generator=generator) / 300).to(device)

    def trace(self) -> None:
        x = self.state
        for _ in range(12):
            x = x @ self.weight
        self.state.copy_(x)


def test_sync_returns_long_before_a_donating_step_is_done(device):
    step = SlowStep(device)
    step.trace()
    torch_xla.sync(wait=True)
    shares = []
    for _ in range(7):
        step.trace()
        start = time.perf_counter()
        torch_xla.sync()
        returned = time.perf_counter()
        xm.wait_device_ops()
        shares.append((returned - start) / (time.perf_counter() - start))
    assert min(shares) < 0.1, shares  # Other processes may hold up the rest.


def test_tracing_runs_ahead_of_the_device(device):
    step = SlowStep(device)
    step.trace()
    torch_xla.sync(wait=True)
    shares = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(3):
            step.trace()
            torch_xla.sync()
        returned = time.perf_counter()
        xm.wait_device_ops()
        shares.append((returned - start) / (time.perf_counter() - start))
    assert min(shares) < 0.2, shares


@pytest.mark.parametrize("wait", [False, True])
def test_waiting_returns_when_the_device_is_done(device, wait):
    step = SlowStep(device)
    before = executed_on_device()
    step.trace()
    torch_xla.sync(wait=wait)
    if not wait:
        xm.wait_device_ops()
    assert executed_on_device() == before + 1


def test_nothing_runs_before_it_is_needed(device):
    a = torch.ones(5).to(device)
    before = executions()
    b = a + a
    c = b.view(5, 1).expand(5, 2)
    d = torch.zeros(3, device=device)
    assert (b.shape, c.shape, d.dtype) == ((5,), (5, 2), torch.float32)
    repr(c.size())
    assert executions() == before


def test_reading_runs_only_what_the_value_needs(device):
    a = torch.arange(4.0).to(device)
    needed = a * 3
    other = torch.randn(4, device=device) @ torch.randn(4, device=device)
    hlo = _XLAC._get_xla_tensors_hlo([needed])
    assert "multiply" in hlo and "rng" not in hlo and "dot" not in hlo
    before = executions()
    assert needed.tolist() == [0, 3, 6, 9]
    assert executions() == before + 1
    assert "aten::dot" in _XLAC._get_xla_tensors_text([other])  # still to be run


def test_reading_twice_runs_once(device):
    a = torch.arange(4.0).to(device)
    b = a * 3
    before = executions()
    b.tolist()
    b.tolist()
    assert b[1].item() == 3  # a view of it runs its own slice
    assert executions() <= before + 2


def test_reading_leaves_the_rest_of_the_graph(device):
    a = torch.arange(4.0).to(device)
    b = a * 3
    c = b + 1
    d = a - 5
    text = _XLAC._get_xla_tensors_text([d])
    assert c.tolist() == [1, 4, 7, 10]
    assert _XLAC._get_xla_tensors_text([d]) == text
    # Computed on the way to c, and kept.
    assert "device_data" in _XLAC._get_xla_tensors_text([b])
    torch_xla.sync()
    assert "aten::mul" not in _XLAC._get_xla_tensors_text([b])
    assert (b.tolist(), d.tolist()) == ([0, 3, 6, 9], [-5, -4, -3, -2])


def test_sync_gives_every_tensor_its_value_in_one_execution(device):
    a = torch.arange(4.0).to(device)
    tensors = [a * k for k in (2.0, 3.0, 4.0)]
    before = executions()
    torch_xla.sync()
    assert executions() == before + 1
    assert [t.tolist()[1] for t in tensors] == [2, 3, 4]
    assert executions() == before + 1


def test_empty_sync_runs_nothing(device):
    before = executions()
    torch_xla.sync()
    torch_xla.sync(wait=True)
    assert executions() == before


def test_dead_tensors_are_not_computed(device):
    a = torch.arange(4.0).to(device)
    b = a * 2
    dead = torch.randn(64, 64, device=device) @ torch.randn(64, 64, device=device)
    del dead
    before = compiles(), executions()
    torch_xla.sync()
    assert executions() == before[1] + 1
    # The same program as without the dead tensor.
    c = a * 2
    torch_xla.sync()
    assert compiles() <= before[0] + 1
    assert b.tolist() == c.tolist()


def test_unlazy_computes_given_tensors_only(device):
    a = torch.arange(4.0).to(device)
    b, c = a * 2, a * 3
    xm.unlazy([b])
    assert "device_data" in _XLAC._get_xla_tensors_text([b])
    assert "aten::mul" not in _XLAC._get_xla_tensors_text([b])
    assert "aten::mul" in _XLAC._get_xla_tensors_text([c])


def test_graph_is_freed_by_sync(device):
    a = torch.arange(4.0).to(device)
    alive = weakref.ref(a)
    b = a * 2
    del a
    torch_xla.sync(wait=True)
    assert alive() is None
    assert b.tolist() == [0, 2, 4, 6]


# ------------------------------------------------------------------ errors


def test_read_reports_a_failed_step(device, no_failure_left):
    big = out_of_memory(device)
    small = torch.arange(3.0).to(device) + 1
    torch_xla.sync()
    with pytest.raises(RuntimeError, match="(?i)memory"):
        big[0, 0].item()
    # Reported once; the tensors of that step stay without a value.
    torch_xla.sync(wait=True)
    with pytest.raises(RuntimeError, match="(?i)memory"):
        small.cpu()
    del big, small
    torch_xla.sync(wait=True)
    assert (torch.arange(3.0).to(device) * 2).tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    "wait", [lambda: torch_xla.sync(wait=True), xm.wait_device_ops], ids=["sync", "wait"]
)
def test_sync_reports_a_failed_step_once(device, no_failure_left, wait):
    big = out_of_memory(device)
    torch_xla.sync()
    with pytest.raises(RuntimeError, match="(?i)memory"):
        wait()
    wait()
    assert (torch.arange(3.0).to(device) * 2).tolist() == [0, 2, 4]
    del big


class Train:
    """Steps of the same network on the device and on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.net = model(torch.device("cpu"), 4)
        self.nets = [self.net, copy.deepcopy(self.net).to(device)]
        self.optimizers = [torch.optim.AdamW(net.parameters(), lr=0.1) for net in self.nets]

    def step(self, i: int, between: Callable[[], None] = lambda: None) -> None:
        x = torch.linspace(-1, i + 1.0, 32).view(4, 8)
        for net, optimizer in zip(self.nets, self.optimizers, strict=True):
            optimizer.zero_grad()
            there = next(net.parameters()).device
            net(x.to(there)).square().sum().backward()
            if there == self.device:
                between()
            optimizer.step()
        torch_xla.sync()

    def check(self) -> None:
        for a, b in zip(*(net.parameters() for net in self.nets), strict=True):
            torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-5)


def refuse() -> None:
    raise KeyError("in the middle of a step")


def fail_to_compile(device: torch.device) -> None:
    torch_xla.set_custom_compile_options({"xla_there_is_no_such_option": 1})
    try:
        (torch.ones(7, device=device) * 3 + 1).tolist()
    finally:
        torch_xla.set_custom_compile_options({})


def fail_in_a_backward_pass(device: torch.device) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: refuse())
    y.sum().backward()


FAILURES: dict[str, Callable[[torch.device], object]] = {
    "no memory, read": lambda device: out_of_memory(device)[0, 0].item(),
    "no memory, waited for": lambda device: [
        big := out_of_memory(device),
        torch_xla.sync(wait=True),
        big,
    ],
    "refused when it is called": lambda device: (
        torch.ones(2, 2, device=device) @ torch.ones(3, 3, device=device)
    ),
    "refused when it runs": lambda device: torch.linalg.cholesky(
        -torch.eye(3, device=device)
    ).tolist(),
    "not compiled": fail_to_compile,
    "in a hook": fail_in_a_backward_pass,
    "by the user": lambda device: refuse(),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_training_goes_on_after_a_failure(device, no_failure_left, kind):
    """Between two steps, and in the middle of one."""
    train = Train(device)
    train.step(0)
    with pytest.raises((RuntimeError, KeyError)):
        FAILURES[kind](device)
    train.step(1)
    train.check()

    def fail() -> None:
        torch_xla.sync()
        with pytest.raises((RuntimeError, KeyError)):
            FAILURES[kind](device)

    train.step(2, fail)
    train.step(3)
    train.check()


def test_a_failure_under_a_recording(tmp_path):
    """A replayed function reads what a program that failed should have made: no call hangs."""
    code = """
    import torch.nn as nn
    net = nn.Linear(4, 4).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    fails = True
    def step(x):
        if fails:
            column = torch.arange(1e5).to(device)
            whole = column[:, None] * torch.full((1, 10**10), 2.0, device=device)
            torch_xla.sync()
            return (whole[0, :4] + x).sum().item()
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        return x * 2
    replayed = torch_xla.compile(step, replay=True)
    errors = 0
    for _ in range(6):
        try:
            replayed(torch.ones(4, device=device))
        except RuntimeError as error:
            errors += "emory" in str(error)
    fails = False
    values = [replayed(torch.ones(4, device=device)).tolist() for _ in range(6)]
    torch_xla.sync(wait=True)
    report(errors=errors, values=values, weights=bool(net.weight.isfinite().all()))
    """
    found, _ = run_python(code, tmp_path, timeout=60)
    assert found == {"errors": 6, "values": [[2.0] * 4] * 6, "weights": True}


def test_too_large_tensors_are_errors(device):
    with pytest.raises(RuntimeError):
        torch.empty(10**15, device=device).cpu()
    with pytest.raises(RuntimeError):
        torch.zeros(2**62, device=device).cpu()
    with pytest.raises(RuntimeError):
        torch.zeros(2**40, 2**40, device=device)
    with pytest.raises(RuntimeError, match="negative"):
        torch.zeros(-1, device=device)
    assert (torch.arange(3.0).to(device) * 2).tolist() == [0, 2, 4]


def test_a_failed_op_leaves_the_graph_intact(device):
    a = torch.arange(6.0).view(2, 3).to(device)
    b = a + 1
    with pytest.raises(RuntimeError):
        a @ a
    with pytest.raises(RuntimeError):
        a.add_(torch.ones(5, device=device))
    with pytest.raises(RuntimeError):
        a + torch.ones(2, 3)
    with pytest.raises(IndexError):
        a[5]
    torch_xla.sync()
    assert b.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert a.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_what_cannot_be_lowered_raises_at_the_call(device, no_failure_left):
    a, b = torch.ones(2, 2).to(device), torch.ones(2, 2, dtype=torch.float64).to(device)
    good = a + 1
    with pytest.raises(RuntimeError, match="same dtype, but got: float != double"):
        a @ b
    torch_xla.sync()
    assert good.tolist() == [[2, 2], [2, 2]]


# ------------------------------------------------------------------ environment


BF16_SCRIPT = """
    cpu = torch.tensor([1 / 3, 1.00390625, 3.14159265, 1e30])
    x = cpu.to(device)
    y = x * 3
    double = torch.tensor([1 / 3, 1.00390625], dtype=torch.float64).to(device)
    half = torch.tensor([1 / 3], dtype=torch.float16).to(device)
    integers = torch.arange(300).to(device)
    values = x.cpu()
    report(
        dtype=str(x.dtype), result_dtype=str((x + 1).dtype), cpu_dtype=str(values.dtype),
        rounded=bool(torch.equal(values, cpu.bfloat16().float())),
        product=y.cpu().tolist(), double=double.cpu().tolist(), double_dtype=str(double.dtype),
        half=half.cpu().item(), sum=integers.sum().item(), item=x[0].item(),
        mean=torch.full((10,), 0.5, device=device).mean().item(),
        hlo="bf16" in _XLAC._get_xla_tensors_hlo([x * 2]),
        scaled=(x * 0.1).dtype == torch.float32,
        step=[float(v) for v in torch.optim.SGD([torch.nn.Parameter(x)], lr=0.1).param_groups[0]
              ["params"][0].detach().cpu()[:1]],
    )
"""


def test_float16_behind_float32_is_refused():
    """Lightning's `precision="16-true"` sets the variable before there is a client."""
    code = "import torch, torch_xla; torch.ones(1, device='xla').cpu()"
    result = start_python("-c", code, XLA_USE_F16="1")
    assert result.returncode != 0 and "XLA_USE_F16 is not supported" in result.stderr


@pytest.mark.parametrize("variable", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16"])
def test_bf16_behind_float32(tmp_path, variable):
    result, _ = run_python(BF16_SCRIPT, tmp_path, **{variable: "1"})
    assert result["dtype"] == result["result_dtype"] == result["cpu_dtype"] == "torch.float32"
    assert result["rounded"] and result["hlo"] and result["scaled"]
    third = torch.tensor(1 / 3).bfloat16()
    assert result["item"] == third.float().item()
    assert result["product"][0] == (third * 3).float().item()
    assert result["double_dtype"] == "torch.float64"
    if variable == "XLA_USE_BF16":
        double = torch.tensor([1 / 3, 1.00390625]).bfloat16().tolist()
    else:
        double = torch.tensor([1 / 3, 1.00390625]).tolist()
    assert result["double"] == double
    assert result["half"] == torch.tensor(1 / 3).half().item()
    assert result["sum"] == 44850
    assert result["mean"] == 0.5


def test_two_devices(tmp_path):
    result, _ = run_python(
        """
        second = xm.xla_device(1)
        xm.xla_device(0)
        a = torch.arange(4.0).to("xla:1")
        b = torch.arange(4.0).to("xla:0")
        c = a * 2          # on 1
        d = (b + 1).to(second)  # traced on 0, copied to 1
        e = c + d
        b.copy_(e)         # back to 0
        try:
            a + b
            mixed = "no error"
        except RuntimeError as error:
            mixed = str(error)
        net = torch.nn.Linear(4, 2).to(second)
        net(a[None]).sum().backward()
        xm.xla_device(1)
        torch_xla.sync(wait=True)
        default = str(torch.ones(1, device="xla").device)
        report(
            count=torch_xla.device_count(), device=str(a.device), e=e.tolist(), b=b.tolist(),
            e_device=str(e.device), b_device=str(b.device), mixed=mixed, default=default,
            grad=str(net.weight.grad.device), memory=xm.get_memory_info("xla:1")["bytes_used"],
            rng=[torch.rand(3, device=f"xla:{i}").tolist() for i in (0, 1)],
        )
        """,
        tmp_path,
        CPU_NUM_DEVICES="2",
    )
    assert result["count"] == 2
    assert (result["device"], result["e_device"], result["b_device"]) == ("xla:1", "xla:1", "xla:0")
    assert result["e"] == result["b"] == [1, 4, 7, 10]
    assert "xla:0" in result["mixed"] and "xla:1" in result["mixed"]
    assert result["default"] == result["grad"] == "xla:1"
    assert result["memory"] > 0


def test_debug_variables_name_the_line(tmp_path):
    result, errors = run_python(
        """
        a = torch.arange(4.0).to(device)
        b = a + 2  # LINE-ADD
        text = _XLAC._get_xla_tensors_text([b])
        x = torch.linspace(-1, 1, 4).to(device)
        for _ in range(3):
            y = torch.igamma(x.abs() + 1, x.abs())  # LINE-IGAMMA
        def inner(x):
            return torch.igamma(x, x)
        inner(x)
        report(text=text, y=y.tolist())
        """,
        tmp_path,
        XLA_CPU_KERNELS="0",  # As on other platforms, igamma is then not lowered.
        XLA_IR_DEBUG="1",
        PT_XLA_DEBUG="1",
    )
    script = tmp_path / "script.py"
    lines = script.read_text().splitlines()
    add, igamma = (
        1 + next(i for i, line in enumerate(lines) if f"LINE-{name}" in line)
        for name in ("ADD", "IGAMMA")
    )
    assert f"{script}:{add}" in result["text"]
    warnings = [line for line in errors.splitlines() if "Op(s) not lowered: aten::igamma" in line]
    assert len(warnings) == 1, errors
    assert warnings[0].startswith("pt-xla-profiler: Op(s) not lowered: aten::igamma")
    assert f"{script}:{igamma}" in warnings[0]


# ------------------------------------------------------------------ endurance


def test_deep_graphs(device):
    a = torch.ones(2).to(device)
    x = a
    for _ in range(20_000):
        x = x + a
    # Walked, printed, lowered and freed without recursion. (Compiling such a chain is
    # quadratic in XLA:CPU.)
    assert _XLAC._get_xla_tensors_text([x]).count("aten::add") == 20_000
    assert _XLAC._get_xla_tensors_hlo([x]).count("stablehlo.add") == 20_000
    del x
    y = a
    for _ in range(500):
        y = y + a
    assert y.tolist() == [501, 501]


def test_two_threads_trace_and_sync(device):
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            x = torch.zeros(3, device=device)
            for i in range(100):
                x.add_(k)
                y = x * 2
                if i % 5 == 0:
                    torch_xla.sync()
                if i % 20 == 0:
                    assert y.tolist() == [2.0 * k * (i + 1)] * 3
            assert x.tolist() == [100.0 * k] * 3
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    for _ in range(4):
        threads = [threading.Thread(target=work, args=(k,)) for k in (2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    assert not failures, failures


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_stays_flat_over_a_thousand_steps(device):
    net = model(device, 16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    batches = [torch.rand(4, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]

    def steps(n: int) -> tuple[int, int]:
        for i in range(n):
            optimizer.zero_grad()
            loss = net(batches[i % 4].to(device)).square().sum()
            loss.backward()
            optimizer.step()
            schedule.step()
            torch_xla.sync()
        loss.item()
        del loss
        xm.wait_device_ops()
        gc.collect()
        return resident_bytes(), xm.get_memory_info()["bytes_used"]

    steps(300)  # caches of all kinds fill, the allocator settles
    before = compiles()
    host, used = steps(10)
    host_after, used_after = steps(1000)
    assert used_after == used
    assert compiles() == before
    # A leaked graph node is about 200 bytes, a step has some 150: 1,000 steps leak 30 MB.
    assert host_after - host < 8e6


def test_reading_in_a_loop_compiles_once():
    """What is computed on the way to a value that is read is kept, so no program grows."""
    x = torch.ones(3, device=xm.xla_device())
    y = torch.zeros(3, device=xm.xla_device())
    torch_xla.sync()
    values, compiles = [], []
    for _ in range(6):
        x = x * 2
        y = y + x
        values.append(y.sum().item())
        compiles.append(met.metric_data("CompileTime")[0])
    assert values == [6.0, 18.0, 42.0, 90.0, 186.0, 378.0]
    assert compiles[-1] == compiles[1]
