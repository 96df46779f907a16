"""Programs of ``torch.export`` as StableHLO: to be saved, loaded, and run here or by others.

A bundle is a folder: ``METADATA`` (JSON), ``functions/<name>.mlir`` (text), ``data/<name>`` (the
parameters and buffers, as .npy), ``constants/<i>``. The text's ``@main`` takes what
``input_locations`` says, in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import itertools
import json
import math
import operator
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._internal.compile import mlir, tracing

_FOLDERS = ("functions", "data", "constants")
_WHAT = "exported_program_to_stablehlo()"


class VariableType(enum.Enum):
    """What a parameter of a function is."""

    INPUT_ARG = "input_arg"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclasses.dataclass
class VariableSignature:
    """The type of a parameter or result; ``dynamic_dims`` are given by the arguments."""

    shape: list[int]
    dtype: str
    dynamic_dims: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class InputLocation:
    """Where a parameter's value comes from."""

    type_: VariableType
    position: int = -1
    name: str = ""

    @classmethod
    def parameter(cls, name: str) -> InputLocation:
        """The state dict's entry of that name."""
        return cls(VariableType.PARAMETER, name=name)

    @classmethod
    def input_arg(cls, position: int) -> InputLocation:
        """The argument at that place, of the flattened ones."""
        return cls(VariableType.INPUT_ARG, position)

    @classmethod
    def constant(cls, position: int) -> InputLocation:
        """The additional constant at that place."""
        return cls(VariableType.CONSTANT, position)


@dataclasses.dataclass
class StableHLOFunctionMeta:
    """The description of a function besides its text."""

    name: str
    stablehlo_version: int
    input_signature: list[VariableSignature]
    output_signature: list[VariableSignature]
    input_locations: list[InputLocation]
    unused_inputs: list[tuple[InputLocation, VariableSignature]]
    input_pytree_spec: str | None = None
    output_pytree_spec: str | None = None


@dataclasses.dataclass
class StableHLOFunc:
    """A function. Where a dimension is dynamic, ``text`` is for the size of the example.

    Attributes:
        meta: The description of the function.
        text: StableHLO, a module whose ``@main`` it is.
        dynamic: Of a function with a dynamic dimension: its text in pieces, between which stand
            numbers ``a * n + b`` of its size ``n``.
        numbers: Of such a function: which constants follow from the size, and how: ``"n"``,
            a number, or ``[function, *operands]``.
        texts: Of a function whose form depends on the size: a text for each size.
        plain: Results that are no tensors, by their places among all: ``["constant", value]``, or
            ``["number", expression]`` of one that follows from the size.
    """

    meta: StableHLOFunctionMeta
    text: str
    dynamic: list[Any] | None = None
    numbers: dict[int, Any] = dataclasses.field(default_factory=dict)
    texts: dict[int, str] = dataclasses.field(default_factory=dict)
    plain: dict[int, list[Any]] = dataclasses.field(default_factory=dict)

    @property
    def bytecode(self) -> bytes:
        """The function as a portable artifact, by jaxlib's serializer."""
        return mlir.bytecode(self.text)

    def text_for(self, sizes: Iterable[int]) -> str:
        """Returns the text for dynamic dimensions of these sizes, which have to be equal.

        Raises:
            ValueError: The function has texts for other sizes only.
        """
        if self.dynamic is None and not self.texts:
            return self.text
        (n,) = set(sizes)
        if self.texts and n not in self.texts:
            raise ValueError(
                f"{self.meta.name}: expected a dynamic dimension of size {min(self.texts)} to "
                f"{max(self.texts)}, got {n}"
            )
        if self.dynamic is None:
            return self.texts[n]
        return "".join(p if isinstance(p, str) else str(p[0] * n + p[1]) for p in self.dynamic)


@dataclasses.dataclass
class StableHLOModelBundle:
    """Functions with the tensors that they take."""

    state_dict: dict[str, np.ndarray]
    additional_constants: list[np.ndarray]
    stablehlo_funcs: list[StableHLOFunc]


