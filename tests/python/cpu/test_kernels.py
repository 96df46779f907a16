"""The table of kernels: some operations call ATen on the CPU, where programs may call libraries."""

import os
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from testing.kernels import CALLS, chosen, needs_calls
from testing.ops import BF16, INF, NAN, check_many, rand
from testing.processes import python_output, run_tests

import torch_xla.core.xla_model as xm
from torch_xla import _XLAC
from torch_xla.stablehlo import exported_program_to_stablehlo

FOLDER = os.path.dirname(__file__)
TARGET = "torch_xla.cpu_convolution"
# Work for several threads, cut along the batch or along the channels.
SHAPES = [
    ((4, 16, 16, 16), (32, 16, 3, 3), {"padding": 1}),
    ((1, 16, 32, 32), (32, 16, 3, 3), {"stride": 2}),  # a batch of one
    ((2, 128, 3, 3), (131, 128, 3, 3), {"padding": 1}),  # more weights than inputs
    ((3, 1, 40, 40), (33, 1, 7, 7), {"padding": 3, "dilation": 2}),
    ((8, 16, 12, 12), (32, 4, 3, 3), {"padding": 1, "groups": 4}),
    ((4, 16, 200), (64, 16, 9), {"stride": 2, "padding": 4}),
    ((2, 8, 9, 10, 11), (16, 8, 3, 3, 3), {"padding": 1}),
    # An image for each thread, of which ATen would take a slow product.
    ((2, 32, 5, 8, 9), (48, 32, 3, 3, 3), {"padding": 1}),
    ((2, 48, 14, 15), (32, 48, 3, 3), {"padding": (1, 0)}),
    ((4, 192, 2, 2), (131, 192, 1, 1), {"padding": 1}),  # few pixels, one weight a channel
    ((8, 64, 7), (128, 64, 1), {}),
    ((4, 64, 1, 2, 3), (192, 64, 1, 1, 1), {}),
    # To few channels: the gradient is folded.
    ((5, 3, 40, 41), (16, 3, 5, 3), {"stride": (2, 3), "padding": (2, 1)}),
    ((3, 2, 33, 30), (24, 2, 3, 3), {"dilation": (3, 2), "padding": (4, 0)}),
    ((17, 16, 16, 16), (32, 16, 3, 3), {"stride": 2, "padding": 1}),
    ((6, 32, 24, 24), (48, 32, 1, 1), {"stride": 2}),
    ((9, 5, 100), (20, 5, 7), {"stride": 4, "padding": 9}),
    ((2, 1, 3, 300), (8, 1, 3, 9), {"padding": (5, 12)}),  # a row sees nothing of the image
]
TRANSPOSED = [
    ((4, 32, 8, 8), (32, 16, 4, 4), {"stride": 2, "padding": 1}),
    ((1, 32, 9, 9), (32, 24, 3, 3), {"stride": 2, "output_padding": 1}),
    ((3, 32, 20, 20), (32, 3, 4, 4), {"stride": 2, "padding": 1}),
    ((3, 16, 20, 20), (16, 1, 5, 5), {"stride": 3, "output_padding": 2}),
]


def convolutions(cases, functions):
    return [(functions[len(x) - 2], (rand(*x), rand(*w)), options) for x, w, options in cases]


def test_convolutions_in_parts() -> None:
    forward = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
    cases = convolutions(SHAPES, forward) + convolutions(TRANSPOSED, {2: F.conv_transpose2d})
    for case in cases:
        check_many([case], rtol=1e-4, atol=1e-3, grad=True)


