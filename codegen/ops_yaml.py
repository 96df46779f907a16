"""Reads xla_native_functions.yaml against PyTorch's native_functions.yaml."""

from __future__ import annotations

import dataclasses
import re
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torchgen
import yaml
from torchgen import local
from torchgen.api.types import CppSignatureGroup, DispatcherSignature
from torchgen.gen import get_grouped_native_functions, parse_native_yaml
from torchgen.model import (
    Argument,
    BaseTy,
    BaseType,
    DispatchKey,
    FunctionSchema,
    ListType,
    NativeFunction,
    NativeFunctionsGroup,
    OptionalType,
    SchemaKind,
    Type,
)

# The keys of an entry, with their meaning.
KEYS = {
    "lower": "the lowering: a Lower function, a formula, stablehlo::Op, or kernel",
    "cpu": "the lowering if the device is the host",
    "constants": "Scalars whose value a lowering uses",
    "numbers": "integers for which another value needs no compilation",
    "fixed": "numbers whose value is always a constant of the program",
    "dtype": "out: without a dtype it computes in the dtype of `out`, or of `self` in place; "
    "floating out: the same unless `self` is integral",
    "like": "the argument whose dtype and sizes the result has; no Meta kernel is called",
    "hand": "the reason why its kernel is written by hand",
    "autograd": "it has its own kernel for AutogradXLA (true), which also serves XLA (both)",
    "foreach": "the operator that each element of the list is lowered as",
    "schema": "the schema of an operation that PyTorch does not have",
    "check": "a check of aten/index_check.h that is called before tracing",
    "counted": "whether calls of the operation are counted",
    "since": "the first version of PyTorch that has the operator",
    "until": "the last version of PyTorch that has the operator",
}
HAND = {
    "factory": "makes a tensor from sizes and numbers only",
    "copy": "moves data or tensors between tensors and devices",
    "view": "makes a view of the same storage",
    "host": "the host must read data to know the result or its size",
    "random": "draws a seed",
    "composed": "calls a few other operators",
    "arguments": "checks or prepares its arguments before it makes a node",
    "updates": "writes several tensors",
}
# The five sections of older tables, with the options that their entries imply.
SECTIONS: dict[str, dict[str, Any]] = {
    "full_codegen": {},
    "ir_gen": {"hand": "arguments", "lower": None},
    "supported": {"hand": "arguments"},
    "symint": {"symint": True},
    "autograd": {"autograd": True},
}

_BASE_KINDS = {
    BaseTy.Tensor: "Tensor",
    BaseTy.Scalar: "Scalar",
    BaseTy.int: "Int",
    BaseTy.SymInt: "Int",
    BaseTy.bool: "Bool",
    BaseTy.float: "Double",
    BaseTy.ScalarType: "Dtype",
    BaseTy.str: "String",
    BaseTy.Layout: "Ignored",
    BaseTy.Device: "Ignored",
    BaseTy.MemoryFormat: "Ignored",
}


def _arg_kind(arg: Argument, constants: set[str]) -> str:
    """Returns the ArgKind (ir/op.h) of a schema argument, without its `k`."""

    def of(type_: Type) -> str:
        if isinstance(type_, BaseType) and type_.name in _BASE_KINDS:
            kind = _BASE_KINDS[type_.name]
            return "ConstantScalar" if kind == "Scalar" and arg.name in constants else kind
        if isinstance(type_, OptionalType):
            kind = of(type_.elem)
            return kind if kind == "Ignored" else f"Optional{kind}"
        if isinstance(type_, ListType):
            return f"{of(type_.elem)}List"
        raise ValueError(
            f"argument `{arg.name}: {arg.type}` has no place in an IR node: "
            "write this op's kernel by hand (`hand: arguments`)"
        )

    return of(arg.type)


@dataclasses.dataclass(frozen=True)
class Arg:
    name: str
    kind: str  # ArgKind without its `k`, with a suffix for numbers (lowering/scalar_argument.h)
    count: int | None = None  # number of arguments that `lower_args` joined

    @property
    def arg_kind(self) -> str:
        """The ArgKind (ir/op.h) without its `k`."""
        if self.kind == "FixedScalar":
            return "ConstantScalar"
        return self.kind.replace("Fixed", "").removesuffix("Number")