@dataclasses.dataclass(slots=True)
class StableHLOExportOptions:
    """How to export.

    Attributes:
        include_human_readable_text: The text is the form that is saved and loaded: only True.
        override_tracing_arguments: Arguments to trace with in place of the export's own.
        override_tracing_kwargs: The same by name.
        save_weights: Whether :func:`save_as_stablehlo` writes parameters and buffers, too.
        inline_all_constant: Whether numbers are constants of the text, not parameters. Those that
            follow from the size of a dynamic dimension are parameters in any case.
        export_node_metadata: The text has no locations: only False.
        custom_ops_allowed_in_graph: Namespaces of operators each call of which becomes a
            ``stablehlo.custom_call`` of its name (``my_library.my_op.default``).
        export_weights: Whether the bundle has parameters and buffers. One without cannot be called.
    """

    include_human_readable_text: bool = True
    override_tracing_arguments: tuple[Any, ...] | None = None
    override_tracing_kwargs: Mapping[str, Any] | None = None
    save_weights: bool = True
    inline_all_constant: bool = True
    export_node_metadata: bool = False
    custom_ops_allowed_in_graph: set[str] = dataclasses.field(default_factory=set)
    export_weights: bool = True

    def _check(self) -> None:
        for name, only in (("include_human_readable_text", True), ("export_node_metadata", False)):
            if getattr(self, name) is not only:
                raise ValueError(
                    f"StableHLOExportOptions: expected {name}={only}, got {getattr(self, name)!r}: "
                    "bundles are saved as text without locations; get_stablehlo_bytecode() gives "
                    "the binary form"
                )


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # numpy does not have bfloat16.
        return tensor.view(torch.int16).numpy()
    return tensor.numpy()


def _as_tensor(array: np.ndarray, signature: VariableSignature) -> torch.Tensor:
    tensor = torch.from_numpy(np.asarray(array).copy())
    dtype = getattr(torch, signature.dtype)
    return tensor.view(dtype) if tensor.dtype != dtype else tensor


# By name: the functions that compute numbers from sizes.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
        *(operator.mod, operator.pow, operator.neg, math.ceil, math.floor, math.trunc, round),
        *(torch.sym_float, torch.sym_int, torch.sym_max, torch.sym_min),
        *(function for name, function in vars(torch).items() if name.startswith("_sym_")),
    )
}


def _number(expression: Any, size: int) -> Any:
    """Returns a number's value for a size of the dynamic dimension."""
    if expression == "n":
        return size
    if not isinstance(expression, list):
        return expression
    name, *operands = expression
    return _FUNCTIONS[name](*(_number(operand, size) for operand in operands))


