"""The operators that functionalization puts in the place of views and of writes.

PyTorch's graphs (torch.compile, torch.export) have them, so none of them may read its tensors.
"""

import pytest
import torch
from testing.ops import rand

import torch_xla.debug.metrics as met

aten = torch.ops.aten

# Forms that are of no use to a dense tensor: of sparse and nested ones, of forward AD's levels and
# of PyTorch's own tests.
NOT_DENSE = {
    *("_indices_copy", "indices_copy", "_values_copy", "values_copy", "_sparse_broadcast_to_copy"),
    *("crow_indices_copy", "col_indices_copy", "ccol_indices_copy", "row_indices_copy"),
    *("_nested_get_values_copy", "_nested_view_from_buffer_copy", "_nested_view_from_jagged_copy"),
    *("_fw_primal_copy", "_make_dual_copy", "_test_autograd_multiple_dispatch_view_copy"),
}
COPIES = {
    "_conj_copy": (),
    "_neg_view_copy": (),
    "_reshape_alias_copy": ([4, 3], [3, 1]),
    "_reshape_copy": ([4, 3],),
    "_to_copy": (),
    "alias_copy": (),
    "as_strided_copy": ([2, 2], [1, 3], 1),
    "detach_copy": (),
    "diagonal_copy": (1,),
    "expand_copy": ([2, 3, 4],),
    "lift_fresh_copy": (),
    "narrow_copy": (1, 1, 2),
    "permute_copy": ([1, 0],),
    "select_copy.int": (1, 2),
    "slice_copy.Tensor": (1, 0, 4, 2),
    "split_copy.Tensor": (2, 1),
    "split_with_sizes_copy": ([1, 3], 1),
    "squeeze_copy": (),
    "squeeze_copy.dim": (0,),
    "squeeze_copy.dims": ([0, 1],),
    "t_copy": (),
    "transpose_copy.int": (0, 1),
    "unbind_copy.int": (1,),
    "unfold_copy": (1, 2, 1),
    "unsqueeze_copy": (1,),
    "view_as_complex_copy": (),
    "view_as_real_copy": (),
    "view_copy": ([2, 6],),
    "view_copy.dtype": (torch.int32,),
}