def test_gradients_that_are_folded() -> None:
    """Of few pixels and taps, of more than vectors have, and of what is left behind them."""
    sizes = [(1, 1), (1, 3), (2, 2), (3, 3), (1, 7), (5, 3), (4, 4), (9, 5), (8, 8), (7, 11)]
    shapes = [
        (2, (1, 2, 3, 8)[i % 4], (3, 1, 17)[i % 3], 1 + i % 3, height, width, 1 + i % 2)
        for i, (height, width) in enumerate(sizes)
    ]
    cases = [
        (F.conv2d, (rand(n, c, h, w), rand(o, c, k, k)), {"padding": k // 2, "stride": stride})
        for n, c, o, k, h, w, stride in shapes
    ]
    check_many(cases, rtol=1e-4, atol=1e-4, grad=True)


def with_biases(sizes):
    """Convolutions with a bias, and a third of them without."""
    forward = {1: F.conv1d, 2: F.conv2d}
    cases = [
        (
            forward[len(image)],
            (rand(n, c * options.get("groups", 1), *image), rand(o, c, *kernel), rand(o)),
            options,
        )
        for n, c, o, image, kernel, options in sizes
    ]
    return cases + [(f, (x, w), options) for f, (x, w, _), options in cases[::3]]


def test_convolutions_of_few_pixels() -> None:
    """To 64 in all images together, and to 512 for the gradient of many weights."""
    sizes = [
        # images, channels, outputs, image, kernel, options
        (4, 70, 67, (4, 4), (3, 3), {"padding": 1}),
        (16, 96, 131, (2, 2), (3, 3), {"padding": 1}),  # most of what it sees is padding
        (3, 130, 65, (3, 5), (3, 2), {"padding": (2, 0)}),
        (4, 260, 140, (4, 4), (1, 1), {"stride": 2}),
        (1, 64, 33, (7, 7), (5, 5), {"padding": 2, "stride": (1, 2)}),
        (2, 33, 64, (5, 4), (3, 3), {"padding": 3, "dilation": (3, 2)}),
        (5, 320, 9, (1, 1), (1, 1), {}),
        (1, 64, 16, (1, 1), (3, 3), {"padding": 1}),
        (8, 128, 257, (4, 4), (3, 3), {"padding": 1}),  # 128 pixels
        (7, 36, 40, (9,), (4,), {"padding": 2}),
        (2, 12, 8, (6, 5), (2, 2), {"stride": 2}),
        (64, 100, 3, (1, 1), (1, 1), {"padding": 0}),
    ]
    cases = with_biases(sizes)
    cases += [(F.conv_transpose2d, (rand(4, 96, 3, 3), rand(96, 40, 2, 2)), {"stride": 2})]
    check_many(cases, rtol=1e-4, atol=1e-3, grad=True)


def test_small_convolutions() -> None:
    """All weights on each thread, which takes a few images at a time."""
    sizes = [
        # images, channels, outputs, image, kernel, options
        (17, 3, 16, (12, 13), (3, 3), {"padding": 1, "stride": 2}),
        (33, 5, 7, (9, 10), (3, 2), {"padding": (2, 1), "stride": (1, 3)}),
        (70, 16, 33, (8, 8), (3, 3), {"padding": 1}),
        (20, 8, 24, (11, 9), (5, 5), {"padding": 4, "dilation": (2, 1), "stride": (2, 2)}),
        (12, 40, 20, (10, 10), (1, 1), {}),
        (9, 33, 20, (15, 9), (1, 1), {"stride": 2}),
        (30, 6, 10, (50,), (7,), {"padding": 3, "stride": 4}),
        (6, 1, 4, (33, 40), (2, 3), {"dilation": 5}),
        (40, 2, 3, (5, 5), (5, 5), {"padding": 4}),
        (10, 4, 4, (9, 9), (3, 3), {"stride": 3, "padding": 3}),  # rows of padding alone
        (10, 3, 4, (20, 20), (1, 1), {"stride": 7, "padding": 1}),
    ]
    check_many(with_biases(sizes), rtol=1e-4, atol=1e-3, grad=True)


def test_convolutions_by_tiles() -> None:
    """Winograd's: each thread has tiles, or where there are few of these, channels."""
    sizes = [
        # images, channels, outputs, image, kernel, options
        (2, 33, 17, (11, 30), (3, 3), {"padding": 1}),
        (1, 16, 16, (65, 40), (3, 3), {}),
        (4, 64, 48, (9, 9), (3, 3), {"padding": 2}),
        (16, 20, 16, (15, 16), (3, 3), {"padding": 1}),  # strips of several images
        (2, 130, 70, (6, 5), (3, 3), {"padding": 1}),  # channels, as all from here
        (3, 100, 161, (7, 8), (3, 3), {"padding": 1}),
        (20, 160, 300, (3, 3), (3, 3), {"padding": 2}),
        (6, 256, 128, (4, 4), (3, 3), {"padding": 1}),  # a gradient of many weights
        # four phases
        (16, 33, 40, (17, 20), (4, 4), {"padding": 1, "stride": 2}),
        (4, 40, 18, (27, 30), (4, 4), {"padding": (0, 3), "stride": 2}),
        (3, 100, 161, (12, 13), (4, 4), {"padding": 1, "stride": 2}),
        (2, 130, 70, (15, 10), (4, 4), {"padding": (2, 1), "stride": 2}),
        (3, 160, 160, (24, 23), (4, 4), {"padding": 1, "stride": 2}),  # tiles in groups
    ]
    cases = with_biases(sizes)
    options = {"padding": 1, "stride": 2, "output_padding": (0, 1)}
    cases += [
        (F.conv_transpose2d, (rand(n, c, *image), rand(c, o, 4, 4), rand(o)), options)
        for n, c, o, image in ((8, 40, 33, (10, 9)), (3, 170, 96, (5, 6)))
    ]
    check_many(cases, rtol=1e-4, atol=1e-3, grad=True)


def test_convolutions_in_small_groups() -> None:
    sizes = [
        # images, channels of a group, outputs, image, kernel, options
        (3, 1, 20, (28, 27), (3, 3), {"padding": 1, "groups": 20}),
        (2, 1, 18, (13, 30), (7, 7), {"padding": 3, "groups": 18}),
        (2, 1, 36, (14, 14), (3, 3), {"padding": 1, "stride": 2, "groups": 12}),
        (3, 4, 12, (9, 11), (3, 3), {"padding": 1, "groups": 3}),
        (2, 2, 24, (20, 9), (5, 4), {"padding": (5, 0), "stride": (3, 1), "groups": 6}),
        (2, 2, 10, (17, 17), (2, 3), {"dilation": (4, 3), "padding": 1, "groups": 2}),
        (4, 1, 9, (50,), (4,), {"padding": 2, "groups": 9}),
        (4, 2, 9, (31,), (5,), {"padding": 1, "stride": 2, "groups": 3}),
        (1, 1, 6, (5, 5), (1, 1), {"stride": 3, "groups": 6}),
    ]
    check_many(with_biases(sizes), rtol=1e-4, atol=1e-3, grad=True)


def test_convolutions_of_what_is_not_finite() -> None:
    """Tiles and planes take up more than an output sees: it must not show."""

    def spoiled(tensor, *positions):
        for position, value in positions:
            tensor[position] = value
        return tensor

    x = spoiled(
        rand(2, 20, 18, 18), ((0, 3, 4, 5), INF), ((1, 0, 0, 0), NAN), ((1, 7, 17, 9), -INF)
    )
    small, whole = rand(20, 1, 3, 3), rand(2, 20, 18, 18)
    dense = [(x, rand(24, 20, 3, 3)), (whole, spoiled(rand(24, 20, 3, 3), ((2, 5, 1, 1), INF)))]
    phases = [(x, rand(28, 20, 4, 4)), (whole, spoiled(rand(28, 20, 4, 4), ((2, 5, 0, 3), INF)))]
    planes = [(x, small), (whole, spoiled(small.clone(), ((4, 0, 2, 0), INF)))]
    kinds = (dense, 1, 1), (phases, 1, 2), (planes, 20, 1), (planes, 20, 2)
    cases = [
        (F.conv2d, pair, {"groups": groups, "stride": stride})
        for pairs, groups, stride in kinds
        for pair in pairs
    ]
    check_many(cases, rtol=1e-4, atol=1e-3, grad=True)


def test_transpositions_in_parts() -> None:
    """Those that leave the cache, read by what is elementwise, by reductions and by calls."""

    def read(x, *permutation):
        y = x.permute(permutation)
        z = (y + y.flatten(1).view(y.shape)) * 2
        return z, y.amax(-1), y.contiguous().view(-1)[1:] if y.dim() > 2 else y.logical_not().t()

    cases = [
        (read, (x, *permutation))
        for x, permutation in (
            (rand(600, 512), (1, 0)),
            (rand(1030, 512, dtype=torch.float64), (1, 0)),
            (rand(2, 100, 32, 32), (0, 2, 3, 1)),
            (rand(3, 1024, 1030), (0, 2, 1)),
            (rand(2, 3, 700, 1024, dtype=torch.bfloat16), (0, 3, 1, 2)),
            (rand(700, 2048, dtype=torch.int8), (1, 0)),
            (rand(33, 2, 64, 64) > 0, (2, 3, 0, 1)),
        )
    ]
    for case in cases:
        check_many([case])
    x = rand(4, 96, 32, 32)
    norm = partial(F.layer_norm, normalized_shape=(96,))
    check_many([(lambda x: norm(x.permute(0, 2, 3, 1)), (x,))], rtol=1e-4, atol=1e-5, grad=True)
    check_many(
        [(lambda a, b: a.t().sigmoid() @ b.t(), (rand(900, 512), rand(64, 900)))],
        rtol=1e-4,
        atol=1e-4,
    )


def test_values_that_are_no_numbers() -> None:
    x = rand(4, 16, 16, 16)
    x[0, 3, 5, 5], x[1, 2, 0, 0], x[3, 0, 15, 15] = NAN, INF, -INF
    check_many([(F.conv2d, (x, rand(32, 16, 3, 3)), {"padding": 1})], rtol=1e-4, atol=1e-3)


@needs_calls
def test_the_program_calls_the_library_and_an_exported_one_does_not() -> None:
    model = torch.nn.Conv2d(3, 5, 3)
    image = rand(2, 3, 11, 11)
    expected = model(image).detach()
    x = image.to(xm.xla_device())
    y = F.conv2d(x, *(p.detach().to(x.device) for p in model.parameters()))
    assert TARGET not in _XLAC._get_xla_tensors_hlo([y])
    torch.testing.assert_close(y.cpu(), expected)
    kind = "f32 2d one kxk plain"
    assert kind in chosen("convolution.forward")
    program = exported_program_to_stablehlo(torch.export.export(model, (image,)))
    assert TARGET not in program.get_stablehlo_text()
    torch.testing.assert_close(program(image).cpu(), expected)


def test_exported_programs_call_no_kernels_of_pytorch() -> None:
    """Where an operator has a lowering beside its kernel of the CPU."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values, places = x.topk(3)
            spectrum = torch.fft.irfft(torch.fft.rfft(x) * torch.fft.fft(x)[:, :5])
            return x.cumsum(0), x.cumprod(1), values, places, x.median(), spectrum, x.sort()[0]

    x = rand(4, 8)
    program = exported_program_to_stablehlo(torch.export.export(Model(), (x,)))
    assert "custom_call" not in program.get_stablehlo_text()
    check_many([(Model(), (x,))], rtol=1e-4, atol=1e-5)
    for actual, expected in zip(program(x), Model()(x), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_programs_with_calls_come_back_from_disk(tmp_path) -> None:
    code = (
        "import torch, torch_xla, torch_xla.debug.metrics as met\n"
        "torch.manual_seed(0)\n"
        "x, w = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)\n"
        "y = torch.conv2d(x.to('xla'), w.to('xla')).cpu()\n"
        "torch.testing.assert_close(y, torch.conv2d(x, w), rtol=1e-4, atol=1e-4)\n"
        "print(met.counter_value('PersistentCacheHit') or 0)"
    )
    hits = [
        int(python_output(code, XLA_PERSISTENT_CACHE_PATH=str(tmp_path), XLA_CPU_KERNELS=kernels))
        for kernels in ("1", "1", "0")
    ]
    # Another setting is another program.
    assert hits[0] == 0
    assert hits[1] > hits[2]


@pytest.mark.parametrize("subjects", ["", "norm_ reduction_ softmax_"], ids=["others", "rows"])
def test_without_calls(subjects: str) -> None:
    files = [f"{FOLDER}/test_{subject}kernels.py" for subject in subjects.split(" ")]
    run_tests(*files, "-k", "in_parts or no_numbers", XLA_CPU_KERNELS="0", timeout=600)


# Odd sizes, more than a thread's part, 64 bits, and loops that go on where the library ended.
RANDOM = """
import hashlib, torch, torch_xla
draws = [
    lambda: torch.rand(9, device="xla"),
    lambda: torch.rand(0, 3, device="xla"),
    lambda: torch.rand(257, 513, device="xla"),
    lambda: torch.rand(70001, dtype=torch.float64, device="xla"),
    lambda: torch.randn(5, 7, device="xla"),
    lambda: torch.randint(10**12, (1001,), device="xla"),
    lambda: torch.randperm(4099, device="xla"),
    lambda: torch.poisson(torch.linspace(0.1, 40, 301).to("xla")),
    lambda: torch._standard_gamma(torch.linspace(0.1, 4, 303).to("xla")),
    lambda: torch.nn.functional.dropout(torch.ones(100, 1001).to("xla")),
]
for draw in draws:
    torch.manual_seed(2**40 + 7)
    first, second = draw().cpu(), draw().cpu()
    assert first.numel() == 0 or not torch.equal(first, second)
    print(hashlib.sha256(first.numpy().tobytes() + second.numpy().tobytes()).hexdigest())
"""


def test_random_numbers_do_not_depend_on_who_draws_them() -> None:
    library = python_output(RANDOM + "print(torch_xla._XLAC._kernel_choices())")
    *drawn, chosen = library.splitlines()
    assert drawn == python_output(RANDOM, XLA_KERNELS="random.bits=stablehlo").splitlines()
    if CALLS:
        assert "('random.bits', '', 'library')" in chosen


def test_wrong_implementations_are_named() -> None:
    code = (
        "import torch, torch_xla\n"
        "try:\n"
        "    x = torch.ones(1, 1, 4, 4).to('xla')\n"
        "    torch.conv2d(x, x).cpu()\n"
        "except ValueError as error:\n"
        "    print(error)"
    )
    said = python_output(code, XLA_KERNELS="convolution.forward=quick")
    assert "expected stablehlo, product, elementwise, library, few_rows or cudnn, got quick" in said


@needs_calls
def test_few_rows_with_weights() -> None:
    """Up to 32 rows are multiplied by a function of ours: widths that fill no vector, too."""
    cases = [
        case
        for rows, width, out in (
            *((1, 48, 64), (3, 5, 7), (4, 19, 1), (32, 1, 6), (33, 48, 64)),
            *((8, 64, 32), (15, 83, 61), (32, 150, 49)),  # whose weights are transposed
        )
        for x, w in [(rand(rows, width), rand(out, width))]
        for case in (
            (F.linear, (x, w)),
            (F.linear, (x, w, rand(out))),
            (F.linear, (x.view(rows, 1, width), w, rand(out))),
            (lambda x, w: x @ w.t(), (x, w)),
        )
    ]
    cases += [
        (lambda x, w: x @ w.t()[8:], (rand(4, 40), rand(64, 48))),
        (lambda x, w: x @ w, (rand(4, 48), rand(48, 64))),
        *((torch.mm, (rand(n, 300), rand(300, 1030))) for n in (1, 3, 4, 5)),
        (torch.mv, (rand(1030, 300), rand(300))),
        (torch.mv, (rand(300, 1030).t(), rand(300))),
        (torch.mv, (rand(50, 300)[:, ::2], rand(150))),
        (torch.addmv, (rand(1030), rand(1030, 300), rand(300))),
        (F.linear, (rand(4, 300), rand(1030, 300), rand(1030))),  # on two threads
        (F.linear, (rand(32, 300), rand(1030, 300), rand(1030))),
    ]
    check_many(cases, rtol=1e-5, atol=1e-4, grad=True)
    x = rand(3, 20)
    x[0, 3], x[1, 19], x[2, 0] = INF, -INF, NAN
    check_many([(F.linear, (x, rand(9, 20))), (F.linear, (rand(4, 0), rand(5, 0)))])
    denormal = rand(2, 64) * 1e-20, rand(4096, 64) * 1e-20
    check_many([(F.linear, denormal)], rtol=1e-3, atol=1e-42)
    half = [
        (F.linear, (rand(*rows, dtype=BF16), rand(out, rows[1], dtype=BF16), rand(out, dtype=BF16)))
        for rows, out in (((1, 48), 64), ((5, 7), 6), ((4, 300), 1030), ((19, 83), 61))
    ]
    half += [
        (torch.mm, (rand(3, 300, dtype=BF16), rand(300, 1030, dtype=BF16))),
        (torch.mv, (rand(1030, 300, dtype=BF16), rand(300, dtype=BF16))),
    ]
    check_many(half, rtol=0.01, atol=0.05, grad=True)
    chosen = {
        (kernel, " ".join(kind.split()[:4]))
        for name, kind, kernel in _XLAC._kernel_choices()
        if name == "matmul" and "long" not in kind.split()
    }
    taken = {
        f"{kind} {size}"
        for kind in ("f32 few transposed", "f32 some transposed", "bf16 few transposed")
        for size in ("small", "large")
    } | {"f32 few plain large", "bf16 few plain large"}
    assert {("few_rows", kind) for kind in taken} <= chosen
    assert all(
        kernel == "stablehlo" for kernel, kind in chosen if kind not in taken and "f32" in kind
    )
    weights = rand(64, 48).to("xla")
    assert "cpu_few_rows" not in _XLAC._get_xla_tensors_hlo(
        [F.linear(rand(4, 48).to("xla"), weights)]
    )


def test_long_products_of_float() -> None:
    """By MKL where the first matrix lies transposed, as in gradients of weights."""
    left, right = rand(192, 160), rand(160, 144)
    cases = [
        (torch.mm, (left, right)),
        (F.linear, (left, rand(144, 160), rand(144))),
        (lambda a, b: a.t() @ b, (rand(160, 200), rand(160, 144))),
        (torch.bmm, (rand(3, 130, 96), rand(3, 96, 120))),
        (torch.baddbmm, (rand(120), rand(3, 130, 96), rand(3, 96, 120))),
    ]
    check_many(cases, rtol=1e-4, atol=1e-4, grad=True)
    chosen = {
        (" ".join(kind.split()[-3:]), kernel)
        for name, kind, kernel in _XLAC._kernel_choices()
        if name == "matmul" and kind.startswith("f32 many plain") and "long" in kind.split()
    }
    assert chosen == {("other long plain", "stablehlo"), ("other long transposed", "library")}


def test_weights_are_read_as_they_lie(tmp_path) -> None:
    """Calls that take a transposed operand as it lies do not get it transposed twice."""
    python_output(
        """
        import torch, torch_xla
        torch.manual_seed(0)
        weights = torch.randn(4096, 1024)
        for x in torch.randn(4, 1024), torch.randn(64, 1024, dtype=torch.bfloat16):
            y = torch.nn.functional.linear(x.to("xla"), weights.to("xla", x.dtype))
            torch.testing.assert_close(
                y.cpu(), x @ weights.to(x.dtype).t(), rtol=0.02, atol=0.5)
        """,
        XLA_FLAGS=f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
        XLA_PERSISTENT_CACHE_PATH="",
    )
    text = "".join(path.read_text() for path in tmp_path.glob("*.txt"))
    assert "torch_xla.cpu_few_rows" in text
    assert "torch_xla.cpu_transposition" not in text


@pytest.mark.parametrize(
    "capability", ["avx2", pytest.param("default", marks=pytest.mark.conformance)]
)
def test_products_on_another_processor(capability: str) -> None:
    if "ATEN_CPU_CAPABILITY" in os.environ:
        pytest.skip("this run is that")
    tests = (
        f"{__file__}::test_convolutions_of_few_pixels",
        f"{__file__}::test_small_convolutions",
        f"{__file__}::test_convolutions_by_tiles",
        f"{__file__}::test_convolutions_in_small_groups",
        f"{__file__}::test_gradients_that_are_folded",
        f"{__file__}::test_few_rows_with_weights",
        f"{FOLDER}/../ops/test_attention.py::test_few_queries",
        f"{FOLDER}/test_softmax_kernels.py::test_cross_entropy_of_long_rows",
        f"{FOLDER}/test_reduction_kernels.py::test_column_sums_in_parts",
    )
    run_tests(*tests, ATEN_CPU_CAPABILITY=capability)


def test_few_rows_takes_many() -> None:
    """An override of the table gives it more rows than it is chosen for."""
    code = """
import torch, torch_xla
torch.manual_seed(0)
for dtype, bound in ((torch.float32, 1e-4), (torch.bfloat16, 0.5)):
    x, w = torch.randn(300, 200).to(dtype), torch.randn(64, 200).to(dtype)
    y = x.to("xla") @ w.to("xla").t()
    error = (y.cpu().float() - x.float() @ w.float().t()).abs().max().item()
    print(error < bound)
"""
    assert python_output(code, XLA_KERNELS="matmul=few_rows").split() == ["True", "True"]


def test_bfloat16_products() -> None:
    """By oneDNN where the processor multiplies bfloat16; below, by it anywhere."""
    x, y = rand(70, 48, dtype=BF16), rand(48, 66, dtype=BF16)
    w, bias = rand(66, 48, dtype=BF16), rand(66, dtype=BF16)
    batch, other = rand(5, 40, 32, dtype=BF16), rand(5, 32, 24, dtype=BF16)
    cases = [
        (torch.mm, (x, y)),
        (lambda x, y: x.t().contiguous().t() @ y, (x, y)),
        (lambda x, y: (x + 1).t() @ y, (rand(48, 70, dtype=BF16), y)),
        (lambda x, w: x.t() @ w.t(), (rand(48, 70, dtype=BF16), w)),
        (lambda x, y: x[:, 8:40] @ y[8:40, ::2], (x, y)),
        (F.linear, (x, w)),
        (F.linear, (x, w, bias)),
        (F.linear, (x.view(7, 10, 48), w, bias)),
        (torch.addmm, (rand(70, 66, dtype=BF16), x, y)),
        (torch.addmm, (rand(70, 1, dtype=BF16), x, y)),
        (torch.addmm, (rand(70, 66, dtype=BF16), x, y), {"beta": 0.5, "alpha": 2}),
        (torch.addmm, (bias * INF, x, y), {"beta": 0}),
        (torch.bmm, (batch, other)),
        (torch.bmm, (batch.transpose(1, 2), rand(5, 24, 40, dtype=BF16).transpose(1, 2))),
        (torch.bmm, (rand(1, 200, 64, dtype=BF16), rand(1, 64, 200, dtype=BF16))),
        (torch.bmm, (rand(1, 64, 64, dtype=BF16), rand(1, 64, 900, dtype=BF16))),
        (
            lambda x, y: x.transpose(1, 2) @ y,
            (rand(1, 16, 40, dtype=BF16), rand(1, 16, 24, dtype=BF16)),
        ),
        (
            lambda x, y: x.transpose(1, 2) @ y,
            (rand(1, 4, 8, dtype=BF16), rand(1, 4, 8, dtype=BF16)),
        ),
        (
            lambda m, x, y: torch.where(m.t() > 0, x, 0).t() @ y,
            (rand(8, 256, dtype=BF16), rand(256, 8, dtype=BF16), rand(256, 4, dtype=BF16)),
        ),
        (lambda x, y: torch.einsum("abkm,abkn->abmn", x, y), (batch[:, None], batch[:, None])),
        (torch.matmul, (batch, other[0])),
        (torch.baddbmm, (rand(40, 24, dtype=BF16), batch, other)),
        (F.linear, (rand(600, 128, dtype=BF16), rand(96, 128, dtype=BF16))),  # on two threads
        (F.linear, (rand(40, 128, dtype=BF16), rand(900, 128, dtype=BF16), rand(900, dtype=BF16))),
    ]
    check_many(cases, rtol=0.016, atol=0.06, grad=True)
    empty = [(0, 48, 66), (70, 0, 66), (70, 48, 0)]
    check_many(
        [(torch.mm, (rand(m, k, dtype=BF16), rand(k, n, dtype=BF16))) for m, k, n in empty]
        + [(F.linear, (rand(m, k, dtype=BF16), rand(66, k, dtype=BF16), bias)) for m, k, _ in empty]
    )
    x[3, 5], x[4, 6] = INF, NAN
    check_many([(torch.mm, (x, y)), (F.linear, (x, w, bias))], rtol=0.016, atol=0.06)


@pytest.mark.conformance
def test_bfloat16_products_anywhere() -> None:
    if "XLA_KERNELS" in os.environ:
        pytest.skip("this run is that")
    for kernels in "library", "stablehlo":
        run_tests(f"{__file__}::test_bfloat16_products", XLA_KERNELS=f"matmul={kernels}")


def test_bfloat16_rounds_once() -> None:
    """What a bias cancels was not rounded before."""
    x = torch.full((64, 128), 1.0, dtype=BF16)
    w = torch.full((64, 128), 1.0, dtype=BF16)
    x[:, 0] = 1 + 2**-7  # 128.0078 and its bfloat16, 128, differ
    bias = torch.full((64,), -128.0, dtype=BF16)
    maps, kernel = x.view(64, 128, 1, 1).expand(64, 128, 4, 4).contiguous(), w.view(64, 128, 1, 1)
    for f, given in ((F.linear, (x, w, bias)), (F.conv2d, (maps, kernel, bias))):
        result = f(*(one.to("xla") for one in given)).cpu().float()
        assert (result == 2**-7).all()


def test_bfloat16_convolutions() -> None:
    functions = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
    for transposed, shapes in ((False, SHAPES), (True, TRANSPOSED)):
        cases = []
        for x, w, options in shapes:
            f = F.conv_transpose2d if transposed else functions[len(x) - 2]
            bias = rand(w[1] if transposed else w[0], dtype=BF16)
            cases.append((f, (rand(*x, dtype=BF16), rand(*w, dtype=BF16), bias), options))
        for case in cases:
            check_many([case], rtol=0.02, atol=0.15, grad=True)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int64, torch.complex64, torch.complex128]
)
def test_products_of_other_types(dtype) -> None:
    """By ATen: XLA:CPU's are loops."""

    def some(*shape):
        if dtype.is_complex:
            return torch.randn(*shape, dtype=dtype)
        return torch.randint(0, 200, shape).to(dtype) * 3  # overflows

    x, y, batch = some(40, 33), some(33, 50), some(5, 40, 33)
    cases = [
        (torch.mm, (x, y)),
        (lambda x, y: x.t().contiguous().t() @ y, (x, y)),
        (lambda y, x: y.t() @ x.t(), (y, x)),
        (torch.addmm, (some(50), x, y)),
        (torch.addmm, (some(40, 50), x, y), {"beta": 2, "alpha": 3}),
        (torch.bmm, (batch, some(5, 33, 50))),
        (lambda x, y: x.transpose(1, 2) @ y.transpose(1, 2), (batch, some(5, 50, 40))),
        (torch.baddbmm, (some(40, 50), batch, some(5, 33, 50))),
        (torch.mm, (some(150, 100), some(100, 140))),  # on two threads
        (torch.mm, (some(40, 100), some(100, 540))),
        (torch.bmm, (some(1, 40, 100), some(1, 100, 540))),
        (torch.mv, (some(300, 200), some(200))),
    ]
    if dtype.is_complex:
        cases += [(lambda x, y: x.conj() @ y.mH.mT, (x, y))]
    check_many(cases, rtol=1e-4, atol=1e-4, grad=dtype.is_complex)


def test_int8_products_of_int32() -> None:
    def some(*shape):
        return torch.randint(-128, 128, shape, dtype=torch.int8)

    sizes = ((40, 64, 48), (17, 1000, 8), (130, 256, 264), (40, 64, 1024))
    cases = [(torch._int_mm, (some(m, k), some(k, n))) for m, k, n in sizes]
    cases += [(lambda x, y: torch._int_mm(x, y.t()), (some(130, 256), some(264, 256)))]
    cases += [(lambda x, y: torch._int_mm(x.t(), y), (some(256, 130), some(256, 264)))]
    check_many(cases)


@needs_calls
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_each_element_are_the_cpu_s(dtype) -> None:
    """Those that XLA:CPU calls libm for, to the last bit."""
    x = rand(40000).to(dtype) * 3
    x[:9] = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1e6, -3e9, 1e38, 1e-40], dtype=dtype)
    y = rand(40000).to(dtype)
    y[9:14] = torch.tensor([0.0, -0.0, INF, -INF, NAN], dtype=dtype)
    names = ("sin", "cos", "tan", "asin", "acos", "atan", "rsqrt")
    cases = [(getattr(torch, name), (given,)) for name in names for given in (x, y)]
    cases.append((torch.atan2, (x, y)))
    check_many(cases, rtol=0, atol=0)
    # In other loops the CPU takes some elements alone.
    cases = [(torch.atan2, (x.view(-1, 1)[:300], y[:40])), (torch.sin, (x[:0],))]
    cases += [(torch.sin, (x[:39999].view(3, -1).t()[:, ::2],))]
    cases += [(torch.sin, (torch.arange(5000),)), (torch.cos, (torch.arange(5000) % 2 == 0,))]
    check_many(cases)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_remainders_in_parts(dtype) -> None:
    """Exact, those of quotients, too, that no number of the type is as large as."""
    large = 1e38 if dtype == torch.float32 else 1e300
    x = (rand(40000) * 10 ** (rand(40000) * 5)).to(dtype)
    y = rand(40000).to(dtype)
    numbers = [0.0, -0.0, 1.5, -1.5, INF, -INF, NAN, large, -large, 1e-30]
    pairs = torch.cartesian_prod(*(torch.tensor(numbers, dtype=dtype),) * 2)
    x[: len(pairs)], y[: len(pairs)] = pairs.t()

    # Else the CPU's own vectors give NaN, what is left of a vector does not.
    fits = ~((x / y).abs() > torch.finfo(dtype).max / 2)

    def exact(x, y, fits):
        results = torch.fmod(x, y), torch.remainder(x, y)
        return tuple(torch.where(fits, result, 0) for result in results)

    by_number = (x.clamp(-1e30, 1e30), torch.tensor(0.7, dtype=dtype), fits)
    check_many([(exact, (x, y, fits)), (exact, by_number)], rtol=0, atol=0)
    a, b = torch.full((5000,), large, dtype=dtype), torch.full((5000,), -1.5e-5, dtype=dtype)
    for function in (torch.fmod, torch.remainder):
        result = function(a.to("xla"), b.to("xla")).cpu()
        expected = function(a[0], b[0]) if dtype == torch.float64 else None
        assert bool((result.abs() < 1.5e-5).all())
        assert expected is None or torch.equal(result, expected.expand(5000)) or expected.isnan()
    sign = torch.remainder(a.to("xla"), b.to("xla")).cpu()
    assert bool((sign <= 0).all())