class StableHLOGraphModule:
    """A bundle that can be called with the arguments of the model; it runs on the xla device."""

    def __init__(self, bundle: StableHLOModelBundle) -> None:
        self._bundle = bundle
        self._functions = {func.meta.name: func for func in bundle.stablehlo_funcs}
        self._default = bundle.stablehlo_funcs[0]
        self._sent: dict[tuple[str, Any], torch.Tensor] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the model does, on the xla device."""
        return self._run(self._default, args, kwargs)

    def evaluate(self, method_name: str, args: Sequence[Any]) -> Any:
        """Calls the function of that name."""
        return self._run(self._function(method_name), tuple(args), {})

    def _function(self, name: str | None) -> StableHLOFunc:
        if name is not None and name not in self._functions:
            raise KeyError(f"expected one of {sorted(self._functions)}, got {name!r}")
        return self._default if name is None else self._functions[name]

    def _state(self, where: InputLocation, signature: VariableSignature) -> torch.Tensor:
        key = (where.type_.value, where.name or where.position)
        if key not in self._sent:
            if where.type_ == VariableType.PARAMETER:
                if where.name not in self._bundle.state_dict:
                    raise RuntimeError(
                        f"expected the parameter or buffer {where.name!r} in the bundle, which was "
                        "exported or saved without weights"
                    )
                array = self._bundle.state_dict[where.name]
            else:
                array = self._bundle.additional_constants[where.position]
            self._sent[key] = _as_tensor(array, signature).to("xla")
        return self._sent[key]

    def _run(self, func: StableHLOFunc, args: tuple[Any, ...], kwargs: Any) -> Any:
        meta = func.meta
        flat = pytree.tree_leaves((args, dict(kwargs)))
        operands: list[Any] = []
        sizes: list[int] = []
        numbers = []
        for where, signature in zip(meta.input_locations, meta.input_signature, strict=True):
            if where.type_ == VariableType.CONSTANT and where.position in func.numbers:
                numbers.append((len(operands), where.position, getattr(torch, signature.dtype)))
                operands.append(None)
                continue
            if where.type_ != VariableType.INPUT_ARG:
                operands.append(self._state(where, signature))
                continue
            value = torch.as_tensor(flat[where.position]).to("xla")
            shape = [
                None if i in signature.dynamic_dims else n for i, n in enumerate(signature.shape)
            ]
            fits = len(shape) == value.dim() and all(
                n in (None, found) for n, found in zip(shape, value.shape, strict=True)
            )
            if not fits or str(value.dtype) != f"torch.{signature.dtype}":
                raise ValueError(
                    f"{meta.name}: expected argument {where.position} as {signature.dtype} of "
                    f"shape {shape}, got {value.dtype} of shape {list(value.shape)}"
                )
            sizes += [value.shape[i] for i in signature.dynamic_dims]
            operands.append(value)
        if len(set(sizes)) > 1:
            raise ValueError(f"{meta.name}: expected dynamic dimensions of one size, got {sizes}")
        for where, signature in meta.unused_inputs if not sizes else ():
            if where.type_ == VariableType.INPUT_ARG:  # Its size alone may be used.
                sizes += [flat[where.position].shape[i] for i in signature.dynamic_dims]
        for place, constant, dtype in numbers:
            number = _number(func.numbers[constant], sizes[0])
            operands[place] = torch.tensor(number, dtype=dtype, device="xla")
        results = list(_XLAC._stablehlo_call(func.text_for(sizes), operands))
        for place, (kind, value) in sorted(func.plain.items()):
            results.insert(place, _number(value, sizes[0]) if kind == "number" else value)
        if meta.output_pytree_spec:
            return pytree.tree_unflatten(results, pytree.treespec_loads(meta.output_pytree_spec))
        return results[0] if len(results) == 1 else tuple(results)

    def get_stablehlo_text(self, method_name: str | None = None) -> str:
        """Returns the StableHLO of a function; of the first when ``method_name`` is None."""
        return self._function(method_name).text

    def get_stablehlo_bytecode(self, method_name: str | None = None) -> bytes:
        """Returns the same as a portable artifact, written by jaxlib, which has to be there."""
        return self._function(method_name).bytecode

    def save(
        self, directory_path: str | os.PathLike[str], options: StableHLOExportOptions | None = None
    ) -> None:
        """Writes the bundle into a folder, which is made where it is not there.

        One that was there is replaced when all files are written.
        """
        options = options or StableHLOExportOptions()
        options._check()
        root = os.fspath(directory_path)
        os.makedirs(root, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=root) as partial:
            self._write(partial, options)
            _move_bundle(partial, root)

    def _write(self, root: str, options: StableHLOExportOptions) -> None:
        for folder in _FOLDERS:
            os.makedirs(os.path.join(root, folder))
        metas = []
        for func in self._bundle.stablehlo_funcs:
            entry = dataclasses.asdict(func.meta) | {
                "dynamic": func.dynamic,
                "numbers": func.numbers,
                "texts": func.texts,
                "plain": func.plain,
            }
            metas.append(entry)
            with open(os.path.join(root, "functions", f"{func.meta.name}.mlir"), "w") as file:
                file.write(func.text)
        with open(os.path.join(root, "METADATA"), "w") as file:
            json.dump({"functions": metas}, file, default=lambda kind: kind.value)
        if options.save_weights:
            for name, array in self._bundle.state_dict.items():
                with open(os.path.join(root, "data", name), "wb") as file:
                    np.save(file, array)
        for number, array in enumerate(self._bundle.additional_constants):
            with open(os.path.join(root, "constants", str(number)), "wb") as file:
                np.save(file, array)

    @classmethod
    def load(cls, directory_path: str | os.PathLike[str]) -> StableHLOGraphModule:
        """Returns the bundle of a folder that :meth:`save` has written."""
        root = os.fspath(directory_path)
        with open(os.path.join(root, "METADATA")) as file:
            entries = json.load(file)["functions"]
        funcs = []
        for entry in entries:
            dynamic = entry.pop("dynamic")
            numbers, texts, plain = (
                {int(i): found for i, found in entry.pop(name, {}).items()}
                for name in ("numbers", "texts", "plain")
            )

            def location(found: dict[str, Any]) -> InputLocation:
                return InputLocation(VariableType(found["type_"]), found["position"], found["name"])

            entry["input_signature"] = [VariableSignature(**s) for s in entry["input_signature"]]
            entry["output_signature"] = [VariableSignature(**s) for s in entry["output_signature"]]
            entry["input_locations"] = [location(found) for found in entry["input_locations"]]
            entry["unused_inputs"] = [
                (location(where), VariableSignature(**signature))
                for where, signature in entry["unused_inputs"]
            ]
            with open(os.path.join(root, "functions", f"{entry['name']}.mlir")) as file:
                meta = StableHLOFunctionMeta(**entry)
                funcs.append(StableHLOFunc(meta, file.read(), dynamic, numbers, texts, plain))

        def arrays(folder: str) -> dict[str, np.ndarray]:
            names = sorted(os.listdir(os.path.join(root, folder)))
            return {name: np.load(os.path.join(root, folder, name)) for name in names}

        constants = arrays("constants")
        ordered = [constants[str(i)] for i in range(len(constants))]
        return cls(StableHLOModelBundle(arrays("data"), ordered, funcs))


def _move_bundle(source: str, target: str) -> None:
    """Moves the files. Meanwhile there is no METADATA: nothing loads half of each."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(target, "METADATA"))
    for folder in _FOLDERS:
        os.makedirs(os.path.join(target, folder), exist_ok=True)
        for name in os.listdir(os.path.join(source, folder)):
            os.replace(os.path.join(source, folder, name), os.path.join(target, folder, name))
    os.replace(os.path.join(source, "METADATA"), os.path.join(target, "METADATA"))


