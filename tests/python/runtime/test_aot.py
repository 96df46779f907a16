"""What a plan reads from an optimized program, on the CPU."""

import os

import pytest
import torch
from testing.processes import python_output, start_python, write_script
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_xla import aot
from torch_xla.experimental.scan import scan

BATCH, WIDTH, LAYERS = 64, 48, 5


def test_flops_of_products_and_convolutions(device):
    def convolve(x, w):
        return torch.nn.functional.conv2d(x, w, stride=2, padding=1)

    plan = aot.compile(convolve, (torch.ones(4, 6, 9, 9), torch.ones(8, 6, 3, 3)))
    # 5 x 5 windows; the outer row and column of 3 x 3 taps at each edge see padding.
    assert plan._module.flops() == 2 * 4 * 8 * 6 * (5 * 3 - 2) ** 2
    # The input of the second has its dimensions joined by what lies between.
    x, w = torch.ones(4, 8, 12, 12), torch.ones(8, 8, 1, 1)
    plan = aot.compile(lambda x, w: torch.conv2d(torch.conv2d(x, w).sigmoid(), w), (x, w))
    assert plan._module.flops() == 2 * 2 * x.numel() * 8
    plan = aot.compile(torch.matmul, (torch.ones(BATCH, 32), torch.ones(32, WIDTH)))
    assert plan._module.flops() == 2 * BATCH * 32 * WIDTH
    assert not plan._module.has_loops()


def test_fake_parameters_hold_no_memory(device):
    """A process may have traced a model with fake tensors, as torch.export does."""
    real = torch.nn.Linear(3, 5).to(device)
    with FakeTensorMode():
        fake = torch.nn.Linear(3, 5, device=device)
    plan = aot.compile(real, (torch.ones(2, 3),))
    assert fake.weight.device == device
    assert plan.categories()["parameters"] >= 4 * (3 * 5 + 5)


def test_copies_of_the_library_are_counted(device):
    """oneDNN's, of the larger of two convolutions."""
    x, w = torch.ones(8, 16, 32, 32), torch.ones(16, 16, 3, 3)

    def convolve(x, w):
        return torch.conv2d(torch.conv2d(x, w), w)

    plan = aot.compile(convolve, (x, w))
    targets = {i.target for c in plan._module.computations.values() for i in c}
    copies = 4 * (x.numel() + w.numel() + 8 * 16 * 30 * 30)
    calls = "torch_xla.cpu_convolution" in targets
    assert plan._module.library_copies() == (copies if calls else 0)
    assert calls == (os.environ.get("XLA_CPU_KERNELS") != "0")
    assert plan.temporaries >= plan._module.library_copies()


def test_calls_of_attention_and_recurrent_layers(device):
    """What they compute and copy is as if they were products."""
    if os.environ.get("XLA_CPU_KERNELS") == "0":
        pytest.skip("calls are switched off")
    q = torch.ones(2, 3, 16, 8)
    plan = aot.compile(torch.nn.functional.scaled_dot_product_attention, (q, q, q))
    assert plan._module.flops() == 4 * q.numel() * 16
    assert plan._module.library_copies() == 4 * (q.numel() + 2 * 3 * 16)
    plan = aot.compile(torch.nn.functional.linear, (torch.ones(3, 7), torch.ones(5, 7)))
    assert plan._module.flops() == 2 * 3 * 5 * 7
    lstm = torch.nn.LSTM(5, 7).to(device)
    with torch.no_grad():
        plan = aot.compile(lstm, (torch.ones(11, 3, 5),))
    assert plan._module.flops() == 2 * 11 * 3 * 28 * (5 + 7)


def test_a_loop_counts_as_often_as_it_runs(device):
    def layers(x, weights):
        return scan(lambda carry, w: ((carry @ w).sin(), carry.sum()), x, weights)[0]

    plan = aot.compile(layers, (torch.ones(BATCH, WIDTH), torch.ones(LAYERS, WIDTH, WIDTH)))
    assert plan._module.has_loops()
    assert plan.flops == LAYERS * 2 * BATCH * WIDTH * WIDTH


