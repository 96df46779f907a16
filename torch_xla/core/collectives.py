"""Collectives among the replicas, as :mod:`torch_xla.core.xla_model` offers them.

A collective is traced like any other operation and runs with the graph. All replicas must trace
the same ones in the same order; they run in that order, whatever else is read in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from torch_xla import _XLAC
from torch_xla._internal.replicas import replication, thread_group
from torch_xla._internal.replicas.replication import rendezvous as rendezvous

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_XOR = "xor"
REDUCE_MIN = "min"
REDUCE_MAX = "max"

# For threads that each have a device.
_OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    REDUCE_SUM: torch.add,
    REDUCE_MUL: torch.mul,
    REDUCE_AND: torch.bitwise_and,
    REDUCE_OR: torch.bitwise_or,
    REDUCE_XOR: torch.bitwise_xor,
    REDUCE_MIN: torch.minimum,
    REDUCE_MAX: torch.maximum,
}

Groups = Sequence[Sequence[int]] | None
_Tensors = TypeVar("_Tensors", bound=Sequence[torch.Tensor])


def checked_reduction(name: str, reduce_type: str) -> str:
    """Returns ``reduce_type``; raises ValueError where it is no reduction."""
    if reduce_type not in _OPERATIONS:
        raise ValueError(
            f"{name}(): expected `reduce_type` to be one of {', '.join(map(repr, _OPERATIONS))}, "
            f"got {reduce_type!r}"
        )
    return reduce_type


def checked_groups(name: str, groups: Groups, same_size: bool = False) -> list[list[int]]:
    """Returns ``groups`` as lists; an empty list stands for one group of all replicas.

    Raises:
        ValueError: An ordinal is no replica's, occurs twice or not at all, or groups that must
            be of one size are not.
    """
    if groups is None:
        return []
    place = replication.topology()
    lists = [[int(ordinal) for ordinal in group] for group in groups]
    members = [ordinal for group in lists for ordinal in group]
    if sorted(members) != list(range(place.world_size)):
        raise ValueError(
            f"{name}(): expected `groups` in which each ordinal from 0 to {place.world_size - 1} "
            f"occurs once, got {lists}"
        )
    if same_size and len({len(group) for group in lists}) != 1:
        raise ValueError(f"{name}(): expected `groups` of one size, got {lists}")
    return [] if lists == [list(range(place.world_size))] else lists


def group_size(groups: Sequence[Sequence[int]]) -> int:
    """Returns how many replicas are in this one's group."""
    place = replication.topology()
    if not groups:
        members = thread_group.current()
        return members[0].size if members else place.world_size
    return next(len(group) for group in groups if place.rank in group)


def group_rank(groups: Sequence[Sequence[int]]) -> int:
    """Returns this replica's place in its group."""
    rank = replication.topology().rank
    return next((group.index(rank) for group in groups if rank in group), rank)


def _checked_tensor(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}(): expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.device.type != "xla":
        raise ValueError(f"{name}(): expected a tensor on an xla device, got {tensor.device}")
    return tensor


def _checked_dim(name: str, argument: str, dim: int, tensor: torch.Tensor) -> int:
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(
            f"{name}(): expected `{argument}` from {-tensor.dim()} to {tensor.dim() - 1} for a "
            f"tensor of shape {list(tensor.shape)}, got {dim}"
        )
    return dim % tensor.dim()


def run(
    kind: str,
    tensors: Sequence[torch.Tensor],
    groups: Sequence[Sequence[int]],
    arguments: Sequence[int] = (),
    reduction: str = REDUCE_SUM,
    in_place: bool = False,
) -> list[torch.Tensor]:
    """Traces a collective; connects the replicas at the first one.

    On the CPU groups need not hold every replica: those that are in none do not call this.

    Raises:
        RuntimeError: They do not, and the device is no CPU. There a program with a collective is
            compiled for all replicas, and runs when all run it.
    """
    world_size = replication.topology().world_size
    if groups and sum(len(group) for group in groups) != world_size and not on_host():
        raise RuntimeError(
            f"{kind}: on {_XLAC._xla_platform()} every replica must take part in a collective, "
            f"in one of its groups; got {[list(g) for g in groups]} of {world_size} replicas. "
            "send, recv and what only a part of the replicas calls works on the CPU alone"
        )
    replication.connect()
    return _XLAC._xla_collective(
        kind, reduction, list(tensors), [list(g) for g in groups], list(arguments), in_place
    )