class _OnXla(fx.Interpreter):
    """Runs an exported graph on the device, whatever device it was exported for."""

    def __init__(self, module: fx.GraphModule, calls: set[str]) -> None:
        super().__init__(module)
        self._calls = calls
        # Numbers that depend on the dynamic size and are operands of tensor operations.
        self.numbers: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        if "_assert" in str(n.target) or "sym_constrain" in str(n.target):
            return None
        if getattr(n.target, "namespace", None) in self._calls:
            return self._custom_call(n)
        result = super().run_node(n)
        if isinstance(n.meta.get("val"), (torch.SymInt, torch.SymFloat)):
            self.numbers[n] = result
        return result

    def _custom_call(self, n: fx.Node) -> Any:
        from torch_xla.experimental.stablehlo_custom_call import custom_call

        args, kwargs = self.fetch_args_kwargs_from_env(n)
        leaves, spec = pytree.tree_flatten(n.meta["val"])
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        dynamic = [x for x in leaves if not isinstance(x, torch.Tensor) or _dynamic_dims(x)]
        if dynamic or not given:
            raise ValueError(
                f"{_WHAT}: a call of {n.target} as a custom call has tensors as arguments, and as "
                f"results tensors of static shapes; got {len(given)} arguments, results {leaves}"
            )
        shapes, dtypes = [x.shape for x in leaves], [x.dtype for x in leaves]
        return pytree.tree_unflatten(custom_call(given, str(n.target), shapes, dtypes), spec)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("xla")}
        return super().call_function(target, args, kwargs)