def test_largest_arrays(tmp_path):
    script = write_script(
        tmp_path,
        "import torch\n"
        "from torch_xla import aot\n"
        "def f(x):\n"
        "    wide = x @ x.T\n"
        "    return (wide @ wide)[0]\n"
        "plan = aot.compile(f, (torch.ones(1024, 8),))\n"
        "for array in plan.largest(2):\n"
        "    print(array.bytes, array.shape, array.line)\n",
    )
    code = f"import runpy; runpy.run_path({script!r})"
    lines = python_output(code, XLA_HLO_DEBUG="1").splitlines()
    assert [line.split(" ", 2)[:2] for line in lines] == [["4194304", "f32[1024,1024]"]] * 2
    assert {line.split(" ", 2)[2] for line in lines} == {
        f"aten::mm at {script}:4",
        f"aten::mm at {script}:5",
    }


def test_a_whole_step_is_planned(device):
    """The optimizer's step does not end the program: gradients are no results of it."""
    model = torch.nn.Linear(WIDTH, 7, bias=False, device=device)
    optimizer = torch.optim.SGD(model.parameters())

    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    plan = aot.compile(step, (torch.ones(3, WIDTH),))
    assert plan.outputs == WIDTH * 7 * 4


def test_peak_by_category(tmp_path):
    """Three products are kept for the backward pass, and an input."""
    script = write_script(
        tmp_path,
        "import torch\n"
        "from torch_xla import aot\n"
        "weights = [torch.nn.Parameter(torch.randn(64, 64, device='xla')) for _ in range(3)]\n"
        "optimizer = torch.optim.Adam(weights)\n"
        "def step(x):\n"
        "    for weight in weights:\n"
        "        x = (x @ weight).sin()\n"
        "    x.sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "step(torch.ones(4, 64, device='xla'))\n"
        "plan = aot.compile(step, (torch.ones(4096, 64),))\n"
        "parts = plan.categories()\n"
        "assert sum(parts.values()) == plan.peak\n"
        "print(parts['parameters'], parts['optimizer state'], parts['other arguments'])\n"
        "print(parts['activations'] / (4 * 4096 * 64))\n"
        "print(plan.batches())\n",
    )
    code = f"import runpy; runpy.run_path({script!r})"
    held, kept, batches = python_output(code, XLA_HLO_DEBUG="1").splitlines()
    parameters, state, others = map(int, held.split())
    assert (parameters, state) == (3 * 4 * 64 * 64, 2 * 3 * 4 * 64 * 64)
    assert 4 * 4096 * 64 <= others < 4 * 4096 * 64 + 1000
    # Of the last product only the cosine.
    assert 2 <= float(kept) <= 6
    assert batches == "None"  # Nothing is known of the CPU's memory.


@pytest.mark.parametrize(
    ("start", "memory"),
    [(1, 1000), (16, 1000), (400, 1000), (7, 50), (7, 9), (8, 9000), (9999, 9000)],
)
def test_search_of_a_batch(start, memory):
    tried = []

    def peak_of(batch):
        tried.append(batch)
        return None if batch > 700 else 40 + 3 * batch + batch // 7

    found = aot._search(peak_of, start, memory)
    assert len(tried) <= 16
    largest = max((b for b in range(1, 701) if (peak_of(b) or 0) <= memory), default=0)
    assert 0.96 * largest <= found <= largest


def test_largest_batch(device):
    model = torch.nn.Linear(8, 8).to(device)

    def step(x):
        model(x).sin().sum().backward()

    def args_of(batch):
        return (torch.ones(batch, 8),)

    largest = aot.largest_batch(step, args_of, start=64, memory=1 << 16)
    assert aot.compile(step, args_of(largest - 1)).peak <= 1 << 16
    assert aot.compile(step, args_of(largest * 21 // 20 + 2)).peak > 1 << 16
    with pytest.raises(ValueError, match="memory of this device is not known"):
        aot.largest_batch(step, args_of)
    with pytest.raises(ValueError, match="expected more memory for a larger one"):
        aot._search(lambda batch: 40, 1, 50)


def test_a_plugin_that_is_not_there_is_told_before_the_script_runs(tmp_path):
    script = write_script(tmp_path, "raise SystemExit('it ran')\n")
    result = start_python(
        "-m",
        "torch_xla.aot",
        script,
        "--topology",
        "v5e:2x2",
        PJRT_TPU_LIBRARY_PATH=str(tmp_path / "libtpu.so"),
    )
    assert result.returncode == 2
    assert "there is no such file" in result.stderr and "Traceback" not in result.stderr
    assert "it ran" not in result.stderr