def test_max_pool_gradients_in_parts() -> None:
    """Windows that overlap, of several planes for each thread, and one plane."""
    cases = [
        (F.max_pool2d, (rand(8, 16, 23, 22), 3, 2, 1)),
        (F.max_pool2d, (rand(2, 3, 40, 41), (2, 5), 1, 0, (3, 2))),
        (F.max_pool2d, (rand(1, 300, 301), 4, 3, 0, 1, True)),
        (F.max_pool2d, (rand(4, 5, 9, 9).double(), 3)),
        (F.max_pool2d, (rand(4, 5, 9, 9).bfloat16(), 2)),
        (F.max_pool3d, (rand(2, 6, 9, 10, 11), 3, 2, 1)),
        (F.max_pool1d, (rand(3, 5, 200), 3, 1)),
        (F.adaptive_max_pool2d, (rand(3, 5, 20, 21), (4, 5))),
    ]
    for case in cases:
        check_many([case], grad=True)
    if CALLS:
        assert "" in chosen("max_pool.gradient")


def test_samples_and_polygamma_are_the_cpu_s() -> None:
    image, grid = rand(2, 3, 9, 8), rand(2, 7, 6, 2)
    cases = [
        (F.grid_sample, (image, grid), {"mode": mode, "padding_mode": pad, "align_corners": align})
        for mode in ("bilinear", "nearest", "bicubic")
        for pad in ("zeros", "border", "reflection")
        for align in (False, True)
    ]
    check_many(cases, grad=True, rtol=1e-4, atol=1e-5)
    x = rand(50).abs() + 0.1
    check_many([(torch.polygamma, (n, x)) for n in (0, 1, 2, 5)], rtol=1e-5, atol=1e-6)
    check_many([(torch.digamma, (x,))], grad=True, rtol=1e-4, atol=1e-6)


