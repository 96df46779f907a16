"""Graphs of ``torch.xla``, as ``torch.cuda.CUDAGraph``: work that is traced once and run often.

The operations of the block are traced and not run. A replay runs them as one program, on what the
tensors from outside hold by then, and writes the tensors that the block wrote or made.
"""

from __future__ import annotations

import contextlib
import itertools
import types
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.cuda import graphs as cuda_graphs

from torch_xla import _XLAC
from torch_xla._internal.compile import tracing
from torch_xla._internal.compile.step import sync
from torch_xla._internal.device import streams
from torch_xla._internal.replicas import replication, spmd_mode

_WHAT = "torch.accelerator.Graph"
_pools = itertools.count(1)
_graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
_capturing: Graph | None = None


def _wholes(device: str) -> dict[int, torch.Tensor]:
    """Returns by its id the whole memory of each tensor that the program has on a device."""
    (tensors,) = _XLAC._objects_of_types([torch.Tensor])
    tensors = [x for x in tensors if x.device.type == "xla" and x.layout == torch.strided]
    tensors = [x for x in tensors if str(x.device) == device and x.is_xla]
    tensors += [x.grad for x in tensors if x.is_leaf and x.grad is not None and x.grad.is_xla]
    # Leave out tensors that wrap others, such as DTensors: the wrapped tensors are found, too.
    tensors = [x for x in tensors if _XLAC._xla_data_ptr(x) is not None]
    found = {_XLAC._xla_get_tensor_id(x): x for x in tensors}
    return {key: _XLAC._xla_get_storage_tensor(x) for key, x in found.items()}


class Graph:
    """Operations that are traced once, and that :meth:`replay` runs again.

    It is ``torch.accelerator.Graph`` for xla::

        graph = torch.accelerator.Graph()
        with graph:
            y = model(x)
        x.copy_(batch)
        graph.replay()  # y is the result for that batch

    Args:
        keep_graph: Changes nothing.
        pool: Changes nothing: the plugin owns the memory.
        capture_error_mode: Changes nothing: an operation that would have to run is an error on the
            thread that traces.
    """

    def __init__(
        self,
        keep_graph: bool = False,
        *,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "default",
    ) -> None:
        self.graph_pool = pool
        self.capture_error_mode = capture_error_mode
        self._debug = False
        self._stack = contextlib.ExitStack()
        self._program: Any = None
        self._outputs: list[torch.Tensor] = []
        self._arguments: list[torch.Tensor] = []
        self._made: dict[int, torch.Tensor] = {}
        self.reset()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What isinstance() asks, too: PyTorch's class holds a graph of its own accelerators."""
        return getattr(torch.accelerator, "Graph", Graph)

    def capture_begin(self) -> None:
        """Begins to trace: until :meth:`capture_end` this thread runs nothing on the device.

        Raises:
            RuntimeError: A graph is being captured, or this one has been, or in SPMD mode.
        """
        global _capturing
        if _capturing is not None or self._program is not None:
            raise RuntimeError(
                f"{_WHAT}: expected no other capture, and a graph that is new or reset"
            )
        if spmd_mode.is_on():
            raise RuntimeError(f"{_WHAT}: not in SPMD mode; use torch_xla.compile(replay=True)")
        sync()
        self._device = _XLAC._xla_get_default_device()
        self._before = _wholes(self._device)
        for graph in _graphs:  # Python does not see what autograd saved of other graphs.
            self._before.update(graph._made)
        if replication.topology().world_size > 1:
            token = _XLAC._xla_collective_token(self._device)
            self._before[_XLAC._xla_get_tensor_id(token)] = token
        self._held = {key: whole.clone() for key, whole in self._before.items()}
        self._capture = self._stack.enter_context(tracing.trace(_WHAT, self._device, pure=False))
        _capturing = self
        self._inputs = {key: self._capture.placeholder(x) for key, x in self._before.items()}
        self._newest = _XLAC._array_ids([torch.zeros((), device=self._device)])[0] or 0
        for key, whole in self._before.items():
            _XLAC._xla_assign(whole, self._inputs[key])
        self._capture.forget_writes()

    def capture_end(self) -> None:
        """Ends the trace. Tensors hold again what they did before, and those it made hold zeros.

        Raises:
            RuntimeError: It changes a tensor that only C++ holds.
        """
        global _capturing
        if _capturing is not self:
            raise RuntimeError(f"{_WHAT}: capture_end() without capture_begin()")
        written, made = {}, {}
        try:
            now = _wholes(self._device)
            for whole in _XLAC._xla_pending_storages(self._device):
                now.setdefault(_XLAC._xla_get_tensor_id(whole), whole)
            for key, whole in now.items():
                if key in self._inputs:
                    if not _XLAC._xla_same_value(whole, self._inputs[key]):
                        written[key] = whole
                elif (_XLAC._array_ids([whole])[0] or self._newest) >= self._newest:
                    made[key] = whole
            placeholders = {id(x) for x in self._inputs.values()}
            made = {k: x for k, x in made.items() if id(x) not in placeholders}
            if self._capture.changed_outside():
                raise RuntimeError(f"{_WHAT}: it changes a tensor that no object of Python holds")
            self._outputs = [*written.values(), *made.values()]
            inputs = list(self._inputs.values())
            self._program = self._capture.program(inputs, self._outputs, [])
            if self._debug:
                self._text = self._capture.function(inputs, self._outputs, "graph", True)[0]
            needed = set(self._program.inputs)
            unused = torch.zeros((), device=self._device)
            self._arguments = [
                x if i in needed else unused for i, x in enumerate(self._before.values())
            ]
        finally:
            for key, whole in self._before.items():
                _XLAC._xla_assign(whole, self._held[key])
            for whole in made.values():
                _XLAC._xla_assign(whole, torch.zeros_like(whole))
            self._before, self._held, self._inputs = {}, {}, {}
            self._capture = None
            _capturing = None
            self._stack.close()
        self._made = made
        _graphs.add(self)

    def __enter__(self) -> Graph:
        self.capture_begin()
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        self.capture_end()
        if kind is not None:
            self.reset()

    def instantiate(self) -> None:
        """Does nothing: the first replay compiles."""

    def replay(self) -> None:
        """Runs the program.

        Raises:
            RuntimeError: Nothing has been captured.
        """
        if self._program is None:
            raise RuntimeError(f"{_WHAT}: replay() of a graph that has captured nothing")
        for whole, value in zip(self._outputs, self._program(self._arguments), strict=True):
            _XLAC._xla_assign(whole, value)

    def reset(self) -> None:
        """Forgets what was captured."""
        self._program = None
        self._outputs, self._arguments, self._made = [], [], {}
        self._text = ""
        _graphs.discard(self)

    def pool(self) -> tuple[int, int]:
        """Returns the handle of this graph's memory pool."""
        if self.graph_pool is None:
            self.graph_pool = graph_pool_handle()
        return self.graph_pool

    def enable_debug_mode(self) -> None:
        """Makes the next capture keep the text for :meth:`debug_dump`."""
        self._debug = True

    def debug_dump(self, path: str) -> None:
        """Writes the StableHLO function to a file.

        Raises:
            RuntimeError: No text was kept: see :meth:`enable_debug_mode`.
        """
        if not self._text:
            raise RuntimeError(f"{_WHAT}: debug_dump() needs a capture after enable_debug_mode()")
        Path(path).write_text(self._text)


