"""``torch.distributed`` over the replicas: the backend ``xla``.

Importing ``torch_xla`` registers it, and ``init_method="xla://"``::

    import torch.distributed as dist
    import torch_xla

    dist.init_process_group("xla", init_method="xla://")

The collectives are traced like any operation, in the order of the program; a returned work is
done at once, since the tensors that it is about are those of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work, _create_work_from_future  # type: ignore[attr-defined]

import torch_xla
from torch_xla._internal import replication
from torch_xla.core import collectives

_REDUCTIONS = {
    dist.ReduceOp.SUM: collectives.REDUCE_SUM,
    dist.ReduceOp.AVG: collectives.REDUCE_SUM,
    dist.ReduceOp.PRODUCT: collectives.REDUCE_MUL,
    dist.ReduceOp.MIN: collectives.REDUCE_MIN,
    dist.ReduceOp.MAX: collectives.REDUCE_MAX,
    dist.ReduceOp.BAND: collectives.REDUCE_AND,
    dist.ReduceOp.BOR: collectives.REDUCE_OR,
}


def _reduction(op: Any) -> str:
    op = getattr(op, "op", op)
    if op not in _REDUCTIONS:
        names = ", ".join(str(name).split(".")[-1] for name in _REDUCTIONS)
        raise ValueError(f"the xla backend reduces by {names}, got {op}")
    return _REDUCTIONS[op]


def _is_average(op: Any) -> bool:
    return bool(getattr(op, "op", op) == dist.ReduceOp.AVG)


def _done(tensors: Any) -> Work:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(tensors)
    return cast(Work, _create_work_from_future(future))


class ProcessGroupXla(dist.ProcessGroup):
    """A group of replicas; made by ``init_process_group`` and ``new_group``.

    Of the forms that the base class has a method in, it has the one that PyTorch's functions call.

    Args:
        members: The ordinals of the group, in order of their ranks in it.
        rank: This replica's rank in the group.
    """

    def __init__(self, members: Sequence[int], rank: int) -> None:
        super().__init__(rank, len(members))  # type: ignore[call-arg]
        self._members = list(members)
        self._name = self._description = ""
        # Of all replicas: as xm's functions call it, so that both are one program.
        world = members == list(range(replication.topology().world_size))
        self._groups = [] if world else [self._members]

    def getBackendName(self) -> str:  # noqa: N802
        return "xla"

    # PyTorch keeps these with a group's backends, of which there is none here.

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
        # Where PyTorch puts the pickled objects of all_gather_object and the like.
        return [torch.device("xla")]

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
            reduction = _reduction(op)
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

    def _transfer(self, tensor: torch.Tensor, source: int, target: int) -> torch.Tensor:
        """From one rank of the group to another; only these two trace it."""
        pair = [self._members[source], self._members[target]]
        with torch.no_grad():
            return collectives.run("collective_permute", [tensor.detach()], [sorted(pair)], pair)[0]

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        op = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
        self._run("all_reduce", tensors, op=op, in_place=True)
        return _done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:  # type: ignore[override]
        results = self._run("all_reduce", tensors, op=opts.reduceOp)
        if self.rank() == opts.rootRank:
            self._write(tensors, results)
        return _done(tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        root = self._members[0 if opts is None else getattr(opts, "rootRank", opts)]
        self._run("broadcast", tensors, [root], in_place=True)
        return _done(tensors)

    @staticmethod
    def _write(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for target, value in zip(targets, values, strict=True):
                target.detach().copy_(value.reshape(target.shape))

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """[n, ...]: the members' tensors."""
        return self._run("all_gather", [tensor.unsqueeze(0)], [0])[0]

    def allgather(  # type: ignore[override]
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        for targets, tensor in zip(outputs, inputs, strict=True):
            self._write(targets, self._gathered(tensor).unbind(0))
        return _done(outputs)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._write([output], [self._gathered(tensor)])
        return _done(outputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    def _scattered(self, tensor: torch.Tensor, op: Any) -> torch.Tensor:
        """[n, ...], this member's part of it reduced: [...]."""
        return self._run("reduce_scatter", [tensor], [0], op)[0].squeeze(0)

    def reduce_scatter(  # type: ignore[override]
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Work:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        for output, parts in zip(outputs, inputs, strict=True):
            self._write([output], [self._scattered(torch.stack(parts), op)])
        return _done(outputs)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        for output, tensor in zip(outputs, inputs, strict=True):
            parts = tensor.reshape(self.size(), output.numel())
            self._write([output], [self._scattered(parts, op)])
        return _done(outputs)

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    def _exchange(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Part i to member i, pair by pair: only they know the sizes of what they exchange."""
        if not collectives.on_host():
            self._exchange_evenly(outputs, inputs)
            return
        results: dict[int, torch.Tensor] = {self.rank(): inputs[self.rank()]}
        # One order on all members, so that nobody waits in a circle.
        for source in range(self.size()):
            for target in range(self.size()):
                if source == target or self.rank() not in (source, target):
                    continue
                if source == self.rank():
                    if inputs[target].numel():
                        self._transfer(inputs[target].reshape(-1), source, target)
                elif outputs[source].numel():
                    empty = torch.zeros_like(outputs[source]).reshape(-1)
                    results[source] = self._transfer(empty, source, target)
        targets = [outputs[i] for i in results]
        self._write(targets, list(results.values()))

    def _exchange_evenly(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> None:
        """The same where all members must trace the same: all parts of one shape."""
        shapes = sorted({tuple(tensor.shape) for tensor in (*outputs, *inputs)})
        if len(shapes) != 1:
            raise RuntimeError(
                f"all_to_all: on {torch_xla.runtime.device_type()} all parts must have one shape, "
                f"got {', '.join(str(list(shape)) for shape in shapes)}"
            )
        exchanged = self._run("all_to_all", [torch.stack(list(inputs))], [0, 0])[0]
        self._write(outputs, exchanged.unbind(0))

    def alltoall(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        self._exchange(outputs, inputs)
        return _done(outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> Work:
        if not output_split_sizes and not input_split_sizes:
            # Without sizes all members split evenly.
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

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def gather(  # type: ignore[override]
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        gathered = [self._gathered(tensor) for tensor in inputs]
        if self.rank() == opts.rootRank:
            for targets, values in zip(outputs, gathered, strict=True):
                self._write(targets, values.unbind(0))
        return _done(outputs)

    def scatter(  # type: ignore[override]
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Work:
        root = opts.rootRank
        if not collectives.on_host():
            # All members trace the same; of what the others send nothing is used.
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

    def barrier(self, opts: Any = None) -> Work:
        if not self._alone():
            token = torch.zeros(1, device=torch_xla.device())
            self._run("all_reduce", [token], in_place=True)
            token.cpu()
        return _done(None)

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        for tensor in tensors:
            self._transfer(tensor, self.rank(), dst)
        # The receiver may read before this replica's next step.
        torch_xla.sync()
        return _done(tensors)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        for tensor in tensors:
            value = self._transfer(torch.zeros_like(tensor), src, self.rank())
            self._write([tensor], [value])
        return _done(tensors)


def create(options: Any, backend_options: Any = None) -> ProcessGroupXla:
    """Makes a group; called by ``init_process_group`` and ``new_group``."""
    members = list(options.global_ranks_in_group)
    if not members:
        replication.adopt(options.store, options.group_rank, options.group_size)
        members = list(range(options.group_size))
    return ProcessGroupXla(members, options.group_rank)


new_xla_process_group = dist.new_group