def test_one_hot(device: torch.device) -> None:
    words = torch.tensor([[0, 3, 1], [2, 2, 0]])
    cases = [(F.one_hot, (words, n)) for n in (-1, 4, 7)] + [(F.one_hot, (words[0, 1], 5))]
    cases += [(F.one_hot, (torch.zeros(0, 3, dtype=torch.int64), 4))]
    check_many(cases)
    for bad, classes in ((words, 3), (words - 1, 4), (words, 0), (words[:0], -1), (words.int(), 9)):
        for where in ("cpu", device):
            with pytest.raises(RuntimeError):
                F.one_hot(bad.to(where), classes)


def test_bags_and_gradients_of_embeddings() -> None:
    """Of both types of integers: empty bags, paddings, rows that come often, and none."""
    weight, scale = rand(300, 33), rand(500)
    indices = torch.randint(300, (500,), generator=torch.Generator().manual_seed(0)) // 2
    indices[::7] = 5
    offsets = torch.tensor([0, 0, 40, 41, 41, 300, 500, 500])
    bag = F.embedding_bag
    cases = []
    for to in (torch.int64, torch.int32):
        i, o = indices.to(to), offsets.to(to)
        cases += [
            (lambda w, i, o, **options: bag(i, w, o, **options), (weight, i, o), options)
            for options in (
                {"mode": "sum"},
                {"mode": "mean"},
                {"mode": "sum", "include_last_offset": True, "padding_idx": 5},
                {"mode": "mean", "padding_idx": 6},
                {"mode": "max"},
            )
        ]
        cases.append(
            (
                lambda w, s, i, o: bag(i, w, o, mode="sum", per_sample_weights=s),
                (weight, scale, i, o),
            )
        )
        cases += [
            (
                lambda w, i, **options: F.embedding(i, w, **options),
                (weight, i.view(50, 10)),
                options,
            )
            for options in ({}, {"padding_idx": 5}, {"scale_grad_by_freq": True})
        ]
    cases.append((lambda w, i: bag(i, w), (weight, indices.view(10, 50))))
    check_many(cases, grad=True, rtol=1e-5, atol=1e-5)
    if CALLS:
        choices = _XLAC._kernel_choices()
        assert {("embedding_bag", "", "library"), ("embedding.gradient", "", "library")} <= choices