@dataclasses.dataclass(frozen=True)
class Lowering:
    """The parsed value of `lower` or of a platform's key."""

    form: str  # function, stablehlo, compare, formula, kernel or leaf
    text: str = ""  # the function, the StableHLO op, the direction or the formula
    arguments: tuple[str, ...] = ()  # passed to the function before the operator's arguments
    condition: str = ""  # of a platform's lowering: a function of the first operand

    @staticmethod
    def parse(text: str) -> Lowering:
        text, _, condition = text.partition(" if ")
        if text in ("kernel", "leaf"):
            return Lowering(text, condition=condition)
        if match := re.fullmatch(r"stablehlo::Compare\((k\w+)\)", text):
            return Lowering("compare", match[1])
        if match := re.fullmatch(r"stablehlo::(\w+)", text):
            return Lowering("stablehlo", match[1])
        literal = r"\d+|true|false|[A-Z]\w+::k\w+"
        if match := re.fullmatch(rf"(\w+)(?:\(((?:{literal})(?:, (?:{literal}))*)\))?", text):
            arguments = tuple(match[2].split(", ")) if match[2] else ()
            return Lowering("function", match[1], arguments, condition)
        return Lowering("formula", text)


@dataclasses.dataclass(frozen=True)
class Op:
    """One entry of the table: an operator overload and what is generated for it."""

    schema: FunctionSchema
    namespace: str  # "aten"; "xla" and others for operations that are not PyTorch's
    function: NativeFunction | None  # PyTorch's
    group: NativeFunctionsGroup | None
    options: dict[str, Any]
    listed: frozenset[str]  # all operators with an entry
    foreach_inplace: NativeFunction | None = None  # `_foreach_add_.List` of `_foreach_add.List`

    @property
    def schema_name(self) -> str:
        """ "add.Tensor"."""
        return str(self.schema.name)

    @property
    def symbol(self) -> str:
        """C++ identifier of the overload: "add_Tensor"."""
        return symbol_of(self.schema)

    @cached_property
    def args(self) -> list[Arg]:
        constants, numbers, fixed = (
            set(self.options.get(key, ())) for key in ("constants", "numbers", "fixed")
        )
        arguments = list(self.schema.schema_order_arguments())
        if unknown := (constants | numbers | fixed) - {a.name for a in arguments}:
            raise ValueError(f"{self.schema_name}: no argument named {sorted(unknown)}")
        # PyTorch's CPU kernel gets the attributes unchanged. The scales of an interpolation are
        # as constant as sizes.
        words = [self.options.get("lower"), *([] if "cpu" not in self.options else ["kernel"])]
        if "kernel" in words:
            fixed |= {a.name for a in arguments}
        fixed |= {a.name for a in arguments if a.name.startswith("scales")}

        def kind(a: Argument) -> str:
            found = _arg_kind(a, constants | set(self.options.get("fixed", ())))
            if a.name in fixed and not found.endswith("List"):
                return found.replace("ConstantScalar", "FixedScalar").replace(
                    "Double", "FixedDouble"
                )
            return f"{found}Number" if a.name in numbers else found

        options = self.schema.arguments.tensor_options
        memory = (
            {a.name for a in (options.layout, options.device, options.pin_memory)}
            if (options)
            else set()
        )
        return [Arg(a.name, "Ignored" if a.name in memory else kind(a)) for a in arguments]

    @cached_property
    def lowering(self) -> Lowering | None:
        """The lowering; None if the operator has no node."""
        if "foreach" in self.options:
            return Lowering("element", self.options["foreach"].replace(".", "_"))
        if "lower" in self.options:
            return Lowering.parse(self.options["lower"] or self.symbol)
        return None if "hand" in self.options else Lowering("function", self.symbol)

    @cached_property
    def cpu(self) -> Lowering | None:
        return Lowering.parse(self.options["cpu"]) if "cpu" in self.options else None

    @property
    def lower_args(self) -> list[Arg]:
        """The arguments of Lower; the one to three scales of an interpolation are one list."""
        args = [a for a in self.args if a.kind != "Ignored"]
        scales = [
            a for a in args if a.kind == "OptionalFixedDouble" and a.name.startswith("scales")
        ]
        if not scales:
            return args
        return [*args[: -len(scales)], Arg("scales", "OptionalFixedDoubles", len(scales))]

    @property
    def num_returns(self) -> int:
        return len(self.schema.returns)

    @property
    def returns_list(self) -> bool:
        returns = self.schema.returns
        return len(returns) == 1 and isinstance(returns[0].type, ListType)

    @property
    def has_ir(self) -> bool:
        return self.lowering is not None

    @property
    def is_own(self) -> bool:
        return self.function is None

    @property
    def is_foreach(self) -> bool:
        return "foreach" in self.options

    @property
    def by_hand(self) -> bool:
        return "hand" in self.options

    @property
    def generates_kernels(self) -> bool:
        return not self.is_own and not self.by_hand

    @property
    def has_structured_meta(self) -> bool:
        """Whether PyTorch's structured kernel gives the shapes of its nodes."""
        return (
            self.has_ir
            and self.function is not None
            and self.function.structured_delegate is not None
            and self.schema.kind() is SchemaKind.functional
            and "like" not in self.options
        )

    @property
    def counter(self) -> str:
        """The counter of its calls; it is named like a fallback's if the host does the work."""
        prefix = "aten" if self.options.get("hand") == "host" else "xla"
        return f"{prefix}::{self.schema.name.name}"

    @property
    def symint(self) -> bool:
        return self.options.get("symint", False)

    def variants(self) -> list[NativeFunction]:
        """The in-place and out= overloads that are generated from this functional overload."""
        if self.is_foreach:  # torchgen does not group these overloads.
            return [self.foreach_inplace] if self.foreach_inplace else []
        if self.schema.kind() is not SchemaKind.functional or self.group is None:
            return []
        found = []
        for variant in (self.group.inplace, self.group.out):
            # Overloads that torchgen generated already call the functional overload.
            if variant is None or "generated" in variant.tags:
                continue
            # A factory's out= overload takes its dtype from `out`, so it is a different call.
            if len(list(variant.func.schema_order_arguments())) - len(
                variant.func.arguments.out
            ) != len(list(self.schema.schema_order_arguments())):
                continue
            if str(variant.func.name) not in self.listed:
                found.append(variant)
        return found

    def check(self) -> None:
        """Raises ValueError for invalid, contradictory or redundant options."""
        if unknown := set(self.options) - set(KEYS) - {"symint"}:
            raise ValueError(f"unknown keys {sorted(unknown)}; known: {', '.join(KEYS)}")
        if self.by_hand and self.options["hand"] not in HAND:
            raise ValueError(f"hand: {self.options['hand']}: one of {', '.join(HAND)}")
        if self.options.get("autograd", True) not in (True, "both"):
            raise ValueError(f"autograd: {self.options['autograd']}: true or both")
        if self.is_own != ("schema" in self.options):
            raise ValueError("a `schema` is for operations that PyTorch does not have")
        if self.is_foreach and set(self.options) - {"foreach", "since", "until"}:
            raise ValueError("`foreach` says it all")
        if not self.by_hand and self.options.get("lower", "") == self.symbol:
            raise ValueError("a Lower of the operator's name need not be named")
        if self.cpu and (self.lowering is None or self.lowering.form == "kernel"):
            raise ValueError("`cpu` is a choice beside another lowering")
        names = {a.name for a in self.args} if self.has_ir else set()
        if self.options.get("like", next(iter(names), "")) not in names | {""}:
            raise ValueError(f"like: no argument named {self.options['like']}")
        if "constants" in self.options and not self.has_ir:
            raise ValueError("`constants` are those of a node")


