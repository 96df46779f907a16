"""XlaFullyShardedDataParallel: the training of whole batches, with a part of everything."""

import functools
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.processes import start_python
from testing.replicas import run_replicas
from torch import nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
from torch_xla.distributed.fsdp import (
    checkpoint_module,
    consolidate_sharded_model_checkpoints,
    wrap,
)

pytestmark = pytest.mark.multiprocess

STEPS = 4


class Net(nn.Module):
    """Blocks, a tied weight, a frozen parameter, a buffer, and one that has no part."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)) for _ in range(2)
        )
        self.head = nn.Linear(6, 6, bias=False)
        self.tail = nn.Linear(6, 6, bias=False)
        self.tail.weight = self.head.weight
        self.frozen = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(5))
        self.register_buffer("offset", torch.full((6,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.tail(torch.tanh(self.head(x))) + self.offset + self.frozen.sum()


def make_net() -> Net:
    torch.manual_seed(2)
    return Net()


def make_batches(count: int) -> torch.Tensor:
    """[steps, count, 4, 6]: a batch of 4 for each replica."""
    return torch.randn(STEPS, count, 4, 6, generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def run_training(options: dict[str, Any], nested: str, clip: float | None) -> dict[str, Any]:
    device = xm.xla_device()
    rank, count = xm.get_ordinal(), xm.xrt_world_size()
    # From the CPU a part alone goes to the device.
    net = make_net() if nested == "policy" else make_net().to(device)
    if nested == "blocks":
        for i, block in enumerate(net.blocks):
            net.blocks[i] = FSDP(block, **options)
    elif nested == "checkpointed":
        for i, block in enumerate(net.blocks):
            net.blocks[i] = FSDP(checkpoint_module(block), **options)
    elif nested == "policy":
        options["auto_wrap_policy"] = functools.partial(
            size_based_auto_wrap_policy, min_num_params=50
        )
    model = FSDP(net, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    compiles, norms = [], []
    for batch in make_batches(count)[:, rank]:
        optimizer.zero_grad()
        loss_of(model, batch.to(device)).backward()
        if clip is not None:
            norms.append(model.clip_grad_norm_(clip))
        optimizer.step()
        torch_xla.sync(wait=True)
        compiles.append(met.counter_value("UncachedCompile") or 0)
    return {
        "state": model.full_state_dict(),
        "sizes": [p.numel() for p in model.parameters()],
        "marked": all(p._is_sharded for p in model.parameters()),  # Lightning asks for it.
        "empty": all(full.numel() == 0 for b in model._buckets for full in b.full),
        "wrappers": sum(isinstance(m, FSDP) for m in model.modules()),
        "gathers": met.counter_value("xla::all_gather"),
        "norms": [norm.item() for norm in norms],
        "compiles": compiles,
    }


def reference(count: int, clip: float | None = None) -> tuple[dict[str, torch.Tensor], list[float]]:
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    norms = []
    for batch in make_batches(count).flatten(1, 2):
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        if clip is not None:
            norms.append(nn.utils.clip_grad_norm_(net.parameters(), clip).item())
        optimizer.step()
    return net.state_dict(), norms


@pytest.mark.parametrize(
    ("options", "nested", "wrappers"),
    [
        ({}, "", 1),
        ({"flatten_parameters": True}, "blocks", 3),
        ({"reshard_after_forward": False}, "blocks", 3),
        ({}, "checkpointed", 3),
        (
            {
                "disable_reshard_on_root": False,
                "sync_on_finalization": True,
                "_shard_size_multiple": 1,
            },
            "policy",
            5,
        ),
        (
            {
                "shard_param_on_dim_0": True,
                "coalesce_all_gather_ops": True,
                "reduce_scatter_bucket_size_mb": 1,
            },
            "blocks",
            3,
        ),
    ],
)
def test_trains_as_one_process(options, nested, wrappers, tmp_path):
    results = run_replicas(run_training, 2, tmp_path, options, nested, None)
    state, _ = reference(2)
    whole = sum(parameter.numel() for parameter in make_net().parameters())
    for out in results:
        assert out["wrappers"] == wrappers
        assert out["empty"] and out["marked"]
        if options.get("shard_param_on_dim_0"):
            # Of odd rows, this one or the other has one more.
            assert (9 + 1) // 2 * 6 in out["sizes"]
        else:
            multiple = options.get("_shard_size_multiple", 128)
            assert all(size % multiple == 0 for size in out["sizes"])
            assert whole / 2 <= sum(out["sizes"]) <= whole / 2 + multiple * len(out["sizes"])
        # Tied parameters are one, but have both of their names in a module's state.
        for name, tensor in state.items():
            found = out["state"].get(name, out["state"].get(name.replace("tail", "head")))
            torch.testing.assert_close(found, tensor, rtol=1e-4, atol=1e-5)
        assert out["compiles"][-1] == out["compiles"][-2]


@pytest.mark.parametrize("clip", [0.1])
def test_clip_grad_norm(clip, tmp_path):
    state, norms = reference(3, clip)
    for out in run_replicas(run_training, 3, tmp_path, {}, "blocks", clip):
        torch.testing.assert_close(out["norms"], norms, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            out["state"]["blocks.0.0.weight"], state["blocks.0.0.weight"], rtol=1e-4, atol=1e-5
        )


def run_checkpoint(folder: str) -> dict[str, Any]:
    rank = xm.get_ordinal()

    def make() -> FSDP:
        net = make_net().to(xm.xla_device())
        net.blocks[0] = FSDP(net.blocks[0], flatten_parameters=True)
        return FSDP(net)

    model = make()
    checkpoint = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}
    xm.save(checkpoint, f"{folder}/model_rank-{rank}.pth", master_only=False)
    xm.rendezvous("saved")
    other = make()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    saved = torch.load(f"{folder}/model_rank-{rank}.pth")
    other.load_state_dict(saved["model"])
    joined = None
    if rank == 0:
        joined, path = consolidate_sharded_model_checkpoints(f"{folder}/model", "_rank-*.pth")
        assert path == f"{folder}/model_consolidated.pth" and Path(path).exists()
    return {"loaded": other.full_state_dict(), "joined": joined}


def test_checkpoints(tmp_path):
    results = run_replicas(run_checkpoint, 2, tmp_path, str(tmp_path))
    state = make_net().state_dict()
    for found in (results[0]["joined"], results[0]["loaded"], results[1]["loaded"]):
        assert set(found) | {"tail.weight"} == set(state)
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, state[name], rtol=0, atol=0)
    # What was joined is for the module itself.
    net = make_net()
    net.load_state_dict(
        {**results[0]["joined"], "tail.weight": results[0]["joined"]["head.weight"]}
    )


# ------------------------------------------------------------------ in one process: one replica


def wrapped(**options: Any) -> nn.Module:
    net = make_net().to("xla")
    net.blocks[0] = FSDP(net.blocks[0], **options)
    return FSDP(net, **options)


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.cpu() for p in model.parameters()]


class Failing(torch.autograd.Function):
    """The identity, whose backward pass fails once."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise MemoryError("as if there were none left")


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("bucket_mb", [0, 1])
def test_a_backward_pass_after_one_that_failed(flatten, bucket_mb, device):
    options = {"flatten_parameters": flatten, "reduce_scatter_bucket_size_mb": bucket_mb}
    batch = make_batches(1)[0, 0].to(device)
    fresh = wrapped(**options)
    loss_of(fresh, batch).backward()
    model = wrapped(**options)
    # Those of the head and of the last block have come by then, those of the first have not.
    hook = model.module.blocks[1].register_forward_pre_hook(
        lambda module, args: Failing.apply(args[0])
    )
    with pytest.raises(MemoryError, match="none left"):
        loss_of(model, batch).backward()
    hook.remove()
    model.zero_grad()
    loss_of(model, batch).backward()
    for found, expected in zip(gradients(model), gradients(fresh), strict=True):
        torch.testing.assert_close(found, expected)
    assert all(full.numel() == 0 for m in model._nested() for b in m._buckets for full in b.full)


