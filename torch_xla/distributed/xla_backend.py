"""``torch.distributed`` over the replicas: the backend ``xla``.

Importing ``torch_xla`` registers it, and ``init_method="xla://"``::

    import torch.distributed as dist
    import torch_xla

    dist.init_process_group("xla", init_method="xla://")

The collectives are traced like any operation, in the order of the program; a returned work is
done at once, since the tensors that it is about are those of the graph. Tensors on the CPU go by
Gloo, whether the group is one of ``"xla"`` or of ``"cpu:gloo,xla:xla"``.
"""

from __future__ import annotations

import collections
import concurrent.futures
import datetime
import functools
import sys
import threading
import time
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work
from torch._C._dynamo import eval_frame
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.nn.parallel import DistributedDataParallel

from torch_xla import _XLAC
from torch_xla._internal.compile.step import sync
from torch_xla._internal.replicas import replication
from torch_xla.core import collectives

# The longest wait for Gloo before checking whether a member has ended.
_LOOK = datetime.timedelta(seconds=1)

# The number of elements of the largest tile that a TPU has for any dtype.
_TILE = 32 * 128

_REDUCTIONS = {
    dist.ReduceOp.SUM: collectives.REDUCE_SUM,
    dist.ReduceOp.AVG: collectives.REDUCE_SUM,
    dist.ReduceOp.PREMUL_SUM: collectives.REDUCE_SUM,
    dist.ReduceOp.PRODUCT: collectives.REDUCE_MUL,
    dist.ReduceOp.MIN: collectives.REDUCE_MIN,
    dist.ReduceOp.MAX: collectives.REDUCE_MAX,
    dist.ReduceOp.BAND: collectives.REDUCE_AND,
    dist.ReduceOp.BOR: collectives.REDUCE_OR,
    dist.ReduceOp.BXOR: collectives.REDUCE_XOR,
}


def _is_average(op: Any) -> bool:
    return bool(getattr(op, "op", op) == dist.ReduceOp.AVG)


def _factor(op: Any) -> Any:
    """What ``ReduceOp.PREMUL_SUM(factor)`` multiplies each member's tensor by, a number or tensor.

    ``fully_shard`` reduces by it after ``set_gradient_divide_factor``.
    """
    state: Any = op.__getstate__() if type(op) is dist.ReduceOp else (op, None)
    return state[1]


def _done(tensors: Any) -> Work:
    return _XLAC._xla_done_work(list(_leaves(tensors)))