def symbol_of(schema: FunctionSchema) -> str:
    return str(schema.name).replace(".", "_")


def _types_of(function: NativeFunction):
    """A context in which torchgen writes types as in PyTorch's headers for the function."""
    return local.parametrize(
        use_const_ref_for_mutable_tensors=function.use_const_ref_for_mutable_tensors,
        use_ilistref_for_tensor_lists=function.part_of_structured_group,
    )


def _signature(function: NativeFunction, symint: bool, name: str, write) -> str:
    with _types_of(function):
        return write(DispatcherSignature.from_schema(function.func, symint=symint), name)


def declaration(function: NativeFunction, name: str, symint: bool = False) -> str:
    """Returns the C++ declaration that the dispatcher expects of a kernel, without `;`."""
    return _signature(function, symint, name, lambda sig, n: sig.decl(name=n))


def definition(function: NativeFunction, name: str, symint: bool = False) -> str:
    """Returns the head of the definition of such a kernel, without `{`."""
    return _signature(function, symint, name, lambda sig, n: sig.defn(name=n))


def meta_pointer(function: NativeFunction) -> str:
    """Returns the C++ type of a pointer to the operator's function in at::meta."""
    with _types_of(function):
        group = CppSignatureGroup.from_native_function(function, method=False)
        return group.signature.ptr_type()