def _signature(tensor: torch.Tensor, dynamic: Sequence[int] = ()) -> VariableSignature:
    return VariableSignature(
        list(tensor.shape), str(tensor.dtype).removeprefix("torch."), list(dynamic)
    )


def _dynamic_dims(value: Any) -> list[int]:
    return [i for i, size in enumerate(value.shape) if not isinstance(size, int)]


@dataclasses.dataclass
class _Traced:
    """A program that was traced with one size of its dynamic dimension, if it has one."""

    function: tracing.Function
    locations: list[InputLocation]
    types: list[VariableSignature]
    outputs: list[VariableSignature]
    constants: list[np.ndarray]
    captured: list[VariableSignature]
    numbers: dict[fx.Node, Any]
    plain: dict[int, list[Any]]
    draws: bool  # random numbers


def _trace(
    program: Any, size: int, options: StableHLOExportOptions, kept: Sequence[int] | None
) -> _Traced:
    """Traces an exported program. ``kept``: see ``numbers`` of tracing.function."""
    from torch.export.graph_signature import InputKind, OutputKind

    nodes = [node for node in program.graph_module.graph.nodes if node.op == "placeholder"]
    signature = program.graph_signature
    device = torch.device(_XLAC._xla_get_default_device())
    _XLAC._xla_sync([], False)
    with torch.no_grad(), tracing.trace(_WHAT, device, pure=False) as capture:
        offered, bound, locations, types = [], [], [], []
        argument = 0
        for node, spec in zip(nodes, signature.input_specs, strict=True):
            value = node.meta.get("val")
            is_argument = spec.kind == InputKind.USER_INPUT
            position, argument = argument, argument + is_argument
            if not isinstance(value, torch.Tensor):
                bound.append(getattr(spec.arg, "value", value))
                continue
            dynamic = _dynamic_dims(value)
            shape = [size if i in dynamic else n for i, n in enumerate(value.shape)]
            placeholder = capture.placeholder(tracing.like(shape, value.dtype))
            bound.append(placeholder)
            offered.append(placeholder)
            if is_argument:
                locations.append(InputLocation.input_arg(position))
            else:
                locations.append(InputLocation.parameter(spec.target))
            types.append(_signature(placeholder, dynamic))
        interpreter = _OnXla(program.graph_module, options.custom_ops_allowed_in_graph)
        seed = _XLAC._xla_get_rng_seed(str(device))
        results = interpreter.run(*bound)
        plain, outputs = {}, []
        returned = program.graph_module.graph.output_node().args[0]
        users = (
            (value, node)
            for value, node, spec in zip(results, returned, signature.output_specs, strict=True)
            if spec.kind == OutputKind.USER_OUTPUT
        )
        for place, (value, node) in enumerate(users):
            if isinstance(value, torch.Tensor):
                outputs.append(value.to(device))
            elif isinstance(node, fx.Node):
                plain[place] = ["number", _expression(node)]
            else:
                plain[place] = ["constant", value]
        function = tracing.function(capture, offered, outputs, "main", True, kept)
        results = [_signature(tensor) for tensor in outputs]
        draws = _XLAC._xla_get_rng_seed(str(device)) != seed
    constants = [_as_array(tensor) for tensor in function.captured]
    captured = [_signature(tensor) for tensor in function.captured]
    numbers = interpreter.numbers
    return _Traced(function, locations, types, results, constants, captured, numbers, plain, draws)


# Sizes that are unlikely to be part of other numbers in a program.
_SIZES = (97, 211, 389)
# Up to so many sizes may each have their own text.
_FEW = 16


