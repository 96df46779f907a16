"""The surfaces of the matrix: ways in which a program is run.

A surface gives what was seen of a program's steps, as tensors and values by name. ``expected`` runs
the same on the CPU, eagerly. torch_xla is imported where it is used, since one surface is a process
that does not import it.
"""

import contextlib
import copy
import dataclasses
import io
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from programs import Program
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Seen = dict[str, Any]
PLAIN = (0, 1, 2)
# Numbers that dynamo makes a symbol of, which it then uses again, and one that it does not.
COMPILED = (1, 2, 3, 2, 0)
# Enough calls of one kind to be recorded and replayed, a change by the host, another number.
REPLAYED = (1, 1, 1, 1, 1, 1, 1, 2, 1)
CHANGES = (2, 6)


def move(batch: Any, device: str) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.to(device), batch)


class Run:
    """A program that is trained, step by step, and what was seen of it.

    Attributes:
        module: The program.
        call: What its forward pass is called by.
        around: What ``step`` is called by.
        keep: How a tensor is kept until the end.
        settle: What is called before tensors are kept.
    """

    def __init__(self, program: type[Program], device: str, rank: int = 0) -> None:
        torch.manual_seed(0)
        self.program, self.device, self.rank = program, device, rank
        self.module: Any = program().to(device)
        self.call: Any = self.module
        self.optimizer: Any = self.module.optimizer(self.module.parameters())
        self.step: Any = self.step_once
        self.clip: Any = lambda norm: nn.utils.clip_grad_norm_(self.module.parameters(), norm)
        self.keep: Callable[[Tensor], Tensor] = lambda t: t.detach().cpu().clone()
        self.settle: Callable[[], None] = (lambda: None) if device == "cpu" else _sync
        self.show_parameters = True
        self.seen: Seen = {}
        self.at = 0

    def batch(self) -> Any:
        return self.module.inputs(10 * self.at + self.rank, self.program.rows)

    def forward_backward(self, x: Any, i: int) -> Any:
        self.optimizer.zero_grad()
        out = self.call(x, i)
        loss = self.program.loss(self.module, out)
        if loss is not None:
            loss.backward()
        return pytree.tree_map_only(Tensor, lambda t: t.detach(), out)

    def update(self) -> None:
        if self.program.max_norm is not None:
            self.clip(self.program.max_norm)
        self.optimizer.step()

    def step_once(self, x: Any, i: int) -> Any:
        out = self.forward_backward(x, i)
        self.update()
        return out

    def advance(self, i: int, x: Any = None) -> None:
        """Goes a step and keeps what is there afterwards."""
        if self.at in CHANGES:
            self.module.change()
        x = move(self.batch(), self.device) if x is None else x
        versions = [t._version for t in tensors(x)]
        out = self.step(x, i)
        changed = [t._version > v for t, v in zip(tensors(x), versions, strict=True)]
        self.note(f"{self.at}", x=x, out=out, changed=changed)
        self.last = x, out
        self.at += 1

    def note(self, prefix: str, **values: Any) -> None:
        if self.show_parameters:
            values["state"] = dict(self.module.state_dict())
            values["grad"] = {n: p.grad for n, p in self.module.named_parameters()}
            values["optimizer"] = self.optimizer.state_dict()["state"]
        else:
            values["state"] = dict(self.module.named_buffers())
        self.settle()
        for path, leaf in pytree.tree_flatten_with_path(values)[0]:
            name = f"step {prefix} {pytree.keystr(path)}"
            self.seen[name] = self.keep(leaf) if isinstance(leaf, Tensor) else leaf

    def finish(self) -> Seen:
        """Writes to every result, each its own amount, and looks what else has changed."""
        x, out = self.last
        for k, t in enumerate(tensors(out)):
            with torch.no_grad(), contextlib.suppress(RuntimeError):
                t.logical_not_() if t.dtype == torch.bool else t.add_(k + 1)
        self.note("after writes to results", x=x, out=out)
        return {n: t.cpu() if isinstance(t, Tensor) else t for n, t in self.seen.items()}