def test_the_arguments_are_upstreams():
    names = list(inspect.signature(FSDP.__init__).parameters)[1:]
    assert names[:21] == [
        "module",
        "reshard_after_forward",
        "flatten_parameters",
        "execute_sharding_on_init",
        "optimization_barrier_in_forward",
        "optimization_barrier_in_backward",
        "sync_on_finalization",
        "disable_reshard_on_root",
        "compute_dtype",
        "buffer_dtype",
        "fp32_reduce_scatter",
        "sharding_groups",
        "sharding_rank",
        "sharding_world_size",
        "shard_param_on_dim_0",
        "pin_layout_in_collective_ops",
        "reduce_scatter_bucket_size_mb",
        "coalesce_all_gather_ops",
        "auto_wrap_policy",
        "auto_wrapper_callable",
        "param_init_fn",
    ]


def test_rank_and_size_must_be_those_of_the_group(device):
    for name, given in (("sharding_rank", 1), ("sharding_world_size", 2)):
        with pytest.raises(ValueError, match=f"`{name}` of .*got {given}"):
            wrapped(**{name: given})
    wrapped(sharding_rank=0, sharding_world_size=1)


@pytest.mark.parametrize("recursive", [False, True])
def test_gradient_divide_factors(recursive, device):
    batch = make_batches(1)[0, 0].to(device)
    plain, divided = wrapped(), wrapped()
    divided.set_gradient_divide_factors(2.0, 4.0, recursive)
    assert plain.params_with_grad == []
    loss_of(plain, batch).backward()
    loss_of(divided, batch).backward()
    inner = {id(p) for p in divided.module.blocks[0].parameters()}
    for parameter, grad, expected in zip(
        divided.parameters(), gradients(divided), gradients(plain), strict=True
    ):
        if expected is not None:
            factor = 8 if recursive or id(parameter) not in inner else 1
            torch.testing.assert_close(grad * factor, expected)
    assert len(plain.params_with_grad) == sum(g is not None for g in gradients(plain)) > 4