def _range(program: Any) -> tuple[int, float]:
    """Returns the least and the largest size of the dynamic dimension."""
    ranges = program.range_constraints.values()
    least = max((max(int(bounds.lower), 0) for bounds in ranges), default=0)
    return least, min((float(bounds.upper) for bounds in ranges), default=math.inf)


def _sizes(program: Any) -> tuple[int, ...]:
    """Returns sizes to trace a program with: allowed ones, since a program may clamp others."""
    least, largest = _range(program)
    if largest == math.inf:
        return tuple(max(0, least - _SIZES[0]) + size for size in _SIZES)
    if least <= _SIZES[0] and _SIZES[-1] <= largest:
        return _SIZES
    last = int(largest)
    primes = (n for n in range(last, max(least, 2) - 1, -1) if all(n % k for k in range(2, n)))
    found = list(itertools.islice(primes, len(_SIZES)))
    return tuple(sorted({*found, *([] if len(found) == len(_SIZES) else (least, last))}))


def _numbers_of_sizes(traced: Sequence[_Traced]) -> dict[int, fx.Node]:
    """Returns which captured numbers differ between sizes, and what numbers of the graph they are.

    Raises:
        ValueError: A number is none of the graph's, or another size has other inputs.
    """
    if len({(tuple(one.function.inputs), len(one.constants)) for one in traced}) != 1:
        raise ValueError(f"{_WHAT}: the program takes other inputs for other sizes")

    def is_that(one: _Traced, node: fx.Node, place: int) -> bool:
        dtype = getattr(torch, one.captured[place].dtype)
        number = _as_array(torch.tensor(one.numbers[node], dtype=dtype))
        return bool(number == one.constants[place])

    numbers = {}
    for place, arrays in enumerate(zip(*(one.constants for one in traced), strict=True)):
        if all(np.array_equal(arrays[0], array) for array in arrays):
            continue
        for node in traced[0].numbers:
            if arrays[0].size == 1 and all(is_that(one, node, place) for one in traced):
                numbers[place] = node
        if place not in numbers:
            raise _other_way(" (a constant made of them)")
    return numbers


def _expression(node: Any) -> Any:
    """Returns how a number of an exported graph follows from the size, as :func:`_number` takes it.

    Raises:
        ValueError: The number depends on something other than the size.
    """
    if not isinstance(node, fx.Node):
        return node
    if node.target is torch.ops.aten.sym_size.int and node.meta["val"].node.expr.is_symbol:
        return "n"
    name = getattr(node.target, "__name__", "")
    if node.kwargs or _FUNCTIONS.get(name) is not node.target:
        raise ValueError(f"{_WHAT}: expected a number that follows from sizes, got {node.target}")
    return [name, *map(_expression, node.args)]


def _is_size(user: fx.Node, node: fx.Node) -> bool:
    """Returns whether an operator takes a number as a size rather than as a value."""
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return True
    given = dict(zip((argument.name for argument in schema.arguments), user.args, strict=False))
    given |= user.kwargs
    kinds = {argument.name: str(argument.type) for argument in schema.arguments}
    return any(
        value is not node or kinds[name] not in ("Tensor", "number", "Optional[number]", "float")
        for name, value in given.items()
        if node in pytree.tree_leaves(value)
    )


def _grows_evenly(size: torch.SymInt, sizes: Sequence[int]) -> bool:
    expression = size.node.expr
    found = [expression.subs(dict.fromkeys(expression.free_symbols, n)) for n in sizes]
    return len({b - a for a, b in itertools.pairwise(found)}) <= 1