def tensors(tree: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def play(
    program: type[Program],
    device: str,
    numbers: tuple[int, ...] = PLAIN,
    prepare: Callable[[Run], None] = lambda run: None,
    between: Callable[[Run], None] = lambda run: None,
) -> Seen:
    run = Run(program, device)
    prepare(run)
    for i in numbers:
        run.advance(i)
        between(run)
    return run.finish()


@dataclasses.dataclass
class Surface:
    """A way to run programs.

    Attributes:
        name: Its column.
        group: Which of `GROUPS` its process is of.
        run: Runs a program on xla.
        expected: Runs it on the CPU.
    """

    name: str
    group: str
    run: Callable[[type[Program]], Seen]
    expected: Callable[[type[Program]], Seen]


@dataclasses.dataclass
class Group:
    """Surfaces that share a process.

    Attributes:
        environment: Its variables.
        replicas: How many processes it is.
        child: Whether pairs run in children: "", "fork", "spawn".
        imports: Whether torch_xla is imported at first.
        spmd: The mesh of SPMD mode.
    """

    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    replicas: int = 1
    child: str = ""
    imports: bool = True
    spmd: tuple[int, ...] = ()


GROUPS = {
    "lazy": Group(),
    "eager": Group(),
    "replay": Group(),
    "dynamo": Group(),
    "export": Group(),
    "copies": Group(),
    "profile": Group(),
    "devices": Group({"CPU_NUM_DEVICES": "2"}),
    "replicas": Group(replicas=2),
    "spmd2": Group({"CPU_NUM_DEVICES": "2"}, spmd=(2,)),
    "spmd4": Group({"CPU_NUM_DEVICES": "4"}, spmd=(2, 2)),
    "fork": Group(child="fork"),
    "spawn": Group(child="spawn"),
    "plain": Group(child="fork", imports=False),
}
SURFACES: dict[str, Surface] = {}


def surface(name: str, group: str, expected: Any = None, **options: Any) -> Any:
    """Registers ``function(program, device)``, which ``expected`` or itself runs on the CPU."""

    def register(function: Any) -> Any:
        reference = expected or function
        SURFACES[name] = Surface(
            name,
            group,
            lambda program: function(program, "xla"),
            lambda program: reference(program, "cpu"),
        )
        return function

    return register


def plainly(numbers: tuple[int, ...]) -> Any:
    return lambda program, device: play(program, device, numbers)


# ------------------------------------------------------------------ traced


def _sync(wait: bool = False) -> None:
    import torch_xla

    torch_xla.sync(wait=wait)


surface("sync", "lazy", plainly(PLAIN))(plainly(PLAIN))


@surface("no sync", "lazy", plainly(PLAIN))
def _(program, device):
    def prepare(run):
        run.keep = lambda t: t.detach().clone()
        run.settle = lambda: None

    return play(program, device, prepare=prepare)


def compiled_step(**options: Any) -> Any:
    def prepare(run):
        import torch_xla

        run.step = torch_xla.compile(run.step_once, **options)

    return prepare


@surface("compile", "lazy", plainly(PLAIN))
def _(program, device):
    return play(program, device, prepare=compiled_step())


@surface("full graph", "lazy", plainly(PLAIN))
def _(program, device):
    return play(program, device, prepare=compiled_step(full_graph=True))


@surface("replay", "replay", plainly(REPLAYED))
def _(program, device):
    return play(program, device, REPLAYED, prepare=compiled_step(replay=True))


@surface("eager", "eager", plainly(PLAIN))
def _(program, device):
    from torch_xla.experimental import eager_mode

    eager_mode(True)
    try:
        return play(program, device)
    finally:
        eager_mode(False)


@surface("loader", "lazy", plainly(PLAIN))
def _(program, device):
    import torch_xla.distributed.parallel_loader as pl

    run = Run(program, device)
    run.settle = lambda: None  # Values are read as they come.
    batches = [run.module.inputs(10 * at, program.rows) for at in range(len(PLAIN))]
    for i, x in zip(PLAIN, pl.MpDeviceLoader(batches, torch.device("xla:0")), strict=True):
        run.advance(i, x)
    return run.finish()


@surface("threads", "lazy", lambda program, device: two(program, device, in_threads=False))
def _(program, device):
    return two(program, device, program.in_threads)


def two(program: type[Program], device: str, in_threads: bool) -> Seen:
    """Two runs of a program, of different batches, at the same time or one after the other."""
    runs, errors = [Run(program, device, rank) for rank in range(2)], []

    def work(run):
        try:
            for i in PLAIN:
                run.advance(i)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
        if not in_threads:
            thread.join()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return {f"thread {k}, {n}": v for k, run in enumerate(runs) for n, v in run.finish().items()}


class Midway(Exception):
    """What the exceptions of `after an exception` are."""


@surface("after an exception", "lazy")
def _(program, device):
    def fail(*args):
        raise Midway

    def between(run):
        """The forward pass is traced; then a hook, or an operator, or the backward pass, raises."""
        x = move(run.batch(), device)
        hook = run.module.register_forward_hook(fail)
        with contextlib.suppress(Midway):
            run.step(x, 1)
        if run.at == 1 and device != "cpu":
            import torch_xla

            with contextlib.suppress(Midway):
                torch_xla.compile(run.step)(x, 1)
        elif run.at == 1:
            with contextlib.suppress(Midway):
                run.step(x, 1)
        hook.remove()
        with contextlib.suppress(RuntimeError):
            torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device)
        leaf = torch.ones(2, device=device, requires_grad=True)
        (leaf * 2).register_hook(fail)
        with contextlib.suppress(Midway):
            y = leaf * 2
            y.register_hook(fail)
            y.sum().backward()

    return play(program, device, between=between)


