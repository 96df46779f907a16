"""Reads xla_native_functions.yaml against PyTorch's native_functions.yaml."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path

import torchgen
import yaml
from torchgen import local
from torchgen.api.types import DispatcherSignature
from torchgen.gen import get_grouped_native_functions, parse_native_yaml
from torchgen.model import (
    Argument,
    BaseTy,
    BaseType,
    DispatchKey,
    ListType,
    NativeFunction,
    NativeFunctionsGroup,
    OptionalType,
    SchemaKind,
    Type,
)

SECTIONS = ("full_codegen", "ir_gen", "foreach", "supported", "symint", "autograd")
# The lowerings an entry may name instead of a hand-written Lower.
LOWERING_KEYS = ("unary", "binary", "compare", "formula", "element")

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
    """The ArgKind (ir/op.h) of a schema argument, without its `k`."""

    def of(type_: Type) -> str:
        if isinstance(type_, BaseType) and type_.name in _BASE_KINDS:
            kind = _BASE_KINDS[type_.name]
            return "ConstantScalar" if kind == "Scalar" and arg.name in constants else kind
        if isinstance(type_, OptionalType):
            kind = of(type_.elem)
            return kind if kind == "Ignored" else f"Optional{kind}"
        if isinstance(type_, ListType):
            if isinstance(type_.elem, OptionalType):
                return f"{of(type_.elem)}List"
            return f"{of(type_.elem)}List"
        raise ValueError(
            f"argument `{arg.name}: {arg.type}` has no place in an IR node: "
            "write this op's kernel by hand (section `supported`)"
        )

    if arg.name == "pin_memory":
        return "Ignored"
    return of(arg.type)


@dataclasses.dataclass(frozen=True)
class Arg:
    name: str
    kind: str  # ArgKind without its `k`
    count: int | None = None  # of arguments that `lower_args` joined


@dataclasses.dataclass(frozen=True)
class Op:
    """One entry of the yaml: an operator overload and what is generated for it."""

    function: NativeFunction
    group: NativeFunctionsGroup | None
    section: str
    options: dict
    listed: frozenset[str]  # every op named in the yaml
    symint: bool
    foreach_inplace: NativeFunction | None = None  # `_foreach_add_.List` of `_foreach_add.List`

    @property
    def schema_name(self) -> str:
        """ "add.Tensor"."""
        return str(self.function.func.name)

    @property
    def symbol(self) -> str:
        """C++ identifier of the overload: "add_Tensor"."""
        return symbol_of(self.function)

    @cached_property
    def args(self) -> list[Arg]:
        constants = set(self.options.get("constants", ()))
        names = {a.name for a in self.function.func.schema_order_arguments()}
        if unknown := constants - names:
            raise ValueError(f"{self.schema_name}: no argument named {sorted(unknown)}")
        return [
            Arg(a.name, _arg_kind(a, constants))
            for a in self.function.func.schema_order_arguments()
        ]

    @property
    def lower_name(self) -> str:
        """The Lower function: the one that the option `lower` names, or the op's own."""
        return self.options.get("lower", self.symbol)

    @property
    def lower_args(self) -> list[Arg]:
        """What Lower gets. One that serves 1-d to 3-d operators gets their scales as a list."""
        args = [a for a in self.args if a.kind != "Ignored"]
        scales = [a for a in args if a.kind == "OptionalDouble" and a.name.startswith("scales")]
        if "lower" not in self.options or not scales:
            return args
        others = args[: -len(scales)]
        return [*others, Arg("scales", "OptionalDoubles", len(scales))]

    @property
    def num_returns(self) -> int:
        return len(self.function.func.returns)

    @property
    def returns_list(self) -> bool:
        returns = self.function.func.returns
        return len(returns) == 1 and isinstance(returns[0].type, ListType)

    @property
    def has_ir(self) -> bool:
        return self.section in ("full_codegen", "ir_gen", "foreach")

    @property
    def has_kernel(self) -> bool:
        return self.section in ("full_codegen", "foreach", "supported")

    @property
    def generates_kernels(self) -> bool:
        return self.section in ("full_codegen", "foreach")

    @property
    def cpu_kernel(self) -> str | None:
        """ "only": PyTorch's CPU kernel is the one lowering; "preferred": there is a Lower for
        other platforms."""
        option = self.options.get("cpu_kernel")
        if option not in (None, "only", "preferred"):
            raise ValueError(f"{self.schema_name}: cpu_kernel: {option}: `only` or `preferred`")
        return option

    @property
    def needs_lower(self) -> bool:
        """Whether lowering/ defines a Lower for it."""
        return self.has_ir and self.lowering_option is None and self.cpu_kernel != "only"

    @property
    def lowering_option(self) -> tuple[str, str] | None:
        for key in LOWERING_KEYS:
            if key in self.options:
                return key, self.options[key]
        return None

    def variants(self) -> list[NativeFunction]:
        """In-place and out= overloads that come free with this functional one."""
        if self.section == "foreach":  # torchgen does not group these.
            return [self.foreach_inplace] if self.foreach_inplace else []
        if self.function.func.kind() is not SchemaKind.functional or self.group is None:
            return []
        found = []
        for variant in (self.group.inplace, self.group.out):
            # What torchgen made itself already calls the functional overload.
            if variant is None or "generated" in variant.tags:
                continue
            # A factory's out= takes its dtype from `out`: not the same call.
            if len(list(variant.func.schema_order_arguments())) - len(
                variant.func.arguments.out
            ) != len(list(self.function.func.schema_order_arguments())):
                continue
            if str(variant.func.name) not in self.listed:
                found.append(variant)
        return found


