"""`_foreach_` operators and fused optimizers: one node for a list, the results of the loop."""

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met


def _lists(count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 2), (), (4,), (2, 0), (1, 5)]
    values = (torch.rand(shapes[i % 5], generator=generator) * 3 + 1 for i in range(count))
    return [value.to(dtype) for value in values]


def _on_xla(value):
    if isinstance(value, torch.Tensor):
        return value.to("xla")
    if isinstance(value, list):
        return [_on_xla(item) for item in value]
    return value


def _compare(actual, expected, **tolerance):
    torch.testing.assert_close([t.cpu() for t in actual], list(expected), **tolerance)


CALLS = [
    ("add", ([1.5],), {}),
    ("add", ("list",), {"alpha": 2}),
    ("add", ("scalars",), {}),
    ("add", ("tensor",), {"alpha": 3}),
    ("sub", ("list",), {"alpha": 0.5}),
    ("sub", ([2],), {}),
    ("mul", ("list",), {}),
    ("mul", ("tensor",), {}),
    ("div", ("scalars",), {}),
    ("div", ("list",), {}),
    ("maximum", ([0.9],), {}),
    ("clamp_min", ("list",), {}),
    ("clamp_max", ("scalars",), {}),
    ("lerp", ("list", [0.3]), {}),
    ("lerp", ("list", "list"), {}),
    ("addcdiv", ("list", "list", [0.7]), {}),
    ("addcmul", ("list", "list", "scalars"), {}),
    ("pow", ("list",), {}),
    ("sqrt", (), {}),
    ("neg", (), {}),
    ("reciprocal", (), {}),
    ("erf", (), {}),
    ("round", (), {}),
]


def _arguments(spec, count, dtype):
    values = []
    for position, item in enumerate(spec):
        if item == "list":
            values.append(_lists(count, dtype, seed=position + 1))
        elif item == "scalars":
            values.append([0.5 + i for i in range(count)])
        elif item == "tensor":
            values.append(torch.tensor(1.25, dtype=dtype))
        else:
            values.append(item[0])
    return values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_equals_cpu(dtype):
    for name, spec, kwargs in CALLS:
        if dtype == torch.int64 and name in ("lerp", "addcdiv"):
            continue  # not defined for integers
        arguments = _arguments(spec, 7, dtype)
        function = getattr(torch, f"_foreach_{name}")
        try:
            expected = function(_lists(7, dtype), *arguments, **kwargs)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                function(_on_xla(_lists(7, dtype)), *_on_xla(arguments), **kwargs)
            continue
        _compare(function(_on_xla(_lists(7, dtype)), *_on_xla(arguments), **kwargs), expected)


def test_in_place_equals_cpu_with_one_node():
    for name, spec, kwargs in CALLS:
        arguments = _arguments(spec, 7, torch.float32)
        function = getattr(torch, f"_foreach_{name}_")
        expected, actual = _lists(7), _on_xla(_lists(7))
        xla_arguments = _on_xla(arguments)
        function(expected, *arguments, **kwargs)
        before = {n: met.counter_value(n) for n in met.counter_names()}
        function(actual, *xla_arguments, **kwargs)
        moved = [n for n in met.counter_names() if met.counter_value(n) != before.get(n)]
        assert moved == [f"xla::_foreach_{name}"]
        _compare(actual, expected)


def test_order_of_writes_is_kept():
    """A list that holds a tensor twice, or reads what it has written, is as the loop is."""
    for device in ("cpu", "xla"):
        a, b = torch.ones(2, device=device), torch.full((2,), 3.0, device=device)
        torch._foreach_add_([a, a], 1)
        torch._foreach_mul_([a, b], [b, a])
        torch._foreach_add_([a[:1], b], [b[1:], a[0]])
        result = (a.tolist(), b.tolist())
        if device == "cpu":
            expected = result
    assert result == expected


def test_mixed_lists_take_the_loop():
    lists = [torch.ones(2), torch.ones(3, dtype=torch.int64), torch.ones(1, dtype=torch.float64)]
    _compare(torch._foreach_add(_on_xla(lists), 0.5), torch._foreach_add(lists, 0.5))
    with pytest.raises(RuntimeError):
        torch._foreach_add(_on_xla(lists), _on_xla(lists[:2]))