@surface("profile", "profile", plainly(PLAIN))
def _(program, device):
    import torch_xla.debug.profiler as xp

    folder = tempfile.mkdtemp(dir=os.environ.get("MATRIX_FOLDER"))
    xp.start_trace(folder)
    try:
        return play(program, device)
    finally:
        xp.stop_trace()
        shutil.rmtree(folder)


@surface("second device", "devices", plainly(PLAIN))
def _(program, device):
    with torch.accelerator.device_index(1):
        return play(program, "xla:1")


# ------------------------------------------------------------------ torch.compile, torch.export


def dynamo(**options: Any) -> Any:
    def prepare(run):
        torch._dynamo.reset()
        run.call = torch.compile(run.module, backend="openxla", **options)

    return prepare


@surface("openxla", "dynamo", plainly(COMPILED))
def _(program, device):
    return play(program, device, COMPILED, prepare=dynamo())


@surface("openxla dynamic", "dynamo", plainly(COMPILED))
def _(program, device):
    return play(program, device, COMPILED, prepare=dynamo(dynamic=True))


def _examples(module: Program, sizes: tuple[int, ...]) -> Iterator[Any]:
    for seed, rows in enumerate(sizes):
        yield module.inputs(seed, rows if module.rows else 0)


def exported(sizes: tuple[int, ...], dynamic: bool) -> Any:
    """A program for inference, exported, saved, loaded, called with batches of these sizes."""

    def run(program, device):
        torch.manual_seed(0)
        module = program().eval()
        call = module
        examples = list(_examples(module, sizes))
        if device != "cpu":
            call = _load_exported(module, examples[0], dynamic)
        seen: Seen = {}
        for k, x in enumerate(examples):
            with torch.no_grad():
                out = (copy.deepcopy(module) if device == "cpu" else call)(move(x, device), 1)
            for path, leaf in pytree.tree_flatten_with_path(out)[0]:
                value = leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf
                seen[f"call {k} {pytree.keystr(path)}"] = value
        return seen

    return run