def _leaves(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _leaves(value)


def _is_beside() -> bool:
    """Whether this thread is a helper thread, such as one that saves checkpoints.

    Threads that Python has not started (Gloo's, which call what waits for a future, and autograd's)
    go on with what the program began, which another replica may do in its main thread.
    """
    thread = threading.current_thread()
    is_started_by_python = type(thread) is not threading._DummyThread
    return is_started_by_python and thread is not threading.main_thread()


# How many tensors (or lists) come first in the short forms of ProcessGroup's collectives, that have
# a tensor instead of a list of tensors, and numbers instead of options.
_SHORT_FORMS = {"allreduce": 1, "broadcast": 1, "reduce": 1, "allgather": 2, "gather": 2}
_SHORT_FORMS |= {"scatter": 2, "reduce_scatter": 2}


def _long_form(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the lists and options that a short form of a collective stands for."""
    options = types.SimpleNamespace(rootRank=0, reduceOp=dist.ReduceOp.SUM)
    names = {int: "rootRank", datetime.timedelta: "timeout"}
    for value in (*args[_SHORT_FORMS[name] :], *kwargs.values()):
        setattr(options, names.get(type(value), "reduceOp"), value)
    tensors = args[: _SHORT_FORMS[name]]  # An empty list is of who gets or gives nothing.
    return (*([x] if isinstance(x, torch.Tensor) or x else [] for x in tensors), options)


def _by_place(method: Callable[..., Work]) -> Callable[..., Work]:
    """Makes a collective that takes CPU tensors, too; they go by Gloo."""

    @functools.wraps(method)
    def collective(self: ProcessGroupXla, *args: Any, **kwargs: Any) -> Work:
        name = method.__name__
        if {tensor.device.type for tensor in _leaves(args)} != {"cpu"}:
            if name in _SHORT_FORMS and any(isinstance(x, torch.Tensor) for x in args[:2]):
                args, kwargs = _long_form(name, args, kwargs), {}
            return method(self, *args, **kwargs)
        # Other members may wait for operations that are traced here, so sync. A thread without xla
        # tensors (such as PyTorch's thread that saves checkpoints) has traced nothing, and would
        # cut other threads' steps at any place.
        if not torch._C._is_multithreading_enabled():
            sync()
        # Messages have tags, so a sender and a receiver may be threads of different kinds.
        kind = _HostMessage if name in ("send", "recv", "recv_anysource") else _HostWork
        beside = kind is _HostWork and _is_beside()
        return kind(getattr(self._host(beside), name)(*args, **kwargs), self._members)

    # A graph of torch.compile ends before a collective that PyTorch has no functional form of, as
    # before those of its own groups. Dynamo would trace this, and refuses the group's attributes.
    skip = eval_frame._FrameAction.SKIP
    code = collective.__code__  # type: ignore[attr-defined]
    eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))
    vars(collective)["_torchdynamo_disable"] = True
    return collective


class _HostWork(Work):
    """A work of Gloo whose errors name the replica that has ended.

    Gloo does not know which one that is, and waits for members that ended before it knew them.
    """

    def __init__(self, work: Work, members: Sequence[int]) -> None:
        super().__init__()
        self._work, self._members = work, members

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        end = time.monotonic() + timeout.total_seconds() if timeout else None
        while True:
            was_done = self.is_completed()
            try:
                return self._look()
            except RuntimeError as error:
                if self.is_completed() and not was_done:
                    continue  # It ended just after that moment, perhaps well.
                replication.raise_for_ended(error, self._members, was_done)
                if was_done or (end is not None and time.monotonic() > end):
                    raise

    def _look(self) -> bool:
        """Waits for a moment; raises RuntimeError if it is not done then, or has failed."""
        return bool(self._work.wait(_LOOK))

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_success()

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._work.result()

    def get_future(self) -> torch.futures.Future[Any]:
        return self._work.get_future()


class _HostMessage(_HostWork):
    """A message of Gloo. A wait for one that is given up closes the connection, so a thread waits.

    It has Gloo's own timeout, that of the group.
    """

    _waiting: concurrent.futures.Future[bool] | None = None

    def _look(self) -> bool:
        if self._waiting is None:
            self._waiting = concurrent.futures.Future()
            arguments = (self._work, self._waiting)
            threading.Thread(target=self._wait_for, args=arguments, daemon=True).start()
        try:
            return self._waiting.result(_LOOK.total_seconds())
        except concurrent.futures.TimeoutError:
            raise RuntimeError("a message between replicas timed out") from None

    @staticmethod
    def _wait_for(work: Work, waiting: concurrent.futures.Future[bool]) -> None:
        try:
            waiting.set_result(bool(work.wait()))
        except RuntimeError as error:
            waiting.set_exception(error)

    def is_completed(self) -> bool:
        return self._waiting is not None and self._waiting.done()

    def source_rank(self) -> int:
        return int(self._work._source_rank())

    _source_rank = source_rank


class _Receive(Work):
    """The work that ``irecv`` returns; the receive is traced when somebody waits for it.

    What the program sends until then is sent before; at once, neighbours that receive before they
    send would wait for each other. Messages come in the order of their ``irecv``, whatever the
    order of the waits, so the earlier ones of ``queue`` are traced first.
    """

    def __init__(
        self,
        tensors: list[torch.Tensor],
        source: int,
        trace: Callable[[torch.Tensor], None],
        queue: collections.deque[_Receive],
    ) -> None:
        super().__init__()
        self._tensors, self._trace, self._queue = tensors, trace, queue
        self._source = source
        self._traced = False
        queue.append(self)

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        while not self._traced:
            first = self._queue.popleft()
            first._traced = True
            for tensor in first._tensors:
                first._trace(tensor)
        return True

    def is_completed(self) -> bool:
        return self.wait()

    def is_success(self) -> bool:
        return self.wait()

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[Any]:
        self.wait()
        return _done(self._tensors).get_future()


class ProcessGroupXla(dist.ProcessGroup):
    """A group of replicas; made by ``init_process_group`` and ``new_group``.

    Of the forms that the base class has a method in, it has the one that PyTorch's functions call.

    Args:
        members: The ordinals of the group, in order of their ranks in it.
        rank: This replica's rank in the group.
        store: The group's, in which the members find each other for tensors on the CPU.
        timeout: Of the collectives of those.
    """

    supports_splitting = False

    def __init__(
        self, members: Sequence[int], rank: int, store: Store, timeout: datetime.timedelta
    ) -> None:
        super().__init__(rank, len(members))  # type: ignore[call-arg]
        self._store, self._timeout = store, timeout
        self._host_groups: dict[bool, dist.ProcessGroup] = {}
        self._lock = threading.Lock()  # For the host groups.
        # Pending receives, by source and tag.
        self._receives: dict[tuple[int, int], collections.deque[_Receive]] = {}
        self._members = list(members)
        self._name = self._description = ""
        # For all replicas use the same form as xm's functions, so that both are one program.
        world = members == list(range(replication.topology().world_size))
        self._groups = [] if world else [self._members]

    def getBackendName(self) -> str:  # noqa: N802
        return "xla"

    # PyTorch sets these names on a group's backends, but this group has none.

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        # PyTorch puts pickled objects on the CPU if it is in this list. On xla they would be
        # traced, and would wait for the sender's next step.
        return [torch.device("cpu"), torch.device("xla")]

    def _get_backend(self, device: torch.device) -> Any:
        """Returns the backend for tensors on ``device``, whose abilities PyTorch looks up."""
        if device.type == "cpu":
            return self._host()._get_backend(device)
        if device.type != "xla":
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self

    def _host(self, beside: bool = False) -> dist.ProcessGroup:
        """The members by Gloo, which connects two of them when they first need it.

        Args:
            beside: Whether it is for threads beside the main one, whose collectives come in an
                order of their own: PyTorch's thread that saves a checkpoint.
        """
        with self._lock:
            if beside in self._host_groups:
                return self._host_groups[beside]
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = self._timeout
            options._devices = [
                dist.ProcessGroupGloo.create_device(hostname=replication.address(), lazy_init=True)
            ]
            options._threads = 2
            # A client serves one call at a time, and Gloo waits for members in a call.
            store = dist.PrefixStore(f"beside {beside}", self._store.clone())  # type: ignore[attr-defined]
            gloo = dist.ProcessGroupGloo(store, self.rank(), self.size(), options)
            kind = dist.ProcessGroup.BackendType.GLOO
            group = dist.ProcessGroup(store, self.rank(), self.size())
            group._set_default_backend(kind)
            group._register_backend(torch.device("cpu"), kind, gloo)
            self._host_groups[beside] = group
            return group

    def _alone(self) -> bool:
        return len(self._members) == 1

    def _run(
        self,
        kind: str,
        tensors: Sequence[torch.Tensor],
        arguments: Sequence[int] = (),
        op: Any = dist.ReduceOp.SUM,
        in_place: bool = False,
    ) -> list[torch.Tensor]:
        with torch.no_grad():
            tensors = [tensor.detach() for tensor in tensors]
            reduction = _REDUCTIONS[getattr(op, "op", op)]
            factor = _factor(op)
            if factor is not None:
                tensors = [
                    tensor.mul_(factor) if in_place else tensor * factor for tensor in tensors
                ]
            if self._alone():
                results = tensors if in_place else [tensor.clone() for tensor in tensors]
            else:
                results = collectives.run(
                    kind, tensors, self._groups, arguments, reduction, in_place
                )
            if _is_average(op):
                for result in results:
                    result.div_(self.size())
            return results

    def _check_message(self, other: int, tag: int) -> None:
        if other == self.rank():
            raise ValueError("send, recv: the xla backend sends to other ranks, not to its own")
        if not 0 <= tag < 1 << 31:
            raise ValueError(f"send, recv: expected a tag from 0 to {(1 << 31) - 1}, got {tag}")

    def _transfer(
        self, tensor: torch.Tensor, source: int, target: int, tag: int = 0
    ) -> torch.Tensor:
        """Traces a transfer between two ranks of the group; only these two trace it.

        Messages of a group and a tag come in their order, whatever goes the other way. The result
        has one dimension: the ends must agree on a number of elements, not on a shape.
        """
        pair = [self._members[source], self._members[target]]
        arguments = [*pair, tag, zlib.crc32(self._name.encode())]
        with torch.no_grad():
            flat = tensor.detach().reshape(-1)
            return collectives.run("transfer", [flat], [sorted(pair)], arguments)[0]

    @_by_place
    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        op = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
        self._run("all_reduce", tensors, op=op, in_place=True)
        return _done(tensors)

    @_by_place
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    @_by_place
    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        results = self._run("all_reduce", tensors, op=opts.reduceOp)
        if self.rank() == opts.rootRank:
            self._write(tensors, results)
        return _done(tensors)

    @_by_place
    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        place = 0 if opts is None else getattr(opts, "rootRank", opts)
        if not 0 <= place < len(self._members):
            raise ValueError(
                f"broadcast: expected a source from 0 to {len(self._members) - 1}, its rank in the "
                f"group, got {place}"
            )
        root = self._members[place]
        self._run("broadcast", tensors, [root], in_place=True)
        # DistributedDataParallel reads the order of its buckets once, in its second forward pass.
        # That does not depend on the step, so the step stays one graph.
        caller = sys._getframe(1).f_back  # The caller of the wrapper that @_by_place made.
        if caller and caller.f_code is DistributedDataParallel._pre_forward.__code__:
            before = _XLAC._xla_forbid_cuts(None)
            try:
                for tensor in tensors:
                    tensor.cpu()
            finally:
                _XLAC._xla_forbid_cuts(before)
        return _done(tensors)

    def _check_lists(self, name: str, *lists: Sequence[torch.Tensor]) -> None:
        for count in map(len, lists):
            if count != self.size():
                raise ValueError(f"{name}: expected a list of {self.size()} tensors, got {count}")

    @staticmethod
    def _check_dtype(name: str, output: torch.Tensor, input: torch.Tensor) -> None:
        if output.dtype != input.dtype:
            raise TypeError(f"{name}: expected an output of {input.dtype}, got {output.dtype}")

    @staticmethod
    def _check_size(name: str, output: torch.Tensor, expected: int) -> None:
        """Checks a size before tracing: others would wait for a collective that is refused."""
        if output.numel() != expected:
            raise ValueError(
                f"{name}: expected an output of {expected} elements, got one of shape "
                f"{list(output.shape)}"
            )

    @staticmethod
    def _write(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for target, value in zip(targets, values, strict=True):
                target.detach().copy_(value.reshape(target.shape))

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The members' tensors, [n, ...]."""
        return self._run("all_gather", [tensor.unsqueeze(0)], [0])[0]

    @_by_place
    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        self._check_lists("all_gather", *outputs)
        for targets, tensor in zip(outputs, inputs, strict=True):
            self._check_size("all_gather", targets[self.rank()], tensor.numel())
            if len({target.numel() for target in targets}) == 1:
                self._write(targets, self._gathered(tensor).unbind(0))
                continue
            # Tensors have several sizes, which all members know from the outputs.
            self._write([targets[self.rank()]], [tensor])
            for member, target in zip(self._members, targets, strict=True):
                self._run("broadcast", [target], [member], in_place=True)
        return _done(outputs)

    @_by_place
    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        for i, tensor in enumerate(inputs):
            self.allgather([[of_member[i] for of_member in outputs]], [tensor], opts)
        return _done(outputs)

    @_by_place
    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    @_by_place
    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_dtype("all_gather_into_tensor", output, tensor)
            self._check_size("all_gather_into_tensor", output, tensor.numel() * self.size())
            self._write([output], [self._gathered(tensor)])
        return _done(outputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _scattered(self, tensor: torch.Tensor, op: Any) -> torch.Tensor:
        """Reduces [n, ...] over the members; returns this member's part, [...]."""
        if _XLAC._xla_platform() != "TPU":
            return self._run("reduce_scatter", [tensor], [0], op)[0].squeeze(0)
        # The TPU compiler only scatters whole tiles. Otherwise it reduces for all members and cuts.
        with torch.no_grad():
            rows = tensor.reshape(self.size(), -1)
            count = rows.shape[1]
            tiles = torch.nn.functional.pad(rows, (0, -count % _TILE)).view(self.size(), -1, 128)
            part = self._run("reduce_scatter", [tiles], [0], op)[0]
            return part.flatten()[:count].view(tensor.shape[1:])

    @_by_place
    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Work:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        self._check_lists("reduce_scatter", *inputs)
        for output, parts in zip(outputs, inputs, strict=True):
            self._check_size("reduce_scatter", output, parts[self.rank()].numel())
            if len({part.numel() for part in parts}) == 1:
                self._write([output], [self._scattered(torch.stack(parts), op)])
                continue
            reduced = self._run("all_reduce", parts, op=op)
            self._write([output], [reduced[self.rank()]])
        return _done(outputs)

    @_by_place
    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    @_by_place
    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_dtype("reduce_scatter_tensor", output, tensor)
            if output.numel() * self.size() != tensor.numel():
                raise ValueError(
                    f"reduce_scatter_tensor: expected an input of {self.size()} times the output's "
                    f"{output.numel()} elements, got one of shape {list(tensor.shape)}"
                )
            parts = tensor.reshape(self.size(), output.numel())
            self._write([output], [self._scattered(parts, op)])
        return _done(outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _exchange(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Sends part i to member i, pair by pair, since only each pair knows the sizes."""
        if not collectives.on_host():
            self._exchange_evenly(outputs, inputs)
            return
        results: dict[int, torch.Tensor] = {self.rank(): inputs[self.rank()]}
        # All members use the same order.
        for source in range(self.size()):
            for target in range(self.size()):
                if source == target or self.rank() not in (source, target):
                    continue
                if source == self.rank():
                    if inputs[target].numel():
                        self._transfer(inputs[target], source, target)
                elif outputs[source].numel():
                    empty = torch.zeros_like(outputs[source])
                    results[source] = self._transfer(empty, source, target)
        targets = [outputs[i] for i in results]
        self._write(targets, list(results.values()))

    def _exchange_evenly(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> None:
        """Exchanges parts of one shape, where all members must trace the same."""
        shapes = sorted({tuple(tensor.shape) for tensor in (*outputs, *inputs)})
        if len(shapes) != 1:
            raise RuntimeError(
                f"all_to_all: on {_XLAC._xla_platform()} all parts must have one shape, "
                f"got {', '.join(str(list(shape)) for shape in shapes)}"
            )
        exchanged = self._run("all_to_all", [torch.stack(list(inputs))], [0, 0])[0]
        self._write(outputs, exchanged.unbind(0))

    @_by_place
    def alltoall(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        self._check_lists("all_to_all", outputs, inputs)
        self._exchange(outputs, inputs)
        return _done(outputs)

    @_by_place
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> Work:
        if not output_split_sizes and not input_split_sizes:
            # Without sizes all members split the tensor evenly.
            if input.shape[0] % self.size():
                raise ValueError(
                    f"all_to_all_single: expected an input whose first dimension is divisible by "
                    f"the group's {self.size()} members, got {list(input.shape)}"
                )
            self._check_size("all_to_all_single", output, input.numel())
            parts = input.reshape(self.size(), -1)
            self._write([output], self._run("all_to_all", [parts], [0, 0]))
            return _done(output)
        even_out = [output.shape[0] // self.size()] * self.size()
        even_in = [input.shape[0] // self.size()] * self.size()
        with torch.no_grad():
            outputs = output.detach().split(output_split_sizes or even_out)
            inputs = input.detach().split(input_split_sizes or even_in)
        self._exchange(outputs, inputs)
        return _done(output)

    alltoall_base = all_to_all_single

    @_by_place
    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        self._check_lists("gather", *outputs)
        for targets, tensor in zip(outputs, inputs, strict=False):
            for target in targets:
                self._check_size("gather", target, tensor.numel())
        gathered = [self._gathered(tensor) for tensor in inputs]
        if self.rank() == opts.rootRank:
            for targets, values in zip(outputs, gathered, strict=True):
                self._write(targets, values.unbind(0))
        return _done(outputs)

    @_by_place
    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Work:
        root = opts.rootRank
        self._check_lists("scatter", *inputs)
        for output, parts in zip(outputs, inputs, strict=False):
            for part in parts:
                self._check_size("scatter", output, part.numel())
        if not collectives.on_host():
            # All members trace the same operations; data that other members send is not used.
            for i, output in enumerate(outputs):
                parts = inputs[i] if self.rank() == root else [output] * self.size()
                sent = self._run("all_to_all", [torch.stack(list(parts))], [0, 0])[0]
                self._write([output], [sent[root]])
            return _done(outputs)
        if self.rank() != root:
            for output in outputs:
                value = self._transfer(torch.zeros_like(output), root, self.rank())
                self._write([output], [value])
            return _done(outputs)
        for member in range(self.size()):
            for output, parts in zip(outputs, inputs, strict=True):
                if member == root:
                    self._write([output], [parts[root]])
                else:
                    self._transfer(parts[member], root, member)
        return _done(outputs)

    # PyTorch opens a batch of collectives with these. Traced collectives are a batch anyway.

    def _start_coalescing(self, device: torch.device) -> None:
        pass

    def _end_coalescing(self, device: torch.device) -> Work:
        return _done(None)

    def barrier(self, opts: Any = None) -> Work:
        if _is_beside():  # Traced, its place among the program's collectives would be arbitrary.
            return _HostWork(self._host(beside=True).barrier(), self._members)
        if not self._alone():
            token = torch.zeros(1, device="xla")
            self._run("all_reduce", [token], in_place=True)
            token.cpu()
        return _done(None)

    @_by_place
    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        self._check_message(dst, tag)
        for tensor in tensors:
            self._transfer(tensor, self.rank(), dst, tag)
        # The receiver may need the data before this replica's next step.
        sync()
        return _done(tensors)

    @_by_place
    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        self._check_message(src, tag)

        def trace(tensor: torch.Tensor) -> None:
            value = self._transfer(torch.zeros_like(tensor), src, self.rank(), tag)
            self._write([tensor], [value])

        queue = self._receives.setdefault((src, tag), collections.deque())
        work = _Receive(tensors, src, trace, queue)
        if not collectives.on_host():  # Both ends run one program, so the order is fixed.
            work.wait()
        return work

    @_by_place
    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        raise ValueError("recv: the xla backend receives from a rank that `src` names, got none")


# How many groups of each name this process, and so every other member, has made.
_names: collections.Counter[str] = collections.Counter()


def create(options: Any, backend_options: Any = None) -> ProcessGroupXla:
    """Makes a group; called by ``init_process_group`` and ``new_group``."""
    members = list(options.global_ranks_in_group)
    if not members:
        replication.adopt(options.store, options.group_rank, options.group_size)
        members = list(range(options.group_size))
    _XLAC._xla_spend_warning_of_works()
    # The store of the options may have addresses of the job before a restart. A name must be new as
    # well, since members may have used it before destroy_process_group.
    name = f"group/{options.group_id}/{members}"
    _names[name] += 1
    store = PrefixStore(f"{name}/{_names[name]}", replication.store())
    # For "cpu:gloo,xla:xla" PyTorch has connected the members by a Gloo group, and drops it when
    # this function returns. So return only when all members are connected.
    if len(members) > 1:
        sync()  # Another member may wait for what is traced here.
        replication.exchange(name, b"", members)
        if len(members) == replication.topology().world_size:
            # All are here now. Later, the two ends of a first message would wait for the others.
            replication.connect()
    return ProcessGroupXla(members, options.group_rank, store, options.timeout)


new_xla_process_group = dist.new_group