def symbol_of(function: NativeFunction) -> str:
    name = str(function.func.name).replace(".", "_")
    return name


def _signature(function: NativeFunction, symint: bool, name: str, write) -> str:
    with local.parametrize(
        use_const_ref_for_mutable_tensors=function.use_const_ref_for_mutable_tensors,
        use_ilistref_for_tensor_lists=function.part_of_structured_group,
    ):
        return write(DispatcherSignature.from_schema(function.func, symint=symint), name)


def declaration(function: NativeFunction, name: str, symint: bool = False) -> str:
    """The C++ declaration the dispatcher wants for a kernel, without `;`."""
    return _signature(function, symint, name, lambda sig, n: sig.decl(name=n))


def definition(function: NativeFunction, name: str, symint: bool = False) -> str:
    """The head of the definition of such a kernel, without `{`."""
    return _signature(function, symint, name, lambda sig, n: sig.defn(name=n))


def load_ops(path: Path) -> list[Op]:
    """All entries, checked; raises ValueError naming the entry that is wrong."""
    native = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    by_name = {str(f.func.name): f for f in parsed.native_functions}
    groups: dict[str, NativeFunctionsGroup] = {}
    for group in get_grouped_native_functions(parsed.native_functions):
        if isinstance(group, NativeFunctionsGroup):
            for function in group.functions():
                groups[str(function.func.name)] = group

    content = yaml.safe_load(path.read_text())
    if unknown := set(content) - set(SECTIONS):
        raise ValueError(f"{path.name}: unknown sections {sorted(unknown)}; known: {SECTIONS}")

    entries: list[tuple[str, str, dict]] = []
    for section in SECTIONS:
        for entry in content.get(section) or ():
            name, options = entry, {}
            if isinstance(entry, dict):
                ((name, options),) = entry.items()
            if section == "foreach":
                options = {"element": options}
            entries.append((section, name, options or {}))
    symint = {name for section, name, _ in entries if section == "symint"}
    autograd = {name for section, name, _ in entries if section == "autograd"}
    entries = [entry for entry in entries if entry[0] != "symint"]
    listed = frozenset(name for section, name, _ in entries if section != "ir_gen")

    ops, seen = [], set()
    for section, name, options in entries:
        if name not in by_name:
            if options.get("optional"):
                continue
            raise ValueError(f"{path.name}: {section}: PyTorch has no operator {name!r}")
        if (section, name) in seen:
            raise ValueError(f"{path.name}: {section}: {name!r} stands twice")
        seen.add((section, name))
        inplace = None
        if section == "foreach":
            base, _, overload = name.partition(".")
            inplace = by_name.get(f"{base}_.{overload}" if overload else f"{base}_")
        op = Op(by_name[name], groups.get(name), section, options, listed, name in symint, inplace)
        # The dispatcher would take the kernel for the op's autograd formula too: no gradients.
        composite = op.function.has_composite_implicit_autograd_kernel and not (
            op.function.structured_delegate
            or parsed.backend_indices[DispatchKey.CPU].has_kernel(op.function)
        )
        if op.has_kernel and composite and name not in autograd:
            raise ValueError(
                f"{path.name}: {section}: {name!r} is CompositeImplicitAutograd, a kernel would "
                "take its gradient away: list the operators it is made of"
            )
        if op.has_ir:
            op.args  # noqa: B018 - fails here, with the entry's name, where it cannot be generated
        ops.append(op)
    return ops
