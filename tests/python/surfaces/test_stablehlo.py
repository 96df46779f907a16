"""Operators of the user written in StableHLO: torch_xla.library.stablehlo."""

import pytest
import torch
from testing.ops import check, check_many, rand

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla.library import hlo, register_lowering, stablehlo, stablehlo_type

X, Y = rand(3, 4), rand(3, 4, seed=1)
traced: list[torch.Size] = []


@torch.library.custom_op("xlatext::gated", mutates_args=(), device_types="cpu")
def gated(x: torch.Tensor, gate: torch.Tensor, scale: float) -> torch.Tensor:
    return x * torch.sigmoid(gate) * scale


@torch.library.register_fake("xlatext::gated")
def _(x, gate, scale):
    return torch.empty_like(x)


def _gated_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.scale = inputs[2]


def _gated_backward(ctx, grad):
    x, gate = ctx.saved_tensors
    s = torch.sigmoid(gate)
    return grad * s * ctx.scale, grad * x * s * (1 - s) * ctx.scale, None


gated.register_autograd(_gated_backward, setup_context=_gated_context)


@register_lowering(gated)
def _(x, gate, scale):
    traced.append(x.shape)
    t, number = stablehlo_type(x), stablehlo_type((), x.dtype)
    return stablehlo(
        f"""
        func.func @gated(%x: {t}, %gate: {t}, %scale: {number}) -> {t} {{
          %sigmoid = stablehlo.logistic %gate : {t}
          %all = stablehlo.broadcast_in_dim %scale, dims = [] : ({number}) -> {t}
          %scaled = stablehlo.multiply %x, %all : {t}
          %result = stablehlo.multiply %scaled, %sigmoid : {t}  // a comment with a }} and an @
          return %result : {t}
        }}
        """,
        x,
        gate,
        torch.scalar_tensor(scale, dtype=x.dtype, device=x.device),
    )


def _compilations() -> int:
    return (met.metric_data("CompileTime") or (0,))[0]


def test_an_operator_with_its_gradient():
    check(gated, X, Y, 1.5, grad=True)
    half = X.bfloat16(), Y.bfloat16()
    check(gated, *half, 2.0, rtol=2e-2, atol=2e-2)
    check_many(
        [(gated, (X[:, :2].contiguous(), Y[:, :2].contiguous(), -1.0)), (gated, (X, Y, 0.5))]
    )


def test_one_program_for_one_text():
    device = xm.xla_device()
    x, y = rand(5).to(device), rand(5, seed=2).to(device)
    gated(x, y, 1.25).cpu()
    before, calls = _compilations(), len(traced)
    for scale in (2.5, 3.5):  # another number is no other text
        torch.testing.assert_close(gated(x, y, scale).cpu(), x.cpu() * y.cpu().sigmoid() * scale)
    assert _compilations() == before
    assert len(traced) == calls + 2
    gated(x[:2], y[:2], 2.5).cpu()  # other shapes are another text
    assert traced[-1] == (2,)
    assert _compilations() == before + 1
    # In one graph, a text stands in the module once; the same names in another are other functions.
    t = stablehlo_type(x)
    other = f"func.func @gated(%x: {t}) -> {t} {{ return %x : {t} }}"
    graph = gated(gated(x, y, 2.5), y, 3.5) + stablehlo(other, x)
    text = torch_xla._XLAC._get_xla_tensors_hlo([graph])
    assert text.count("func.func private") == 2
    assert text.count("func.call") == 3
    expected = x.cpu() * y.cpu().sigmoid() ** 2 * 2.5 * 3.5 + x.cpu()
    torch.testing.assert_close(graph.cpu(), expected)


