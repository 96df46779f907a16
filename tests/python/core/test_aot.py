"""What a plan reads from an optimized program, on the CPU."""

import torch
from process_testing import python_output

from torch_xla import aot
from torch_xla.experimental.scan import scan

BATCH, WIDTH, LAYERS = 64, 48, 5


def test_flops_of_products_and_convolutions(device):
    def convolve(x, w):
        return torch.nn.functional.conv2d(x, w, stride=2, padding=1)

    plan = aot.compile(convolve, (torch.ones(4, 6, 9, 9), torch.ones(8, 6, 3, 3)))
    # 5 x 5 windows; the outer row and column of 3 x 3 taps at each edge see padding.
    assert plan._module.flops() == 2 * 4 * 8 * 6 * (5 * 3 - 2) ** 2
    plan = aot.compile(torch.matmul, (torch.ones(BATCH, 32), torch.ones(32, WIDTH)))
    assert plan._module.flops() == 2 * BATCH * 32 * WIDTH
    assert not plan._module.has_loops()


def test_a_loop_counts_as_often_as_it_runs(device):
    def layers(x, weights):
        return scan(lambda carry, w: ((carry @ w).sin(), carry.sum()), x, weights)[0]

    plan = aot.compile(layers, (torch.ones(BATCH, WIDTH), torch.ones(LAYERS, WIDTH, WIDTH)))
    assert plan._module.has_loops()
    assert plan.flops == LAYERS * 2 * BATCH * WIDTH * WIDTH


def test_largest_arrays(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from torch_xla import aot\n"
        "def f(x):\n"
        "    wide = x @ x.T\n"
        "    return (wide @ wide)[0]\n"
        "plan = aot.compile(f, (torch.ones(1024, 8),))\n"
        "for array in plan.largest(2):\n"
        "    print(array.bytes, array.shape, array.line)\n"
    )
    code = f"import runpy; runpy.run_path({str(script)!r})"
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