def _check_numbers(program: Any, numbers: Iterable[fx.Node], known: Iterable[fx.Node]) -> None:
    """Checks that numbers that are not parameters grow evenly with the size, as the text's do.

    Raises:
        ValueError: One, or a tensor's size, does not, which the traced sizes may not show:
            ``n % 2``, ``min(n, 4)``.
    """
    first, last = _range(program)
    sizes = [size for size in range(first, first + 64) if size <= last]
    known = set(known)
    for node in program.graph_module.graph.nodes:
        for size in getattr(node.meta.get("val"), "shape", ()):
            if not isinstance(size, int) and not _grows_evenly(size, sizes):
                raise _other_way(f" ({node.format_node()}: a size is {size})")
    for node in numbers:
        users = [user for user in node.users if isinstance(user.meta.get("val"), torch.Tensor)]
        if not users or (node in known and not any(_is_size(user, node) for user in users)):
            continue
        expression = _expression(node)
        try:
            found = [_number(expression, size) for size in sizes]
        except ZeroDivisionError:
            raise _other_way(f" ({node.format_node()})") from None
        if len({b - a for a, b in itertools.pairwise(found)}) > 1:
            raise _other_way(f" ({node.format_node()})")


def _other_way(what: str) -> ValueError:
    return ValueError(
        f"{_WHAT}: the program depends on the dynamic dimension in another way than by the sizes "
        f"of its tensors and numbers made of them{what}; export it with static shapes"
    )


# Dimensions after a tensor's first are between letters: tensor<2x97xf32>.
_NUMBER = re.compile(r"(?:(?<![\w.%@#])(?=\d+\D)|(?<=\dx)(?=\d+x))(\d+)")


def _template(texts: Sequence[str], sizes: Sequence[int]) -> list[Any]:
    """Returns pieces of text and numbers ``a * n + b`` that together give each size its text.

    Raises:
        ValueError: There is no such text: the program's form depends on the size.
    """
    split = [_NUMBER.split(text) for text in texts]
    if len({len(parts) for parts in split}) != 1:
        raise _other_way("")
    pieces: list[Any] = []
    for number, parts in enumerate(zip(*split, strict=True)):
        if len(set(parts)) == 1:
            if pieces and isinstance(pieces[-1], str):
                pieces[-1] += parts[0]
            else:
                pieces.append(parts[0])
            continue
        if number % 2 == 0:
            raise _other_way("")
        values = [int(part) for part in parts]
        slope, rest = divmod(values[1] - values[0], sizes[1] - sizes[0])
        offset = values[0] - slope * sizes[0]
        if rest or any(slope * n + offset != v for n, v in zip(sizes, values, strict=True)):
            raise _other_way("")
        pieces.append([slope, offset])
    return pieces


@dataclasses.dataclass
class _Form:
    """A program as it was traced, and what its text is for other sizes: see StableHLOFunc."""

    traced: Sequence[_Traced]
    numbers: dict[int, fx.Node] = dataclasses.field(default_factory=dict)
    template: list[Any] | None = None
    texts: dict[int, str] = dataclasses.field(default_factory=dict)


def _dynamic_form(program: Any, options: StableHLOExportOptions) -> _Form:
    """Returns a program with a dynamic dimension as one text, or as one for each of a few sizes.

    Raises:
        ValueError: There is no text for all sizes, and there are many sizes.
    """
    sizes = _sizes(program)
    try:
        # With all numbers as parameters this shows which of them depend on the size.
        traced = [_trace(program, size, options, None) for size in sizes]
        numbers = _numbers_of_sizes(traced)
        _check_numbers(program, traced[0].numbers, numbers.values())
        if options.inline_all_constant:
            traced = [_trace(program, size, options, list(numbers)) for size in sizes]
            numbers = _numbers_of_sizes(traced)
        template = _template([one.function.text for one in traced], sizes)
        return _Form(traced, numbers, template)
    except ValueError:
        least, largest = _range(program)
        if largest - least >= _FEW:
            raise
        sizes = tuple(range(least, int(largest) + 1))
        traced = [_trace(program, size, options, []) for size in sizes]
        if len({tuple(one.function.inputs) for one in traced}) != 1:
            raise
        texts = (one.function.text for one in traced)
        return _Form(traced, texts=dict(zip(sizes, texts, strict=True)))