def test_several_results_helpers_and_a_module():
    # As other tools print it: a module, attributes, generic and pretty forms, a region.
    text = """
module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x4xf32> {mhlo.layout_mode = "default"}, %arg1: tensor<i64>)
      -> (tensor<3xf32> {jax.result_info = "result[0] }"}, tensor<3x4xi1>, tensor<i64>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1]
        : (tensor<3x4xf32>, tensor<f32>) -> tensor<3xf32>
    %1 = call @positive(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xi1>
    %2 = "stablehlo.add"(%arg1, %arg1) : (tensor<i64>, tensor<i64>) -> tensor<i64>
    return %0, %1, %2 : tensor<3xf32>, tensor<3x4xi1>, tensor<i64>
  }
  func.func private @positive(%arg0: tensor<3x4xf32>) -> tensor<3x4xi1> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<3x4xf32>
    %0 = stablehlo.compare GT, %arg0, %cst : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xi1>
    return %0 : tensor<3x4xi1>
  }
}
"""
    device = xm.xla_device()
    total, positive, twice = stablehlo(text, X.to(device), torch.tensor(21).to(device))
    torch.testing.assert_close(total.cpu(), X.sum(1))
    assert torch.equal(positive.cpu(), X > 0)
    assert twice.cpu() == 42


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int16, torch.float16, torch.float64, torch.complex64]
)
def test_dtypes(dtype):
    x = rand(2, dtype=dtype)
    t = stablehlo_type(x)
    result = stablehlo(f"func.func @f(%x: {t}) -> ({t}) {{ return %x : {t} }}", x.to("xla"))
    assert result.dtype == dtype
    assert torch.equal(result.cpu(), x)


def test_types():
    assert stablehlo_type(X) == "tensor<3x4xf32>"
    assert stablehlo_type(X, torch.bfloat16) == "tensor<3x4xbf16>"
    assert stablehlo_type((), torch.complex128) == "tensor<complex<f64>>"
    assert stablehlo_type([0], torch.bool) == "tensor<0xi1>"
    with pytest.raises(TypeError, match="dtype that XLA has, got None"):
        stablehlo_type((2,))
    with pytest.raises(TypeError, match="qint8"):
        stablehlo_type((2,), torch.qint8)


T = "tensor<3x4xf32>"
BODY = f"{{ return %x : {T} }}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected `func.func`, got its end"),
        ("stablehlo.add", "line 1: expected `func.func`, got `stablehlo.add`"),
        (f"func.func (%x: {T}) -> {T} {BODY}", "expected the function's name, @name, got `\\(%x"),
        (f"func.func @f({T}) -> {T} {BODY}", "expected a parameter, %name, got `tensor"),
        (f"func.func @f(%x: {T})\n-> vector<3xf32> {BODY}", "line 2: expected `tensor`, got `vec"),
        (f"func.func @f(%x: tensor<?x4xf32>) -> {T} {BODY}", "the shape is dynamic"),
        (f"func.func @f(%x: tensor<3x4xfloat>) -> {T} {BODY}", "expected an element type such as"),
        (f"func.func @f(%x: {T}) {{ return }}", "@f returns nothing"),
        (f"func.func @f(%x: {T}) -> {T} {{ return %x : {T}", "`{` is never closed"),
        (f"func.func @f(%x: {T}) -> {T}", "expected the function's body"),
        (f"func.func @f(%x: {T}) -> {T} {BODY} func.func @f() {BODY}", "@f is defined twice"),
        (f"func.func @f(%x: {T}) -> {T} {BODY}\nfoo", "line 2: expected `func.func`, got `foo`"),
        (f"module {{ func.func @f(%x: {T}) -> {T} {BODY} }} foo", "expected nothing more"),
        (f"func.func @f(%x: {T}) -> {T} {{ return %y : {T} }}", "does not compile(.|\n)*%y"),
        (
            f"func.func @f(%x: {T}) -> {T} {{ %y = stablehlo.sine2 %x : {T} return %y : {T} }}",
            "does not compile(.|\n)*sine2",
        ),
        (
            f"func.func @f(%x: {T}) -> {T} {{ %y = call @g(%x) : ({T}) -> {T} return %y : {T} }}",
            "does not compile(.|\n)*g",
        ),
    ],
)
def test_malformed_text(text, message):
    x = X.to(xm.xla_device())
    with pytest.raises(ValueError, match=message):
        stablehlo(text, x)
    assert torch.equal((x + 1).cpu(), X + 1)  # and nothing of it stays behind