def test_names_of_sharded_parameters(device):
    model = wrapped(shard_param_on_dim_0=True)
    found = dict(model.get_original_names_and_sharded_parameters())
    expected = dict(make_net().named_parameters())
    assert {name: p.shape for name, p in found.items()} == {
        name: p.shape for name, p in expected.items()
    }
    flat = dict(wrapped(flatten_parameters=True).get_original_names_and_sharded_parameters())
    assert set(flat) == {"flat_param_0", "flat_param_1", "blocks.0.flat_param_0"}


def test_modules_on_the_meta_device(device):
    policy = functools.partial(wrap.always_wrap_policy)
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    torch.manual_seed(0)
    model = FSDP(net, auto_wrap_policy=policy)
    assert model(torch.ones(2, 3, device=device)).cpu().isfinite().all()
    assert all(p.device.type == "xla" and p.cpu().abs().sum() > 0 for p in model.parameters())

    def init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.to_empty(device=device)
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    model = FSDP(net, auto_wrap_policy=policy, param_init_fn=init)
    assert model(torch.ones(1, 3, device=device)).tolist() == [[15, 15]]

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(3, device="meta"))

    with pytest.raises(ValueError, match=r"Bare.*reset_parameters.*param_init_fn"):
        FSDP(Bare())


def by_name(module: nn.Module, recurse: bool, unwrapped_params: int) -> bool:
    return recurse or isinstance(module, nn.Sequential)


@pytest.mark.parametrize(
    ("policy", "wrappers"),
    [
        (by_name, 3),
        (functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={nn.Tanh}), 3),
        (functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=100), 3),
        (
            functools.partial(
                wrap.lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, nn.Linear)
            ),
            7,
        ),
        (ModuleWrapPolicy({nn.Sequential}), 3),
    ],
)
def test_wrap_policies_of_both_kinds(policy, wrappers, device):
    model = FSDP(make_net().to(device), auto_wrap_policy=policy)
    assert sum(isinstance(module, FSDP) for module in model.modules()) == wrappers
    batch = make_batches(1)[0, 0]
    torch.testing.assert_close(
        model(batch.to(device)).cpu(), make_net()(batch), rtol=1e-4, atol=1e-5
    )


def test_recursive_wrap():
    counted = []

    def count(module: nn.Module, **options: Any) -> nn.Module:
        counted.append(options)
        return nn.Sequential(module)

    net, numel = wrap.recursive_wrap(
        nn.Sequential(nn.Linear(2, 3), nn.Tanh()),
        functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear}),
        count,
        set(),
        set(),
        word="given",
    )
    assert isinstance(net[0], nn.Sequential) and counted == [{"word": "given"}]
    assert numel == 9


# ------------------------------------------------------------------------- files of strangers