def test_changing_scalars_compile_nothing():
    tensors = _on_xla(_lists(4))
    for step in range(4):
        torch._foreach_add_(tensors, [0.1 * step + i + 0.5 for i in range(4)])
        torch_xla.sync(wait=True)
        if step == 0:
            met.clear_all()
    assert met.metric_data("CompileTime") is None


OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    (torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"lr": 0.1, "amsgrad": True}),
    (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
]


@pytest.mark.parametrize(("make", "options"), OPTIMIZERS)
@pytest.mark.parametrize(
    "mode", [{"fused": True}, {"foreach": True}, {"capturable": True}, {}], ids=str
)
def test_optimizers_equal_the_loop_on_cpu(make, options, mode):
    def train(device, extra):
        generator = torch.Generator().manual_seed(0)
        params = [nn.Parameter(t.to(device)) for t in _lists(4)]
        optimizer = make(params, **options, **extra)
        for _ in range(3):
            for param in params:
                param.grad = torch.randn(param.shape, generator=generator).to(device)
            optimizer.step()
        return [param.detach().cpu() for param in params]

    if "capturable" in mode and not issubclass(make, torch.optim.Adam):
        pytest.skip("no option of this optimizer")
    met.clear_all()
    actual = train("xla", mode)
    assert not met.executed_fallback_ops()
    torch.testing.assert_close(actual, train("cpu", {"foreach": False}))


def test_optimizers_work_on_lists_by_default():
    model = nn.Linear(3, 2).to("xla")
    met.clear_all()
    for make in (torch.optim.AdamW, torch.optim.SGD):
        model(torch.ones(1, 3, device="xla")).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        make(model.parameters()).step()
    names = met.counter_names()
    assert "xla::_foreach_addcdiv" in names and "xla::_foreach_mul" in names


def test_fused_optimizer_skips_the_step_when_a_gradient_is_not_finite():
    param = nn.Parameter(torch.ones(3, device="xla"))
    optimizer = torch.optim.AdamW([param], lr=0.5, fused=True)
    optimizer.found_inf = torch.ones((), device="xla")
    optimizer.grad_scale = torch.full((), 2.0, device="xla")
    param.grad = torch.full((3,), 4.0, device="xla")
    optimizer.step()
    assert param.tolist() == [1.0] * 3
    assert param.grad.tolist() == [2.0] * 3  # the unscaled gradient is kept
    optimizer.found_inf.zero_()
    optimizer.step()
    assert max(param.tolist()) < 0.6


def test_scaler_operations():
    for found, value in ((0.0, 1.0), (1.0, float("inf"))):
        grads = [torch.tensor([2.0, value], device="xla"), torch.tensor(4.0, device="xla")]
        found_inf = torch.zeros(1, device="xla")
        torch._amp_foreach_non_finite_check_and_unscale_(
            grads, found_inf, torch.tensor([0.5], device="xla")
        )
        assert found_inf.item() == found
        assert grads[0][0].item() == 1.0 and grads[1].item() == 2.0
    scale = torch.tensor([8.0], device="xla")
    tracker = torch.zeros(1, dtype=torch.int32, device="xla")
    steps = [(0.0, 8.0, 1), (0.0, 16.0, 0), (1.0, 8.0, 0), (0.0, 8.0, 1)]
    for found, expected_scale, expected_tracker in steps:
        torch._amp_update_scale_(scale, tracker, torch.tensor([found], device="xla"), 2.0, 0.5, 2)
        assert (scale.item(), tracker.item()) == (expected_scale, expected_tracker)


def test_autograd_sees_what_is_written():
    calls = [
        lambda x: torch._foreach_add_([x], 1),
        lambda x: torch._foreach_mul_([x], [2.0]),
        lambda x: torch._foreach_sqrt_([x]),
        lambda x: torch._foreach_lerp_([x], [x + 1], 0.5),
        lambda x: torch._foreach_zero_([x]),
    ]
    for call in calls:
        versions = []
        for device in ("cpu", "xla"):
            x = torch.ones(3, device=device)
            call(x)
            versions.append(x._version)
        assert versions[0] == versions[1] == 1
    weight = torch.ones(2, 2, device="xla")
    loss = (torch.ones(2, 2, device="xla", requires_grad=True) @ weight).sum()
    torch._foreach_add_([weight], 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