def test_wrong_inputs():
    text = f"func.func @f(%x: {T}, %y: {T}) -> {T} {BODY}"
    x = X.to(xm.xla_device())
    with pytest.raises(TypeError, match="@f takes 2 tensors, but got 1"):
        stablehlo(text, x)
    with pytest.raises(TypeError, match=r"argument 1 of @f is tensor<3x4xf32>, but got tensor<3xf"):
        stablehlo(text, x, x[:, 0])
    with pytest.raises(TypeError, match=r"argument 1 of @f is .*, but got tensor<3x4xi64>"):
        stablehlo(text, x, x.long())
    with pytest.raises(TypeError, match="input 1 to be a tensor, got 2.0"):
        stablehlo(text, x, 2.0)
    with pytest.raises(TypeError, match="at least one tensor"):
        stablehlo(text)
    with pytest.raises(TypeError, match="text or a Python function, got NoneType"):
        stablehlo(None, x)
    with pytest.raises(NotImplementedError, match="tensors of the xla device, but got cpu"):
        stablehlo(text, X, X)


def test_shapes_without_a_device():
    meta = stablehlo(f"func.func @f(%x: {T}) -> tensor<2xi64> {{ return %x : {T} }}", X.to("meta"))
    assert (meta.device.type, meta.shape, meta.dtype) == ("meta", (2,), torch.int64)


# ---------------------------------------------------------------- the builder


@torch.library.custom_op("xlatext::softcap", mutates_args=(), device_types="cpu")
def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    return torch.tanh(x / cap) * cap