def _load_exported(module: Program, x: Any, dynamic: bool) -> Any:
    from torch_xla import stablehlo

    shapes = None
    if dynamic and module.rows:
        batch = torch.export.Dim("batch", min=3, max=8)
        shapes = (pytree.tree_map_only(Tensor, lambda t: {0: batch}, x), None)
    try:
        with torch.no_grad():
            program = torch.export.export(module, (x, 1), dynamic_shapes=shapes)
    except Exception as error:
        raise RuntimeError(f"torch.export refuses it: {_text(error)[:300]}") from error
    folder = tempfile.mkdtemp(dir=os.environ.get("MATRIX_FOLDER"))
    try:
        stablehlo.save_as_stablehlo(program, folder)
        return stablehlo.StableHLOGraphModule.load(folder)
    finally:
        shutil.rmtree(folder)


surface("export", "export")(exported((4, 4), False))
surface("export dynamic", "export")(exported((4, 5, 3), True))


# ------------------------------------------------------------------ copies between two steps


def anew(run: Run, state: Any, optimizer_state: Any) -> None:
    """Goes on with another module, and its optimizer, of this state."""
    run.module = run.call = run.program().to(run.device)
    run.module.load_state_dict(state)
    run.optimizer = run.module.optimizer(run.module.parameters())
    run.optimizer.load_state_dict(optimizer_state)


def copied(between: Callable[[Run], None]) -> Any:
    return lambda program, device: play(program, device, between=between)


def _copy(run: Run) -> None:
    """Shallow copies of tensors, kept, and what is saved while they live."""
    kept = run.__dict__.setdefault("kept", [])
    run.note(f"{run.at} kept", kept=kept)
    kept.append({n: copy.copy(t) for n, t in run.module.state_dict().items()})
    kept.append([copy.copy(t) for t in tensors(run.last[1])])
    run.module = run.call = copy.copy(run.module)
    file = io.BytesIO()
    torch.save((run.module.state_dict(), kept), file)
    file.seek(0)
    saved = torch.load(file)
    run.note(f"{run.at} saved", saved=saved, pickled=pickle.loads(pickle.dumps(kept)))


def _deepcopy(run: Run) -> None:
    run.__dict__.setdefault("old", []).append(run.module)
    run.module, run.optimizer = copy.deepcopy((run.module, run.optimizer))
    run.call = run.module
    run.note(f"{run.at} old", old=[dict(module.state_dict()) for module in run.old])


def _pickle(run: Run) -> None:
    run.module, run.optimizer = pickle.loads(pickle.dumps((run.module, run.optimizer)))
    run.call = run.module


def _save(run: Run) -> None:
    file = io.BytesIO()
    torch.save((run.module.state_dict(), run.optimizer.state_dict(), run.last), file)
    file.seek(0)
    state, optimizer_state, last = torch.load(file, weights_only=False)
    anew(run, state, optimizer_state)
    run.note(f"{run.at} loaded", last=last)


def _safetensors(run: Run) -> None:
    from safetensors.torch import load_model, save_model

    folder = tempfile.mkdtemp(dir=os.environ.get("MATRIX_FOLDER"))
    try:
        save_model(run.module, f"{folder}/model.safetensors")
        fresh = run.program().to(run.device)
        load_model(fresh, f"{folder}/model.safetensors", device=run.device)
    finally:
        shutil.rmtree(folder)
    anew(run, fresh.state_dict(), run.optimizer.state_dict())


def _queue(run: Run) -> None:
    queue = torch.multiprocessing.get_context("fork").Queue()
    queue.put((dict(run.module.state_dict()), run.optimizer.state_dict()))
    anew(run, *queue.get(timeout=10))
    queue.close()
    queue.join_thread()


surface("copy", "copies")(copied(_copy))
surface("deepcopy", "copies")(copied(_deepcopy))
surface("pickle", "copies")(copied(_pickle))
surface("torch.save", "copies")(copied(_save))
surface("safetensors", "copies")(copied(_safetensors))
surface("mp.Queue", "copies")(copied(_queue))


