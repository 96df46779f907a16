"""``torch.compile(model, backend="openxla")``: dynamo's graphs as programs of the device.

PyTorch's own backend ``openxla`` calls :func:`extract_compiled_graph` with each graph that dynamo
(and AOTAutograd) has made. The graph is traced once, compiled, and a call of it binds its inputs
to the program: no operator is traced again. A dynamic graph is traced for each size but the first
ones, since a program that is compiled here has its sizes in it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_xla import _XLAC, runtime
from torch_xla._internal.compile import tracing
from torch_xla._internal.insight import host_calls
from torch_xla._internal.names import missing

_NAME = "torch.compile"
# A set of sizes gets a program of its own at its first call, if it is the first set of the graph,
# or at this call, if few sets have one. The others run in the programs of buckets.
_OFTEN = 16
_MOST = 4


def _twin(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a new tensor with the current content of ``tensor``."""
    twin = torch.empty_like(tensor)
    _XLAC._xla_assign(twin, tensor)
    return twin


def _is_xla(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def _state(module: fx.GraphModule) -> list[torch.Tensor]:
    """Returns the tensors that the graph takes from its module."""
    found = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value: Any = module
            for part in node.target.split("."):
                value = getattr(value, part)
            if _is_xla(value):
                found[id(value)] = value
        elif node.op == "call_module":
            child = module.get_submodule(node.target)
            for value in (*child.parameters(), *child.buffers()):
                if _is_xla(value):
                    found[id(value)] = value
    return list(found.values())


class _Returned:
    """The tensors that a graph returns, as outputs of its program.

    Results that share memory with each other, but with no input, are views of one output, so that
    a write into one is seen in the others. AOTAutograd itself makes views of inputs.
    """

    def __init__(self, leaves: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> None:
        storages = [_XLAC._xla_get_tensor_id(leaf) for leaf in leaves]
        given = {_XLAC._xla_get_tensor_id(tensor) for tensor in before}
        self.outputs: list[torch.Tensor] = []
        # For each leaf: the index of its output, and its view if it is not the whole output.
        self._looks: list[tuple[int, Any]] = []
        places: dict[int, int] = {}
        for leaf, storage in zip(leaves, storages, strict=True):
            look = None
            if storage in given or storages.count(storage) == 1:
                place = len(self.outputs)
                self.outputs.append(leaf)
            else:
                place = places.setdefault(storage, len(self.outputs))
                if place == len(self.outputs):
                    self.outputs.append(_XLAC._xla_get_storage_tensor(leaf))
                look = _XLAC._Look(leaf)
                look = None if look.is_whole else look
            self._looks.append((place, look))
        self.is_plain = len(self.outputs) == len(leaves)

    def leaves(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the graph's results, made of its program's outputs."""
        return [
            outputs[place] if look is None else look.at(outputs[place])
            for place, look in self._looks
        ]


def _calls_host(module: fx.GraphModule) -> bool:
    return any(
        one is operator
        for node in module.graph.nodes
        for one in (node.target, *node.args[1:2])
        for operator in host_calls.OPERATORS
    )


class _Program:
    """A graph that was compiled for some shapes."""

    def __init__(self, module: fx.GraphModule, args: Sequence[Any]) -> None:
        self._places = [i for i, arg in enumerate(args) if _is_xla(arg)]
        self._state = _state(module)
        tensors = [args[i] for i in self._places]
        device = tracing.device_of(_NAME, [*tensors, *self._state])
        if runtime.world_size() > 1 or _calls_host(module):
            # The graph's collectives and host calls keep their order with those before and after
            # it.
            self._state.append(_XLAC._xla_collective_token(str(device)))
        # Pending values of other code do not become part of the program.
        _XLAC._xla_sync([str(device)], False)
        with torch.no_grad(), tracing.trace(_NAME, device, pure=False) as capture:
            placeholders = [capture.placeholder(tensor) for tensor in tensors]
            changing = [*placeholders, *self._state]
            twins = [_twin(tensor) for tensor in changing]
            bound = list(args)
            for place, placeholder in zip(self._places, placeholders, strict=True):
                # flex_attention's backward makes gradients of those inputs that require one.
                bound[place] = placeholder.requires_grad_(args[place].requires_grad)
            given = {id(bound[place]): place for place in self._places}
            try:
                leaves, self._spec = tree_flatten(module(*bound))
                # An input that is returned, to be saved for the backward pass, stays itself.
                self._inputs = [given.get(id(leaf)) for leaf in leaves]
                returned = [
                    leaf
                    for leaf, place in zip(leaves, self._inputs, strict=True)
                    if isinstance(leaf, torch.Tensor) and place is None
                ]
                tracing.device_of(_NAME, returned or tensors)
                self._returned = _Returned(returned, changing)
                outputs = self._returned.outputs
                self._count = len(outputs)
                writes = []
                for i, (now, before) in enumerate(zip(changing, twins, strict=True)):
                    if not _XLAC._xla_same_value(now, before):
                        writes.append((i, len(outputs)))
                        outputs.append(_twin(now))
            finally:
                for now, before in zip(self._state, twins[len(placeholders) :], strict=True):
                    _XLAC._xla_assign(now, before)
            self._program = capture.program(twins, outputs, writes, "dynamo")
        # Results of the graph that are not tensors, by position.
        self._rest = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]
        self._is_flat = self._spec.num_children == len(leaves)
        self._plain = self._is_flat and self._rest + self._inputs == [None] * len(leaves) * 2
        self._container = type(tree_unflatten(leaves, self._spec))

    def __call__(self, args: Sequence[Any]) -> Any:
        tensors = [args[i] for i in self._places]
        results = self._program(tensors + self._state)
        del results[self._count :]
        if not self._returned.is_plain:
            results = self._returned.leaves(results)
        if not self._plain:
            made = iter(results)
            results = [
                rest[0] if rest is not None else next(made) if place is None else args[place]
                for rest, place in zip(self._rest, self._inputs, strict=True)
            ]
        if self._is_flat and self._container in (tuple, list):
            return results if self._container is list else tuple(results)
        return tree_unflatten(results, self._spec)


def _reads(error: RuntimeError) -> bool:
    """Returns whether an error says that a tensor was read while a graph was traced."""
    text = str(error)
    return "the graph would be cut" in text or "stands for a value while" in text


class _Finder(fx.Interpreter):
    """Finds the nodes that read a tensor: operators that run on the CPU."""

    def __init__(self, module: fx.GraphModule, capture: Any) -> None:
        super().__init__(module)
        self._capture = capture
        self.found: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except RuntimeError as error:
            if not _reads(error) or "val" not in n.meta:
                raise
        self.found.add(n)
        leaves, spec = tree_flatten(n.meta["val"])
        return tree_unflatten(
            [
                self._capture.placeholder(tracing.like(leaf.shape, leaf.dtype))
                if isinstance(leaf, torch.Tensor)
                else leaf
                for leaf in leaves
            ],
            spec,
        )


def _without_fallbacks(module: fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any] | None:
    """Returns the graph in compiled parts around the operators that run on the CPU.

    None if the operators cannot be found.
    """
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import create_op_support

    device = tracing.device_of(_NAME, [arg for arg in args if _is_xla(arg)])
    try:
        with torch.no_grad(), tracing.trace(_NAME, device, pure=False) as capture:
            finder = _Finder(module, capture)
            finder.run(*(capture.placeholder(arg) if _is_xla(arg) else arg for arg in args))
    except RuntimeError:
        return None
    support = create_op_support(
        lambda modules, node: node not in finder.found and node.op == "call_function"
    )
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    parts = partitioner.partition_and_fuse()
    for name, child in list(parts.named_children()):
        if isinstance(child, fx.GraphModule):
            graph = _CompiledGraph(child, is_part=True)
            delattr(parts, name)
            setattr(parts, name, _Part(graph))
    return parts


class _Part(torch.nn.Module):
    def __init__(self, graph: Callable[..., Any]) -> None:
        super().__init__()
        self._graph = graph

    def forward(self, *args: Any) -> Any:
        return self._graph(*args)


def _returns_views(module: fx.GraphModule) -> bool:
    """Returns whether a graph of varying sizes returns views of inputs that are no whole ones.

    AOTAutograd makes them anew of the input. Where a size decides their place, it asks the tensors
    that the graph returned for strides and offset, which results of a program do not have.
    """
    nodes = list(module.graph.nodes)

    def values(found: Sequence[fx.Node]) -> list[torch.Tensor]:
        return [v for node in found if isinstance(v := node.meta.get("val"), torch.Tensor)]

    inputs = values([node for node in nodes if node.op == "placeholder"])
    outputs = values(next(node for node in nodes if node.op == "output").all_input_nodes)
    # A graph returns the new value of an input that it changes, and views of this value.
    kinds = {(str(value.shape), value.dtype) for value in inputs}
    changed = [value for value in outputs if (str(value.shape), value.dtype) in kinds]
    for value in outputs:
        whole = torch.empty_like(value, memory_format=torch.contiguous_format).stride()
        if str((value.storage_offset(), value.stride())) != str((0, whole)) and any(
            torch._C._is_alias_of(value, other)  # type: ignore[attr-defined]
            for other in (*inputs, *changed)
            if other is not value
        ):
            return True
    return False


def _is_of_the_host(module: fx.GraphModule) -> bool:
    """Returns whether a graph returns or draws CPU tensors, which a program cannot."""
    for node in module.graph.nodes:
        is_drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        for value in node.all_input_nodes if node.op == "output" else [node] if is_drawn else []:
            leaves = tree_flatten(value.meta.get("val"))[0]
            if any(isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" for leaf in leaves):
                return True
    return False


class _CompiledGraph:
    """A graph, compiled for each set of numbers and shapes that it is called with."""

    def __init__(self, module: fx.GraphModule, is_part: bool = False) -> None:
        self._module = module
        self._is_part = is_part  # between operators that run on the CPU
        self._programs: dict[Any, Callable[[Sequence[Any]], Any]] = {}
        self._calls: Counter[Any] = Counter()  # of those without a program
        nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
        values = [node.meta.get("val") for node in nodes]
        # Dynamo guards the shapes of graphs that are not dynamic.
        self._is_static = all(
            isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in value.shape)
            for value in values
        )
        self._is_traced = _is_of_the_host(module) or not self._is_static and _returns_views(module)

    def __call__(self, *args: Any) -> Any:
        key = None
        if not self._is_static:
            key = tuple(
                (arg.shape, arg.dtype, arg.device) if isinstance(arg, torch.Tensor) else arg
                for arg in args
            )
        program = self._programs.get(key)
        if program is None:
            self._calls[key] += 1
            if self._in_bucket(self._calls[key]):
                return self._module(*args)
            program = self._programs[key] = self._compile(args)
        return program(args)

    def _in_bucket(self, calls: int) -> bool:
        """Returns whether a call is traced, since a program of many sizes then serves it."""
        if not self._programs or os.environ.get("XLA_DYNAMIC_SIZES") == "0":
            return False
        return calls < _OFTEN or len(self._programs) > _MOST

    def _compile(self, args: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        traced = lambda args: self._module(*args)  # noqa: E731
        if not any(map(_is_xla, [*tensors, *_state(self._module)])) or not all(
            map(_is_xla, tensors)
        ):
            return traced  # Its copies to the device differ from call to call.
        if self._is_traced:
            return traced
        if _XLAC._xla_spmd_devices() > 0:
            return traced  # Its program depends on the shardings of its inputs.
        try:
            return _Program(self._module, args)
        except RuntimeError as error:
            if not _reads(error):
                raise
        parts = None if self._is_part else _without_fallbacks(self._module, args)
        return traced if parts is None else (lambda args: parts(*args))


def extract_compiled_graph(
    xla_model: fx.GraphModule, xla_args: Sequence[Any]
) -> Callable[..., Any]:
    """Returns a callable that computes what a graph does, as a program of the device.

    It is traced at its first call. Inputs that the graph changes are changed; random numbers are
    drawn anew in every call; operators that run on the CPU stand between compiled parts.

    Args:
        xla_model: A graph of dynamo or AOTAutograd.
        xla_args: Its arguments: xla tensors and numbers.
    """
    return _CompiledGraph(xla_model)


__getattr__ = missing.getter(
    __name__,
    {
        "GraphInputMatcher": "inputs are bound by their places",
        "extract_graph_helper": "extract_compiled_graph",
        "extract_internal": "extract_compiled_graph",
        "partition_fx_graph_for_cpu_fallback": "extract_compiled_graph does that",
    },
)