def _softcap_context(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.cap = inputs[1]


def _softcap_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    if x.device.type == "cpu":
        return grad * (1 - torch.tanh(x / ctx.cap) ** 2), None

    def backward(grad, x, cap):
        y = hlo.tanh(x / cap)
        return grad * (1 - y * y)

    return stablehlo(
        backward, grad, x, torch.scalar_tensor(ctx.cap, dtype=x.dtype, device=x.device)
    ), None


softcap.register_autograd(_softcap_backward, setup_context=_softcap_context)
register_lowering(
    softcap,
    lambda x, cap: stablehlo(
        lambda x, cap: hlo.tanh(x / cap) * cap,
        x,
        torch.scalar_tensor(cap, dtype=x.dtype, device=x.device),
    ),
)


def test_the_builder_with_a_gradient():
    check(softcap, X, 2.0, grad=True)
    device = xm.xla_device()
    softcap(X.to(device), 3.0).cpu()
    before = _compilations()
    softcap(X.to(device), 4.0).cpu()
    assert _compilations() == before


def test_operations_of_the_builder():
    x, y = rand(3, 4), rand(4, seed=2)
    i = torch.arange(12).view(3, 4)
    cases = [
        (lambda h, x, y: x + y - 2 * y / 0.5, lambda x, y: x + y - 2 * y / 0.5),
        (lambda h, x, y: -(1 - x) * (3.0 / (y * y + 1)), lambda x, y: -(1 - x) * 3 / (y * y + 1)),
        (lambda h, x, y: h.maximum(h.exponential(x), y), lambda x, y: torch.maximum(x.exp(), y)),
        (lambda h, x, y: h.select(x > y, x, 0.0), lambda x, y: torch.where(x > y, x, 0.0)),
        (
            lambda h, x, y: h.and_(x <= y, h.not_(h.compare(x, 0.5, "ge"))),
            lambda x, y: (x <= y) & ~(x >= 0.5),
        ),
        (lambda h, x, y: h.convert(x < y, torch.int32), lambda x, y: (x < y).int()),
        (lambda h, x, y: h.bitcast_convert(x, torch.int32), lambda x, y: x.view(torch.int32)),
        (lambda h, x, y: h.reduce(x, [1], "add"), lambda x, y: x.sum(1)),
        (lambda h, x, y: h.reduce(x, [0], "maximum"), lambda x, y: x.amax(0)),
        (lambda h, x, y: h.dot_general(x, y, [1], [0]), lambda x, y: x @ y),
        (lambda h, x, y: h.transpose(h.reshape(x, [2, 6]), [1, 0]), lambda x, y: x.view(2, 6).T),
        (lambda h, x, y: h.slice(x, [0, 1], [3, 4], [1, 2]), lambda x, y: x[:, 1:4:2]),
        (
            lambda h, x, y: h.pad(x, -1.0, [1, 0], [0, 2]),
            lambda x, y: torch.nn.functional.pad(x, (0, 2, 1, 0), value=-1.0),
        ),
        (lambda h, x, y: h.concatenate([x, x * 2], 0), lambda x, y: torch.cat([x, x * 2])),
        (lambda h, x, y: h.reverse(x, [1]), lambda x, y: x.flip(1)),
        (lambda h, x, y: h.broadcast_in_dim(y, [4, 2], [0]), lambda x, y: y[:, None].expand(4, 2)),
        (lambda h, x, y: h.broadcast_to(y, x.shape), lambda x, y: y.expand(3, 4)),
        (lambda h, x, y: h.full_like(x, 7), lambda x, y: torch.full_like(x, 7)),
        (
            lambda h, x, y: h.iota(x, [3, 4], torch.int64, 1) + 1,
            lambda x, y: torch.arange(1, 5).expand(3, 4),
        ),
        (
            lambda h, x, y: h.sort([y], 0, lambda a, b: a > b)[0],
            lambda x, y: y.sort(descending=True)[0],
        ),
        # Doubled until all is above 100: a loop.
        (
            lambda h, x, y: h.while_loop(
                [h.abs(y) + 1], lambda v: h.reduce(v, [0], "minimum") < 100, lambda v: v * 2
            )[0],
            lambda x, y: (y.abs() + 1) * 2 ** (100 / (y.abs() + 1).amin()).log2().ceil(),
        ),
    ]
    device = xm.xla_device()
    a, b = x.to(device), y.to(device)
    results = [stablehlo(lambda x, y, f=f: f(hlo, x, y), a, b) for f, _ in cases]
    torch_xla.sync()
    for (_, reference), result in zip(cases, results, strict=True):
        torch.testing.assert_close(result.cpu(), reference(x, y), equal_nan=True)
    low, high = stablehlo(lambda i: (hlo.reduce(i, [0], "minimum"), i * i), i.to(device))
    assert torch.equal(low.cpu(), i.amin(0)) and torch.equal(high.cpu(), i * i)


def test_the_builder_refuses():
    x, y = X.to(xm.xla_device()), torch.arange(4).to(xm.xla_device())
    kept = []

    def keep(x):
        kept.append(x)
        assert repr(x) == "<hlo tensor<3x4xf32>>" and x.shape == (3, 4) and x.dtype == torch.float32
        return x

    stablehlo(keep, x)
    for function, error, message in (
        (lambda x, y: x + y, ValueError, "stablehlo.add: expected .* got tensor<3x4xf32>, tensor<"),
        (lambda x, y: hlo.reshape(x, [5]), ValueError, "stablehlo.reshape"),
        (lambda x, y: hlo.reduce(x, [7], "add"), ValueError, "stablehlo.reduce"),
        (lambda x, y: hlo.reduce(x, [0], "mean"), ValueError, 'one of add, and.* got "mean"'),
        (lambda x, y: hlo.compare(x, x, "above"), ValueError, 'one of eq.* got "above"'),
        (lambda x, y: hlo.add(1, 2), TypeError, "got two numbers"),
        (lambda x, y: hlo.tanh("x"), TypeError, "incompatible function arguments"),
        (lambda x, y: None, TypeError, "return a value or a tuple of values, got None"),
        (lambda x, y: (x, 1), TypeError, "return a value or a tuple of values"),
        (lambda x, y: kept[0], ValueError, "belongs to another builder"),
        (lambda x, y: [][0], IndexError, "out of range"),
        (lambda x: x, TypeError, "2 were given"),
    ):
        with pytest.raises(error, match=message):
            stablehlo(function, x, y)
    assert torch.equal((x + 1).cpu(), X + 1)