class Harmful:
    """What runs something when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(self.path),))


consolidate = functools.partial(
    start_python, "-m", "torch_xla.distributed.fsdp.consolidate_sharded_ckpts"
)


def test_consolidation_does_not_run_what_is_in_files(tmp_path):
    touched = tmp_path / "touched"
    torch.save({"model": Harmful(str(touched))}, tmp_path / "model_0.pth")
    with pytest.raises(pickle.UnpicklingError):
        consolidate_sharded_model_checkpoints(str(tmp_path / "model"))
    result = consolidate("--ckpt_prefix", str(tmp_path / "model"), "--ckpt_suffix", "*.pth")
    assert result.returncode != 0 and "weights_only" in result.stderr
    assert not touched.exists()
    with pytest.raises(Exception, match="shard_metadata"):
        consolidate_sharded_model_checkpoints(str(tmp_path / "model"), weights_only=False)
    assert touched.exists()


def test_consolidation_of_checkpoints_of_torch_xla_2_9(tmp_path):
    """Two replicas' files in the form in which it writes them, joined by the command."""
    separator = "_FSDP_SHARD_SEPARATOR_"
    outer = f"_fsdp_shard{separator}_fsdp_wrapped_module{separator}_fpw_module{separator}1"
    inner = f"_fsdp_shard{separator}_fsdp_wrapped_module{separator}flat_param_0"
    weight, bias = torch.arange(10.0).view(2, 5), torch.arange(2.0)
    flat = torch.arange(20.0)
    metadata = {
        "world_size": 2,
        "buffer_info": {},
        "shard_info": {
            "": {
                outer + f"{separator}weight": {
                    "_orig_name": "_fsdp_wrapped_module._fpw_module.1.weight",
                    "_orig_size": weight.shape,
                },
                outer + f"{separator}bias": {
                    "_orig_name": "_fsdp_wrapped_module._fpw_module.1.bias",
                    "_orig_size": bias.shape,
                },
            },
            "_fsdp_wrapped_module.0": {
                inner: {"_orig_name": "_fsdp_wrapped_module.flat_param_0", "_orig_size": flat.shape}
            },
        },
        "flatten_info": {
            "_fsdp_wrapped_module.0._fsdp_wrapped_module.flat_param_0": (
                ["_fpw_module.weight", "_fpw_module.bias"],
                [torch.Size([5, 3]), torch.Size([5])],
                [15, 5],
            )
        },
    }

    def part(tensor: torch.Tensor, rank: int) -> torch.Tensor:
        padded = torch.zeros(256)
        padded[: tensor.numel()] = tensor.flatten()
        # As many as fit, and padding: half of the elements for each.
        half = -(-tensor.numel() // 2)
        return padded[rank * half : (rank + 1) * half]

    for rank in range(2):
        state = {
            outer + f"{separator}weight": part(weight, rank),
            outer + f"{separator}bias": part(bias, rank),
            "_fsdp_wrapped_module.off": torch.ones(2),
            f"_fsdp_wrapped_module.0.{inner}": part(flat, rank),
        }
        torch.save(
            {"model": state, "shard_metadata": {**metadata, "rank": rank}},
            tmp_path / f"model_rank-{rank}-of-2.pth",
        )
    result = consolidate(
        *("--ckpt_prefix", str(tmp_path / "model")),
        *("--ckpt_suffix", "_rank-*-of-*.pth", "--save_path", str(tmp_path / "joined.pth")),
    )
    assert result.returncode == 0, result.stderr
    joined = torch.load(tmp_path / "joined.pth")["model"]
    expected = {
        "1.weight": weight,
        "1.bias": bias,
        "0.weight": flat[:15].view(5, 3),
        "0.bias": flat[15:],
        "off": torch.ones(2),
    }
    assert set(joined) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(joined[name], tensor, rtol=0, atol=0)


def run_variants() -> dict[str, Any]:
    device = xm.xla_device()
    rank, count = xm.get_ordinal(), xm.xrt_world_size()
    batches = make_batches(count)[:, rank].to(device)

    # Gradients that add up before they are reduced.
    model = FSDP(make_net().to(device), flatten_parameters=True)
    with model.no_sync():
        loss_of(model, batches[0]).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    loss_of(model, batches[1]).backward()
    twice = FSDP(make_net().to(device), flatten_parameters=True)
    loss_of(twice, batches[0]).backward()
    loss_of(twice, batches[1]).backward()
    pairs = [
        (a.grad, b.grad)
        for a, b in zip(model.parameters(), twice.parameters(), strict=True)
        if b.grad is not None
    ]
    out: dict[str, Any] = {"no_sync": [(a.cpu(), b.cpu()) for a, b in pairs]}

    # Another dtype for the computation, not for what is kept.
    half = FSDP(make_net().to(device), compute_dtype=torch.bfloat16, fp32_reduce_scatter=True)
    result = half(batches[0])
    out["dtypes"] = (result.dtype, next(half.parameters()).dtype, half.module.offset.dtype)
    result.float().square().mean().backward()
    whole = FSDP(make_net().to(device))
    loss_of(whole, batches[0]).backward()
    out["half"] = [
        (a.grad.cpu(), b.grad.cpu())
        for a, b in zip(half.parameters(), whole.parameters(), strict=True)
        if b.grad is not None
    ]
    with torch.no_grad():
        out["eval"] = whole(batches[0]).cpu()
    with pytest.raises(ValueError, match="wrapped already"):
        FSDP(whole)
    # Sharded within groups of one: nothing to gather.
    alone = FSDP(make_net().to(device), sharding_groups=[[i] for i in range(count)])
    out["alone"] = alone(batches[0]).detach().cpu()
    return out


def test_variants(tmp_path):
    for rank, out in enumerate(run_replicas(run_variants, 2, tmp_path)):
        assert out["no_sync"]
        for a, b in out["no_sync"]:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        assert out["dtypes"] == (torch.bfloat16, torch.float32, torch.bfloat16)
        for a, b in out["half"]:
            torch.testing.assert_close(a, b, rtol=0.1, atol=0.02)
        expected = make_net()(make_batches(2)[0, rank]).detach()
        torch.testing.assert_close(out["eval"], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(out["alone"], expected, rtol=1e-4, atol=1e-5)