def test_mkl_knows_the_processor() -> None:
    """Who asks first beside another thread may have numbers that are off by 1.5e-4."""
    found = python_output(
        """
        import ctypes
        import torch, torch_xla

        library = ctypes.CDLL(torch.__path__[0] + "/lib/libtorch_cpu.so")
        detect = getattr(library, "mkl_vml_serv_cpu_detect", None)
        code = ctypes.cast(detect, ctypes.c_void_p).value if detect else None
        if code and ctypes.string_at(code, 2) == b"\\x8b\\x05":  # eax = [rip + distance]
            distance = ctypes.c_int.from_address(code + 2).value
            print(ctypes.c_int.from_address(code + 6 + distance).value)
        """
    )
    if not found:
        pytest.skip("another MKL, or none")
    assert int(found) >= 0


def test_cross_entropy_of_short_and_few_rows() -> None:
    """Of rows of few columns and of many, of few and of many rows."""
    kinds, cases = [], []
    for rows, columns in (6, 7), (300, 31), (300, 32), (5, 1500), (90, 1000):
        x, target = rand(rows, columns) * 9, torch.randint(columns, (rows,))
        target[1] = -100
        plain = (F.cross_entropy, (x, target), {})
        weighted = {"reduction": "sum", "ignore_index": int(target[0])}
        cases += [plain, (F.cross_entropy, (x, target.clamp(0), rand(columns).abs()), weighted)]
        kinds += [
            (F.log_softmax, (x, 1), {}),
            (F.cross_entropy, (x, target), {"reduction": "none"}),
        ]
        kinds.append((F.log_softmax, (x, 0), {}))  # not along the last dimension
    check_many(cases + kinds, rtol=2e-5, atol=1e-5)
    check_many(cases[::2] + kinds, rtol=2e-5, atol=1e-5, grad=True)
    edges = torch.zeros(8, 9)
    edges[0], edges[1, 2], edges[2, 3], edges[3, :4], edges[4] = -INF, NAN, INF, -INF, 3e38
    check_many([(F.log_softmax, (x, 1), {}) for x in (edges, edges.repeat(1, 4))], atol=1e-6)
    lost = torch.full((8,), -100)
    check_many([(F.cross_entropy, (edges[5:], lost[5:]), {})], grad=True)
    x, target = rand(6, 7).to("xla"), torch.arange(6).to("xla")
    text = xm.get_stablehlo([F.cross_entropy(x, target)])
    assert "custom_call" not in text  # the form that is exported