def on_host() -> bool:
    """Returns whether collectives run on the host, between those replicas that call them."""
    return _XLAC._xla_platform() == "CPU"


def _scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return tensor if scale == 1.0 else (tensor * scale).to(tensor.dtype)


def all_reduce(
    reduce_type: str,
    inputs: Any,
    scale: float = 1.0,
    groups: Groups = None,
    cctx: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Reduces tensors across the replicas.

    Args:
        reduce_type: ``REDUCE_SUM``, ``REDUCE_MUL``, ``REDUCE_AND``, ``REDUCE_OR`` (bitwise; for
            integers and bool), ``REDUCE_MIN`` or ``REDUCE_MAX``.
        inputs: A tensor, or a list or tuple of tensors of any shapes and dtypes. A list goes in
            one transfer for each dtype in it.
        scale: What the results are multiplied by.
        groups: The replica groups, as lists of ordinals in which each replica occurs once; one
            group of all replicas when None. ``[[0, 1], [2, 3]]`` reduces over 0 and 1, and over
            2 and 3.
        cctx: Changes nothing, also where it is a ``pin_layout``, which has its place in 2.9:
            collectives keep their order anyway.
        pin_layout: Changes nothing; taken for scripts that pass it.

    Returns:
        For a tensor: a new one with the result. For a list or tuple: that itself, whose tensors
        hold the results.

    Raises:
        ValueError: ``reduce_type``, ``groups`` or the tensors' devices are not as above.
        TypeError: The reduction is not defined for a dtype.
    """
    checked_reduction("all_reduce", reduce_type)
    lists = checked_groups("all_reduce", groups)
    single = isinstance(inputs, torch.Tensor)
    tensors = [_checked_tensor("all_reduce", t) for t in ([inputs] if single else inputs)]
    with torch.no_grad():
        if members := thread_group.current():
            group, index = members
            results = group.combine(index, tensors, _OPERATIONS[reduce_type])
            if single:
                return _scaled(results[0], scale)
            for tensor, result in zip(tensors, results, strict=True):
                tensor.copy_(result)
        elif replication.topology().world_size == 1:
            if single:
                return _scaled(inputs.detach().clone(), scale)
        elif single:
            return _scaled(run("all_reduce", tensors, lists, reduction=reduce_type)[0], scale)
        else:
            run("all_reduce", tensors, lists, reduction=reduce_type, in_place=True)
        if scale != 1.0:
            floats = [tensor for tensor in tensors if tensor.dtype.is_floating_point]
            if floats:
                torch._foreach_mul_(floats, scale)
            for tensor in tensors:
                if not tensor.dtype.is_floating_point:
                    tensor.copy_(_scaled(tensor, scale))
    return inputs


def all_gather(
    value: torch.Tensor,
    dim: int = 0,
    groups: Groups = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> torch.Tensor:
    """Concatenates the replicas' tensors along a dimension.

    Args:
        value: The tensor, of the same shape on every replica. One without dimensions counts as
            one of shape [1].
        dim: The dimension; negative ones count from the last.
        groups: The replica groups, as in :func:`all_reduce`, all of one size.
        output: Takes the result; it must have its shape.
        pin_layout: Changes nothing; taken for scripts that pass it.
        channel_id: The same.
        use_global_device_ids: The same.

    Returns:
        A tensor with the replicas' values in the order of the group: ``value``'s shape, with
        dimension ``dim`` as many times as large as there are replicas in the group.

    Raises:
        IndexError: There is no dimension ``dim``.
        ValueError: ``groups`` or the tensor's device is not as above.
    """
    lists = checked_groups("all_gather", groups, same_size=True)
    _checked_tensor("all_gather", value)
    with torch.no_grad():
        value = value.detach()
        if value.dim() == 0:
            value = value.reshape(1)
        dim = _checked_dim("all_gather", "dim", dim, value)
        if replication.topology().world_size == 1:
            result = value.clone()
        else:
            result = run("all_gather", [value], lists, [dim])[0]
        return result if output is None else output.copy_(result)


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Splits a tensor, sends part i to replica i of the group, and joins what comes.

    Args:
        value: The tensor, of the same shape on every replica.
        split_dimension: The dimension to split; its size must be divisible by ``split_count``.
        concat_dimension: The dimension along which to join the parts, in the order of the group.
        split_count: The number of parts: the size of a group.
        groups: The replica groups, as in :func:`all_reduce`, all of one size.
        pin_layout: Changes nothing; taken for scripts that pass it.

    Returns:
        A tensor whose ``split_dimension`` is smaller, and whose ``concat_dimension`` is larger,
        by the factor ``split_count``.

    Raises:
        IndexError: There is no such dimension.
        ValueError: ``split_count``, a size or ``groups`` is not as above.
    """
    lists = checked_groups("all_to_all", groups, same_size=True)
    _checked_tensor("all_to_all", value)
    split = _checked_dim("all_to_all", "split_dimension", split_dimension, value)
    concat = _checked_dim("all_to_all", "concat_dimension", concat_dimension, value)
    if split_count != group_size(lists):
        raise ValueError(
            f"all_to_all(): expected `split_count` to be the size of a group, "
            f"{group_size(lists)}, got {split_count}"
        )
    with torch.no_grad():
        value = value.detach()
        if replication.topology().world_size == 1:
            return value.clone()
        return run("all_to_all", [value], lists, [split, concat])[0]


def reduce_scatter(
    reduce_type: str,
    input: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Reduces across the replicas, and gives each one its part of the result.

    Args:
        reduce_type: As in :func:`all_reduce`.
        input: The tensor, of the same shape on every replica; or a list of them, which go in one
            transfer for each dtype.
        scale: What the result is multiplied by.
        scatter_dim: The dimension to split; its size must be divisible by ``shard_count``.
        shard_count: The number of parts: the size of a group.
        groups: The replica groups, as in :func:`all_reduce`, all of one size.
        output: Takes the result; it must have its shape. A list for a list.
        pin_layout: Changes nothing; taken for scripts that pass it.
        channel_id: The same.
        use_global_device_ids: The same.

    Returns:
        The i-th part for the i-th replica of the group; for a list, one for each.

    Raises:
        IndexError: There is no dimension ``scatter_dim``.
        ValueError: ``reduce_type``, ``shard_count``, a size or ``groups`` is not as above.
        TypeError: The reduction is not defined for the dtype.
    """
    if not isinstance(input, torch.Tensor):
        return reduce_scatter_bucketized(
            reduce_type, input, scale, scatter_dim, shard_count, groups, output, bucket_cap_mb=0
        )
    checked_reduction("reduce_scatter", reduce_type)
    lists = checked_groups("reduce_scatter", groups, same_size=True)
    _checked_tensor("reduce_scatter", input)
    dim = _checked_dim("reduce_scatter", "scatter_dim", scatter_dim, input)
    if shard_count != group_size(lists):
        raise ValueError(
            f"reduce_scatter(): expected `shard_count` to be the size of a group, "
            f"{group_size(lists)}, got {shard_count}"
        )
    with torch.no_grad():
        input = input.detach()
        if replication.topology().world_size == 1:
            result = input.clone()
        else:
            result = run("reduce_scatter", [input], lists, [dim], reduce_type)[0]
        result = _scaled(result, scale)
        return result if output is None else output.copy_(result)


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Sends tensors from replica to replica.

    Args:
        value: The tensor, of the same shape on every replica. All replicas call this.
        pairs: ``[source, target]`` ordinals. No ordinal is the target of two.

    Returns:
        What the replica's source sent; zeros where it has none.

    Raises:
        ValueError: An ordinal is no replica's, or twice a target.
    """
    _checked_tensor("collective_permute", value)
    world_size = replication.topology().world_size
    flat = [int(ordinal) for pair in pairs for ordinal in pair]
    if any(len(pair) != 2 for pair in pairs) or any(not 0 <= o < world_size for o in flat):
        raise ValueError(
            f"collective_permute(): expected `pairs` of ordinals from 0 to {world_size - 1}, got "
            f"{[list(pair) for pair in pairs]}"
        )
    targets = flat[1::2]
    if len(set(targets)) != len(targets):
        raise ValueError(f"collective_permute(): a target occurs twice in `pairs`: {targets}")
    with torch.no_grad():
        value = value.detach()
        if world_size == 1:
            return value.clone() if targets else torch.zeros_like(value)
        return run("collective_permute", [value], [], flat)[0]


def collective_broadcast(
    tensors: _Tensors,
    root_ordinal: int = 0,
    groups: Groups = None,
    pin_layout: bool = True,
) -> _Tensors:
    """Gives all replicas the tensors of one, in place.

    Args:
        tensors: Tensors of the same shapes and dtypes on every replica; they go in one transfer
            for each dtype.
        root_ordinal: The replica whose tensors the others get.
        groups: The replica groups, as in :func:`all_reduce`; ``root_ordinal`` must then be in
            this replica's.
        pin_layout: Changes nothing; taken for scripts that pass it.

    Raises:
        ValueError: ``root_ordinal`` is no replica of the group.
    """
    lists = checked_groups("collective_broadcast", groups)
    place = replication.topology()
    members = next((g for g in lists if place.rank in g), list(range(place.world_size)))
    if root_ordinal not in members:
        raise ValueError(
            f"collective_broadcast(): expected `root_ordinal` to be one of {members}, got "
            f"{root_ordinal}"
        )
    checked = [_checked_tensor("collective_broadcast", tensor) for tensor in tensors]
    if place.world_size > 1:
        with torch.no_grad():
            own = [members] if lists else []
            run("broadcast", checked, own, [root_ordinal], in_place=True)
    return tensors


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives all replicas the parameters and buffers of replica 0, in place."""
    with torch.no_grad():
        # Each tensor once, even if it has several names.
        tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
        collective_broadcast(list(tensors.values()))


def gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns the gradients of an optimizer's parameters, less those that have none."""
    return [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]


def reduce_gradients(
    optimizer: torch.optim.Optimizer,
    groups: Groups = None,
    pin_layout: bool = True,
    cctx: Any = None,
) -> None:
    """Replaces an optimizer's gradients by their mean over the replicas.

    They go in one transfer for each dtype, or in such of ``ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB``
    megabytes where that is set and not 0.

    Args:
        optimizer: The optimizer; parameters without a gradient are left out.
        groups: The replica groups, as in :func:`all_reduce`.
        pin_layout: Changes nothing; taken for scripts that pass it.
        cctx: The same.
    """
    lists = checked_groups("reduce_gradients", groups)
    count = group_size(lists)
    found = gradients(optimizer)
    if count > 1 and found:
        size = os.environ.get("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB") or "0"
        if not size.isdigit():
            raise ValueError(
                f"ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB must be a number of megabytes, got {size!r}"
            )
        all_reduce_bucketized_gradients(found, 1.0 / count, groups, pin_layout, int(size))


def buckets(tensors: Sequence[torch.Tensor], cap_mb: int) -> Iterator[list[int]]:
    """Deals tensors out to transfers: positions of those of one dtype, up to so many megabytes."""
    by_dtype: dict[torch.dtype, list[int]] = {}
    for position, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype, []).append(position)
    for positions in by_dtype.values():
        bucket: list[int] = []
        size = 0
        for position in positions:
            bytes_ = tensors[position].nbytes
            if bucket and cap_mb and size + bytes_ > cap_mb << 20:
                yield bucket
                bucket, size = [], 0
            bucket.append(position)
            size += bytes_
        yield bucket


def all_reduce_bucketized_gradients(
    gradients: Sequence[torch.Tensor],
    scale: float,
    groups: Groups,
    pin_layout: bool,
    bucket_cap_mb: int = 0,
) -> None:
    """Sums up gradients across the replicas, in place, in transfers of a size.

    Args:
        gradients: The gradients.
        scale: What the sums are multiplied by.
        groups: The replica groups, as in :func:`all_reduce`.
        pin_layout: Changes nothing; taken for scripts that pass it.
        bucket_cap_mb: The largest transfer, in megabytes, but for single gradients that are larger;
            0 for one of all gradients of a dtype.
    """
    for bucket in buckets(gradients, bucket_cap_mb):
        all_reduce(REDUCE_SUM, [gradients[i] for i in bucket], scale=scale, groups=groups)


def _coalesced(
    name: str,
    tensors: Sequence[torch.Tensor],
    dim: int,
    output: Sequence[torch.Tensor] | None,
    cap_mb: int,
    transfer: Callable[[list[torch.Tensor]], list[torch.Tensor]],
) -> list[torch.Tensor]:
    """Runs ``transfer`` on tensors whose ``dim`` is first, bucket by bucket.

    It gets matrices and returns such of as many columns or rows, which take the tensors' shapes
    again.
    """
    results: list[Any] = [None] * len(tensors)
    with torch.no_grad():
        moved = [
            _checked_tensor(name, t).detach().movedim(_checked_dim(name, "dim", dim, t), 0)
            for t in tensors
        ]
        for bucket in buckets(moved, cap_mb):
            parts = transfer([moved[i] for i in bucket])
            for i, part in zip(bucket, parts, strict=True):
                results[i] = part.movedim(0, dim)
        if output is None:
            return results
        return [target.copy_(r) for target, r in zip(output, results, strict=True)]


def all_gather_bucketized(
    input_list: Sequence[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: Sequence[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
    """Concatenates the replicas' tensors along a dimension, many in one transfer.

    Args:
        input_list: The tensors, of one dimension or more, each as in :func:`all_gather`.
        dim: The dimension.
        groups: The replica groups, all of one size.
        output: Take the results.
        pin_layout: Changes nothing; taken for scripts that pass it.
        bucket_cap_mb: The largest transfer, as in :func:`all_reduce_bucketized_gradients`.

    Returns:
        For each tensor what :func:`all_gather` returns.
    """
    count = group_size(checked_groups("all_gather_bucketized", groups, same_size=True))

    def transfer(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        flat = torch.cat([t.reshape(-1) for t in tensors])
        columns = all_gather(flat, 0, groups).view(count, -1).split([t.numel() for t in tensors], 1)
        return [
            column.reshape(count * t.shape[0], *t.shape[1:])
            for t, column in zip(tensors, columns, strict=True)
        ]

    return _coalesced("all_gather_bucketized", input_list, dim, output, bucket_cap_mb, transfer)


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: Sequence[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Sequence[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
    """Reduces across the replicas and gives each one its parts, many in one transfer.

    Args:
        reduce_type: As in :func:`reduce_scatter`.
        input_list: The tensors.
        scale: What the results are multiplied by.
        scatter_dim: The dimension to split, of each.
        shard_count: The size of a group.
        groups: The replica groups, all of one size.
        output: Take the results.
        pin_layout: Changes nothing; taken for scripts that pass it.
        bucket_cap_mb: The largest transfer, as in :func:`all_reduce_bucketized_gradients`.

    Returns:
        For each tensor what :func:`reduce_scatter` returns.
    """
    for tensor in input_list:
        size = tensor.shape[_checked_dim("reduce_scatter", "scatter_dim", scatter_dim, tensor)]
        if shard_count < 1 or size % shard_count:
            raise ValueError(
                f"reduce_scatter(): expected dimension {scatter_dim} to be divisible by "
                f"`shard_count`, {shard_count}, got a tensor of shape {list(tensor.shape)}"
            )

    def transfer(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        rows = torch.cat([t.reshape(shard_count, -1) for t in tensors], 1)
        flat = reduce_scatter(reduce_type, rows.reshape(-1), scale, 0, shard_count, groups)
        parts = flat.split([t.numel() // shard_count for t in tensors])
        return [
            part.view(t.shape[0] // shard_count, *t.shape[1:])
            for t, part in zip(tensors, parts, strict=True)
        ]

    return _coalesced("reduce_scatter", input_list, scatter_dim, output, bucket_cap_mb, transfer)


def _transfer(value: torch.Tensor, channel_id: int, sends: bool) -> torch.Tensor:
    """Traces a transfer between the two replicas of a channel."""
    with torch.no_grad():
        pair = list(replication.ends_of_channel(channel_id, sends))
        return run("transfer", [value.detach()], [sorted(pair)], [*pair, 0, channel_id])[0]


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Sends a tensor to the replica that receives on a channel.

    The first call waits for the other one's; later ones wait for nobody. What is sent on a channel
    is received in the order in which it was sent, whatever goes the other way.

    Args:
        value: The tensor.
        channel_id: A number that the two have agreed on; one sends on it, one receives.

    Raises:
        RuntimeError: Nobody receives on the channel within the timeout, or another one sends.
    """
    _transfer(_checked_tensor("send", value), channel_id, True)
    return value


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Receives a tensor from the replica that sends on a channel: see :func:`send`.

    Args:
        output: Takes it; of its shape and dtype.
        channel_id: The channel's number.

    Returns:
        ``output``.

    Raises:
        RuntimeError: Nobody sends on the channel within the timeout, or another one receives.
    """
    result = _transfer(torch.zeros_like(_checked_tensor("recv", output)), channel_id, False)
    with torch.no_grad():
        return output.copy_(result)