def _entries(content: dict[str, Any], file: str) -> dict[str, dict[str, Any]]:
    """Returns name -> options of the table and of the sections of older tables."""
    if unknown := set(content) - {"ops", *SECTIONS}:
        raise ValueError(f"{file}: unknown sections {sorted(unknown)}")
    entries: dict[str, dict[str, Any]] = {}
    for section in content:
        seen = set()
        for entry in content[section] or ():
            name, options = entry, {}
            if isinstance(entry, dict):
                ((name, options),) = entry.items()
            if name in seen or (section == "ops" and name in entries):
                raise ValueError(f"{file}: {section}: {name!r} stands twice")
            seen.add(name)
            if not isinstance(options, dict):
                raise ValueError(f"{file}: {section}: {name}: {options!r} are no options")
            meaning = {**SECTIONS.get(section, {}), **options}
            entries[name] = {**entries.get(name, {}), **meaning}
    return entries


def _is_missing_here(options: dict[str, Any]) -> bool:
    """Returns whether the installed PyTorch may lack the operator."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(".")[:2]]

    here = numbers(version("torch"))
    return ("since" in options and here < numbers(str(options["since"]))) or (
        "until" in options and here > numbers(str(options["until"]))
    )


def load_ops(path: Path) -> list[Op]:
    """Returns all entries, checked. Raises ValueError that names an invalid entry."""
    native = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    by_name = {str(f.func.name): f for f in parsed.native_functions}
    groups: dict[str, NativeFunctionsGroup] = {}
    for group in get_grouped_native_functions(parsed.native_functions):
        if isinstance(group, NativeFunctionsGroup):
            for function in group.functions():
                groups[str(function.func.name)] = group

    entries = _entries(yaml.safe_load(path.read_text()), path.name)
    listed = frozenset(name for name, options in entries.items() if options != {"autograd": True})
    ops: list[Op] = []
    symbols: dict[str, str] = {}  # of the operators with nodes
    for name, options in entries.items():
        namespace, colons, base = name.rpartition("::")
        if colons:
            schema = FunctionSchema.parse(base + options.get("schema", "() -> ()"))
            op = Op(schema, namespace, None, None, options, listed)
        elif name in by_name:
            head, _, overload = name.partition(".")
            inplace = by_name.get(f"{head}_.{overload}" if overload else f"{head}_")
            function = by_name[name]
            op = Op(function.func, "aten", function, groups.get(name), options, listed, inplace)
        elif _is_missing_here(options):
            continue
        else:
            raise ValueError(f"{path.name}: PyTorch has no operator {name!r}")
        try:
            op.check()
            if op.has_ir and symbols.setdefault(op.symbol, name) != name:
                raise ValueError(f"{symbols[op.symbol]} has a node of the same C++ name")
        except ValueError as error:
            raise ValueError(f"{path.name}: {name}: {error}") from None
        # The dispatcher would also use the kernel in place of the op's autograd formula, which
        # would lose the gradients.
        if op.function and not op.options.get("autograd"):
            function = op.function
            if function.has_composite_implicit_autograd_kernel and not (
                function.structured_delegate
                or parsed.backend_indices[DispatchKey.CPU].has_kernel(function)
            ):
                raise ValueError(
                    f"{path.name}: {name!r} is CompositeImplicitAutograd, a kernel would "
                    "take its gradient away: list the operators it is made of"
                )
        ops.append(op)
    return ops