def overloads():
    """Yields the names and operators of the registry that PyTorch has for all devices."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, base = name.partition("::")
        packet, _, overload = base.partition(".")
        if namespace == "aten" and hasattr(aten, packet):
            yield base, getattr(getattr(aten, packet), overload or "default", None)


def run(op, x, args):
    results = op(x, *args)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    return [result.resolve_conj().resolve_neg().cpu() for result in results]


def test_copies_of_views(device):
    """All that PyTorch has run on the device, and share nothing with what they are of."""
    names = {
        name
        for name, op in overloads()
        if op is not None
        and name.partition(".")[0].endswith("_copy")
        and not op._schema.is_mutable
        and any(argument.name == "self" for argument in op._schema.arguments)
        and name.partition(".")[0] not in ("index_copy", "_foreach_copy")
    }
    assert names - NOT_DENSE - set(COPIES) == set()
    for name, args in COPIES.items():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet), overload or "default")
        x = rand(3, 4)
        x = rand(3, 2) if packet == "view_as_complex_copy" else x
        if packet in ("view_as_real_copy", "_conj_copy"):
            x = torch.view_as_complex(rand(3, 4, 2))
        mine = x.to(device)
        expected = run(op, x, args)
        met.clear_all()
        results = op(mine, *args)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        assert met.executed_fallback_ops() == [], name
        before = mine.cpu()
        found = [result.resolve_conj().resolve_neg().cpu() for result in results]
        torch.testing.assert_close(found, expected, msg=lambda m, n=name: f"{n}: {m}")
        for result in results:
            result.zero_()
        assert torch.equal(mine.cpu(), before), name


WRITES = {
    "_foreach_copy": lambda x, y: aten._foreach_copy([x], [y])[0],
    "_foreach_zero": lambda x, y: aten._foreach_zero([x])[0],
    "_index_put_impl": lambda x, y: aten._index_put_impl(
        x, [torch.tensor([0, 2], device=x.device)], y[:2]
    ),
    "as_strided_scatter": lambda x, y: aten.as_strided_scatter(x, y[:2, :2], [2, 2], [4, 1], 1),
    "copy": lambda x, y: aten.copy(x, y[0]),
    "copy to a wider dtype": lambda x, y: aten.copy(x.double(), y),
    "diagonal_scatter": lambda x, y: aten.diagonal_scatter(x, y[0, :3]),
    "embedding_renorm": lambda x, y: aten.embedding_renorm(
        x, torch.tensor([0, 2], device=x.device), 0.5, 2.0
    ),
    "fill": lambda x, y: aten.fill.Tensor(x, y[0, 0]) + aten.fill.Scalar(x, 2.5),
    "index_copy": lambda x, y: aten.index_copy(x, 0, torch.tensor([1, 0], device=x.device), y[:2]),
    "index_fill": lambda x, y: aten.index_fill(x, 0, torch.tensor([1], device=x.device), 3.5),
    "masked_scatter": lambda x, y: aten.masked_scatter(x, x > 0, y),
    "resize": lambda x, y: aten.resize(x, [2, 3]),
    "resize_as": lambda x, y: aten.resize_as(x, y[:1]),
    "select_scatter": lambda x, y: aten.select_scatter(x, y[0], 0, 1),
    "slice_scatter": lambda x, y: aten.slice_scatter(x, y[:, :2], 1, 0, 4, 2),
    "zero": lambda x, y: aten.zero(x),
}
NORM = (torch.ones(4), torch.zeros(4), torch.zeros(4), torch.ones(4))


@pytest.mark.parametrize("name", WRITES)
def test_writes(device, name):
    x, y = rand(3, 4), rand(3, 4, seed=1)
    expected = WRITES[name](x, y)
    mine = x.to(device)
    met.clear_all()
    found = WRITES[name](mine, y.to(device))
    assert met.executed_fallback_ops() == []
    torch.testing.assert_close(found.cpu(), expected)
    assert torch.equal(mine.cpu(), x)


def test_statistics_and_optimizers(device):
    """Functional forms of operators that write several tensors."""
    parameters = ([rand(3)], [rand(3, seed=1)], [torch.zeros(3)], [torch.zeros(3)])
    step = [torch.tensor(1.0)]
    settings = {"weight_decay": 0.1, "maximize": False}
    betas = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False, "lr": 0.1}

    def norms(on):
        state = [tensor.to(on) for tensor in NORM]
        x = rand(3, 4).to(on)
        return [
            *aten._native_batch_norm_legit_functional(x, *state, True, 0.1, 1e-5),
            *aten._batch_norm_with_update_functional(x, *state, 0.1, 1e-5)[:3],
        ]

    def optimizers(on):
        p, g, m, v = ([tensor.to(on) for tensor in group] for group in parameters)
        at = [step[0].to(on)]
        adam = aten._fused_adam(p, g, m, v, [], at, **betas, **settings)
        adamw = aten._fused_adamw(p, g, m, v, [], at, **betas, **settings)
        sgd = aten._fused_sgd(
            p,
            g,
            m,
            momentum=0.9,
            lr=0.1,
            dampening=0.0,
            nesterov=False,
            is_first_step=True,
            **settings,
        )
        return [tensor for result in (adam, adamw, sgd) for group in result for tensor in group]

    for f in norms, optimizers:
        expected = f("cpu")
        met.clear_all()
        found = f(device)
        assert met.executed_fallback_ops() == [], f.__name__
        torch.testing.assert_close([x.cpu() for x in found], expected, rtol=1e-5, atol=1e-6)


def test_random(device):
    """Functional forms of draws draw on the device."""
    x = torch.ones(3, 500, device=device)
    met.clear_all()
    drawn = {
        "bernoulli": aten.bernoulli.p(x, 0.3),
        "cauchy": aten.cauchy(x),
        "exponential": aten.exponential(x),
        "geometric": aten.geometric(x, 0.5),
        "log_normal": aten.log_normal(x),
        "normal": aten.normal_functional(x),
        "random": aten.random.from_(x, 2, 7) if hasattr(aten.random, "from_") else aten.random(x),
        "uniform": aten.uniform(x),
        "rrelu": aten.rrelu_with_noise_functional(-x, x, training=True)[0],
    }
    assert met.executed_fallback_ops() == []
    for name, values in drawn.items():
        assert values.cpu().unique().numel() > 1, name
    assert torch.equal(x.cpu(), torch.ones(3, 500))