@contextlib.contextmanager
def graph(
    graph: Graph,
    pool: tuple[int, int] | None = None,
    stream: torch.Stream | None = None,
    capture_error_mode: str = "default",
) -> Iterator[None]:
    """A block whose operations a graph captures; the other arguments are as in ``torch.cuda``."""
    graph.graph_pool = pool or graph.graph_pool
    with streams.stream(stream), graph:
        yield


def graph_pool_handle() -> tuple[int, int]:
    """Returns a new handle of a pool, which has no memory of its own."""
    return 0, next(_pools)


def is_current_stream_capturing() -> bool:
    """Returns whether a graph is being captured."""
    return _capturing is not None


def make_graphed_callables(
    callables: Any,
    sample_args: Sequence[Any],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: tuple[int, int] | None = None,
) -> Any:
    """Returns callables whose forward and backward passes are graphs.

    Args:
        callables: A module or a function, or a tuple of them.
        sample_args: The arguments of the callable, or a tuple of them for each: tensors.
        num_warmup_iters: How many passes come before the capture.
        allow_unused_input: Whether an input may have no gradient.
        pool: Changes nothing.
    """
    # Use PyTorch's own function with `torch.xla` in the place of `torch.cuda`.
    autograd = types.SimpleNamespace(**{**vars(torch.autograd), "Function": _Copying})
    names = types.SimpleNamespace(**{**vars(torch), "cuda": _AsCuda, "autograd": autograd})
    ours = {**vars(cuda_graphs), "torch": names, "graph_pool_handle": graph_pool_handle}
    original: Any = cuda_graphs.make_graphed_callables
    make = types.FunctionType(original.__code__, ours, argdefs=original.__defaults__)
    return make(callables, sample_args, num_warmup_iters, allow_unused_input, pool)


class _Copying(torch.autograd.Function):
    """Returns copies, which cost nothing, so that the next replay changes no earlier result."""

    def __init_subclass__(cls) -> None:
        for name in ("forward", "backward"):
            setattr(cls, name, staticmethod(_copied(getattr(cls, name))))


def _copied(function: Any) -> Any:
    def copied(*args: Any) -> tuple[Any, ...]:
        return tuple(x if x is None else x.clone() for x in function(*args))

    return copied


class _AsCuda:
    CUDAGraph = Graph
    graph = staticmethod(graph)
    stream = streams.stream
    Stream = streams.Stream
    synchronize = staticmethod(sync)