def exported_program_to_stablehlo(
    exported_model: Any, options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """Returns a program of ``torch.export.export`` in StableHLO.

    A dynamic dimension (``dynamic_shapes`` of the export) may be given any size by the arguments;
    several have to be of one size. The result has no state: buffers and arguments that the model
    changes stay as they are, and random numbers are the same in each call. A warning says so.

    Args:
        exported_model: A ``torch.export.ExportedProgram`` of tensors of any device.
        options: How to export.

    Raises:
        RuntimeError: The program reads a tensor, or has an operator that runs on the CPU.
        ValueError: It depends on the size of a dynamic dimension in another way than by the
            sizes of its tensors.
    """
    options = options or StableHLOExportOptions()
    options._check()
    if options.override_tracing_arguments is not None:
        module = exported_model.module()
        exported_model = torch.export.export(
            module,
            options.override_tracing_arguments,
            dict(options.override_tracing_kwargs or {}),
        )
    program = exported_model.run_decompositions({})
    nodes = program.graph_module.graph.nodes
    values = [node.meta.get("val") for node in nodes if node.op == "placeholder"]
    sizes: list[Any] = [
        v.shape[i] for v in values if isinstance(v, torch.Tensor) for i in _dynamic_dims(v)
    ]
    for size in sizes:
        if not size.node.expr.is_symbol:
            raise ValueError(
                f"{_WHAT}: expected dynamic dimensions of one size, got the size {size}"
            )
    if not sizes:
        kept: list[int] | None = [] if options.inline_all_constant else None
        form = _Form([_trace(program, 0, options, kept)])
    else:
        form = _dynamic_form(program, options)
    found = form.traced[0]
    _warn_of_effects(program.graph_signature, found.draws)
    inputs, count = found.function.inputs, len(found.constants)
    locations, types = found.locations, found.types
    used = set(inputs)
    meta = StableHLOFunctionMeta(
        name="forward",
        stablehlo_version=0,
        input_signature=[types[i] for i in inputs] + found.captured,
        output_signature=found.outputs,
        input_locations=[locations[i] for i in inputs]
        + [InputLocation.constant(i) for i in range(count)],
        unused_inputs=[(locations[i], types[i]) for i in range(len(types)) if i not in used],
        input_pytree_spec=_dumped(exported_model.call_spec.in_spec),
        output_pytree_spec=_dumped(exported_model.call_spec.out_spec),
    )
    arrays = {}
    if options.export_weights:
        state = {**exported_model.state_dict, **exported_model.constants}
        names = {where.name for where in locations if where.type_ == VariableType.PARAMETER}
        arrays = {name: _as_array(state[name]) for name in names}
    numbers = {place: _expression(node) for place, node in form.numbers.items()}
    func = StableHLOFunc(meta, found.function.text, form.template, numbers, form.texts, found.plain)
    return StableHLOGraphModule(StableHLOModelBundle(arrays, found.constants, [func]))


def _warn_of_effects(signature: Any, draws: bool) -> None:
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    effects = [f"changes {', '.join(changed)} in place"] if changed else []
    effects += ["draws random numbers"] if draws else []
    if effects:
        warnings.warn(
            f"{_WHAT}: the program {' and '.join(effects)}. What is exported has no state: what it "
            "changes stays as it is, and each call draws the same numbers",
            stacklevel=3,
        )


def _dumped(spec: Any) -> str | None:
    try:
        return pytree.treespec_dumps(spec)
    except NotImplementedError:  # A class is not registered with a name.
        return None


def save_as_stablehlo(
    exported_model: Any,
    stablehlo_dir: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """Writes :func:`exported_program_to_stablehlo` into a folder."""
    exported_program_to_stablehlo(exported_model, options).save(stablehlo_dir, options)


def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module,
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """Exports a module with these arguments, and writes it into a folder."""
    save_as_stablehlo(torch.export.export(torchmodel, args), path, options)