# ------------------------------------------------------------------ replicas


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def replicas_on_cpu(buffers: bool = False, parameters: bool = True, gathered: bool = False) -> Any:
    """Two copies of a program whose gradients are averaged, in one process; what this one sees.

    Args:
        buffers: Whether the first one's are sent to the others in each step.
        parameters: Whether they are looked at.
        gathered: Whether parameters are made for a step: what it writes to them does not last.
    """

    def run(program, device):
        runs = [Run(program, device, k) for k in range(2)]
        for one in runs:
            one.show_parameters = parameters
        for i in PLAIN:
            if runs[0].at in CHANGES:
                for one in runs:
                    one.module.change()
            kept = []
            first = [b.clone() for b in runs[0].module.buffers()]
            for one in runs:
                for mine, sent in zip(one.module.buffers(), first, strict=True):
                    if buffers:
                        mine.copy_(sent)
                x = one.batch()
                versions = [t._version for t in tensors(x)]
                before = [p.detach().clone() for p in one.module.parameters()]
                out = one.forward_backward(x, i)
                changed = [t._version > v for t, v in zip(tensors(x), versions, strict=True)]
                kept.append((x, out, changed))
                for p, value in zip(one.module.parameters(), before, strict=True):
                    if gathered:
                        p.data.copy_(value)
            for p, q in zip(*(one.module.parameters() for one in runs), strict=True):
                if p.grad is not None:
                    p.grad = (p.grad + q.grad) / 2
                    q.grad = p.grad.clone()
            for one, (x, out, changed) in zip(runs, kept, strict=True):
                one.update()
                one.note(f"{one.at}", x=x, out=out, changed=changed)
                one.last = x, out
                one.at += 1
        return runs[rank()].finish()

    return run


def replica(program: type[Program], device: str, prepare: Callable[[Run], None]) -> Seen:
    import torch.distributed as dist

    import torch_xla.distributed.xla_backend  # noqa: F401

    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    run = Run(program, device, rank())
    prepare(run)
    for i in PLAIN:
        run.advance(i)
    return run.finish()


@surface("DDP", "replicas", replicas_on_cpu(buffers=True))
def _(program, device):
    def prepare(run):
        if rank():  # Rank 0's are sent to the others.
            with torch.no_grad():
                for t in [*run.module.parameters(), *run.module.buffers()]:
                    t.fill_(1)
        run.call = nn.parallel.DistributedDataParallel(run.module)

    return replica(program, device, prepare)


@surface("reduce_gradients", "replicas", replicas_on_cpu())
def _(program, device):
    def prepare(run):
        import torch_xla.core.xla_model as xm

        update = run.update
        xm.broadcast_master_param(run.module)
        run.update = lambda: (xm.reduce_gradients(run.optimizer), update())

    return replica(program, device, prepare)


@surface("FSDP", "replicas", replicas_on_cpu(parameters=False, gathered=True))
def _(program, device):
    def prepare(run):
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

        run.call = XlaFullyShardedDataParallel(run.module)
        run.optimizer = run.module.optimizer(run.call.parameters())
        run.clip = run.call.clip_grad_norm_
        run.show_parameters = False

    return replica(program, device, prepare)


@surface("ZeRO-1", "replicas", replicas_on_cpu(parameters=False))
def _(program, device):
    def prepare(run):
        from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

        plain = run.optimizer
        clip = {"grad_clipping": program.max_norm is not None, "max_norm": program.max_norm or 1.0}
        names = {"lr", "momentum", "betas", "eps", "weight_decay", "foreach", "fused", "centered"}
        defaults = {n: v for n, v in plain.defaults.items() if n in names}
        run.optimizer = ZeroRedundancyOptimizer(
            [{k: v for k, v in g.items() if k in names | {"params"}} for g in plain.param_groups],
            type(plain),
            **clip,
            **defaults,
        )
        run.clip = lambda norm: None
        run.show_parameters = False

    return replica(program, device, prepare)


# ------------------------------------------------------------------ SPMD


def sharded(program: type[Program], device: str) -> Seen:
    """The batch over the mesh's first axis, parameters of two dimensions over its last one."""
    import torch_xla.distributed.spmd as xs

    mesh = xs.get_global_mesh()
    names = mesh.axis_names

    def mark(t: Tensor, axis: str) -> None:
        if t.dim() and t.shape[0] > 1:
            xs.mark_sharding(t, mesh, (axis, *[None] * (t.dim() - 1)))

    def prepare(run):
        batch = run.batch
        run.batch = lambda: marked(move(batch(), device))
        for p in run.module.parameters():
            if p.dim() > 1:
                mark(p, names[-1])
        run.optimizer = run.module.optimizer(run.module.parameters())

    def marked(x):
        for t in tensors(x):
            mark(t, names[0])
        return x

    return play(program, device, prepare=prepare)