def test_short_dimensions_are_joined() -> None:
    """Where costly functions are of images of few pixels: whatever comes before and after them."""
    x, channels = rand(4, 40, 7, 7), rand(40)
    rows, column, pixels = rand(4, 40, 7, 1), rand(7), rand(1, 1, 7, 7)
    mask = rand(4, 40, 7, 7) > 0

    def normalized(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        mean = scale.detach()
        return F.silu(F.batch_norm(x, mean, mean * mean + 1, scale, scale))

    def updated(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.clone()
        x.sub_(0.1 * y / (y.abs().sqrt() + 1e-3))
        return x, x.view(4, -1).sum(1), x[:, 1]

    cases = [
        (F.silu, (x,)),
        (normalized, (x, channels)),
        (lambda x, y: (x.exp() + y).relu(), (x, rows)),
        (lambda x, y: x.sigmoid() * y + x.tanh().amax((2, 3), keepdim=True), (x, column)),
        (lambda x, y: (x + y).exp().softmax(-1), (x, pixels)),
        (lambda x, m: torch.where(m, x.exp(), 0.5).sum((0, 2)), (x, mask)),
        (lambda x: F.pad(x.exp(), (1, 1)).sigmoid()[..., 2:].tanh(), (x,)),
        (lambda x: torch.cat([x.exp(), x], -1).sin().flip(-1).exp(), (x,)),
        (lambda x: (x.permute(0, 2, 3, 1).exp() + x.tanh().permute(0, 2, 3, 1)).erf(), (x,)),
        (lambda x: torch.arange(7.0, device=x.device).exp() * x.exp(), (x,)),
        (lambda x: (x.double() + 2).pow(1.5).to(torch.complex128).exp(), (x,)),
        (lambda x: F.gelu(F.conv2d(x.sigmoid(), x[:, :20].exp()[:, :, :3, :3], groups=2)), (x,)),
        (lambda x: F.max_pool2d(x.exp(), 2), (x,)),
        (lambda x: x.exp().cumsum(1), (x,)),
        (updated, (x, rand(4, 40, 7, 7))),
    ]
    check_many(cases, rtol=2e-5, atol=2e-6)
    differentiable = [case for i, case in enumerate(cases[:7]) if i != 5]
    check_many(differentiable, rtol=2e-5, atol=1e-5, grad=True)