surface("SPMD 2", "spmd2", plainly(PLAIN))(sharded)
surface("SPMD 2x2", "spmd4", plainly(PLAIN))(sharded)


# ------------------------------------------------------------------ processes

for _name, _group in {"forked": "fork", "spawned": "spawn", "no import": "plain"}.items():
    surface(_name, _group, plainly(PLAIN))(plainly(PLAIN))


# ------------------------------------------------------------------ in the process


def enter(group: Group) -> None:
    """What a process of a group does first."""
    torch.set_num_threads(1)
    if not group.imports:
        return
    import torch_xla  # noqa: F401
    import torch_xla.runtime as xr

    if group.spmd:
        import torch_xla.distributed.spmd as xs

        xr.use_spmd()
        count = torch.Size(group.spmd).numel()
        names = ("data", "model")[: len(group.spmd)]
        xs.set_global_mesh(xs.Mesh(range(count), group.spmd, names))


def train_a_little(group: Group) -> str:
    """A training step, which has to work whatever was run before; "" or what is wrong."""
    try:
        results = []
        for device in ("cpu", "xla"):
            x = torch.arange(12.0, device=device).view(3, 4) / 8
            w = torch.ones(4, 2, device=device, requires_grad=True)
            optimizer = torch.optim.SGD([w], lr=0.1)
            (x @ w).relu().square().sum().backward()
            optimizer.step()
            if group.replicas > 1 and device == "xla":
                import torch_xla.core.xla_model as xm

                xm.all_reduce(xm.REDUCE_SUM, [w.data], scale=1 / group.replicas)
            results.append(w.detach().cpu())
        torch.testing.assert_close(results[1], results[0])
        return ""
    except BaseException as error:  # noqa: BLE001 - it is what is asked for
        return f"{type(error).__name__}: {error}"


def difference(seen: Seen, expected: Seen, rtol: float) -> str:
    """The first differences, by name, or an empty text."""
    found = [f"{name}: missing" for name in expected if name not in seen]
    found += [f"{name}: only on xla" for name in seen if name not in expected]
    for name, value in expected.items():
        if name not in seen:
            continue
        got = seen[name]
        if not isinstance(value, Tensor) or not isinstance(got, Tensor):
            same = type(got) is type(value) and got == value
            found += [] if same else [f"{name}: {got!r}, not {value!r}"]
            continue
        if got.shape != value.shape or got.dtype != value.dtype:
            found.append(
                f"{name}: {got.dtype} {list(got.shape)}, not {value.dtype} {list(value.shape)}"
            )
            continue
        if value.dtype in (torch.bfloat16, torch.float16):
            rtol = max(rtol, 3e-2)
        if not torch.allclose(got, value, rtol=rtol, atol=rtol / 4, equal_nan=True):
            numbers = f"{got.flatten()[:6].tolist()}, not {value.flatten()[:6].tolist()}"
            found.append(f"{name}: {numbers}")
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return "; ".join(found[:3]) + more


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def pair(program: type[Program], name: str) -> tuple[str, str]:
    """Runs a program under a surface: ("equal" | "different" | "raised", what was seen)."""
    way, expected, refusal = SURFACES[name], {}, ""
    try:
        expected = way.expected(program)
    except Exception as error:  # noqa: BLE001 - xla has to raise it, too
        refusal = _text(error)
    try:
        seen = way.run(program)
    except Exception as error:  # noqa: BLE001 - it is what is asked for
        same = refusal and refusal[:60] == _text(error)[:60]
        return ("equal", "") if same else ("raised", _text(error))
    said = difference(seen, expected, program.rtol) if not refusal else f"no error, not {refusal}"
    return ("different", said) if said else ("equal", "")
