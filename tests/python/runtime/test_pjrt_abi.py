"""Checks runtime/pjrt_abi.h and runtime/ffi_abi.h against pypjrt's tables, number by number.

The headers are read for the names they declare, a C++ program generated from those names prints
what the compiler makes of them, and each number is compared. Nothing can be declared and escape:
a line that is not understood fails the test.
"""

import ctypes
import pathlib
import re
import shutil
import subprocess

import pytest

pypjrt_abi = pytest.importorskip("pypjrt._abi.pjrt_0_114")

ROOT = pathlib.Path(__file__).resolve().parents[3]
INCLUDE = ROOT / "torch_xla" / "csrc"
HEADERS = ["runtime/pjrt_abi.h", "runtime/ffi_abi.h"]
NAMESPACE = "torch_xla::runtime::pjrt"

# Not part of the ABI: how this runtime declares and fills in an argument struct.
OURS = {"Args", "ArgsHeader"}

FUNCTION_POINTER = re.compile(r"\(\*(\w+)\)\([^()]*\)$")
FIELD = re.compile(r"(\w+)$")


class Declarations:
    def __init__(self):
        self.structs = {}  # name -> fields; unions too
        self.unions = set()
        self.sizes = set()  # names with a PJRT_STRUCT_SIZE
        self.enumerators = []


def parse(text, into):
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^#define.*?(?<!\\)\n", "", text, flags=re.M | re.S)
    into.sizes |= set(re.findall(r"PJRT_STRUCT_SIZE\((\w+), \w+\);", text))
    for kind, name, base, body in re.findall(
        r"^(struct|union|enum) (\w+)([^;{]*)\{(?:\n(.*?)^)?\};", text, flags=re.M | re.S
    ):
        if name in OURS:
            continue
        lines = [line.strip() for line in body.splitlines() if line.strip()]
        if kind == "enum":
            for line in lines:
                into.enumerators.append(re.fullmatch(r"(\w+) = \d+,", line).group(1))
            continue
        # clang-format may break a long function pointer.
        statements = [s.strip() for s in " ".join(lines).split(";") if s.strip()]
        fields = ["struct_size", "extension_start"] if "ArgsHeader" in base else []
        for statement in statements:
            match = FUNCTION_POINTER.search(statement) or FIELD.search(statement)
            assert match, f"{name}: cannot read {statement!r}"
            fields.append(match.group(1))
        into.structs[name] = fields
        if kind == "union":
            into.unions.add(name)


@pytest.fixture(scope="module")
def declared():
    declarations = Declarations()
    for header in HEADERS:
        parse((INCLUDE / header).read_text(), declarations)
    return declarations


@pytest.fixture(scope="module")
def compiled(declared, tmp_path_factory):
    """{"sizeof X": n, "size X": n, "offset X.f": n, "value E": n} as the C++ compiler sees it."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler on PATH")
    lines = [
        "#include <cstdio>",
        *(f'#include "{h}"' for h in HEADERS),
        f"using namespace {NAMESPACE};",
        "static void P(const char* what, unsigned long long n) {",
        '  std::printf("%s=%llu\\n", what, n); }',
        "int main() {",
    ]
    for name, fields in declared.structs.items():
        lines.append(f'P("sizeof {name}", sizeof({name}));')
        lines += [f'P("offset {name}.{f}", offsetof({name}, {f}));' for f in fields]
    lines += [f'P("size {name}", kStructSize<{name}>);' for name in sorted(declared.sizes)]
    lines += [f'P("value {name}", {name});' for name in declared.enumerators]
    lines += ['P("major", kApiMajor);', "}"]
    folder = tmp_path_factory.mktemp("abi")
    source = folder / "pjrt_abi_dump.cpp"
    source.write_text("\n".join(lines) + "\n")
    program = folder / "pjrt_abi_dump"
    subprocess.run(
        [compiler, "-std=c++20", "-Wno-invalid-offsetof", f"-I{INCLUDE}", source, "-o", program],
        check=True,
    )
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {k: int(v) for k, v in (line.rsplit("=", 1) for line in output.splitlines())}


def reference_fields(reference):
    """The reference's fields; it names anonymous unions `_anonN`, we give them a name."""
    return [field[0] for field in reference._fields_]


def test_everything_is_read(declared):
    text = "".join((INCLUDE / header).read_text() for header in HEADERS)
    bodies = re.findall(r"^(?:struct|union) (\w+)[^;{]*\{", text, flags=re.M)
    assert set(bodies) - OURS == set(declared.structs)
    assert len(declared.structs) > 60
    assert len(declared.enumerators) > 60
    assert "PJRT_Api" in declared.sizes


def test_struct_layouts(declared, compiled):
    for name, fields in declared.structs.items():
        if name in declared.unions or name in ("PJRT_Api", "XLA_FFI_Api"):
            continue
        reference = getattr(pypjrt_abi, name)
        names = reference_fields(reference)
        if name == "XLA_FFI_Metadata":
            names = names[: len(fields)]  # state_type_id is newer than the plugins in use
        else:
            assert compiled[f"sizeof {name}"] == ctypes.sizeof(reference), name
        assert len(fields) == len(names), (name, fields, names)
        for field, theirs in zip(fields, names, strict=True):
            assert field == theirs or theirs.startswith("_anon"), (name, field, theirs)
            assert compiled[f"offset {name}.{field}"] == getattr(reference, theirs).offset, (
                name,
                field,
            )


def test_struct_sizes(declared, compiled):
    for name in declared.sizes - {"PJRT_Api"}:
        assert compiled[f"size {name}"] == getattr(pypjrt_abi, f"{name}_STRUCT_SIZE"), name
    assert compiled["size PJRT_Api"] == compiled["sizeof PJRT_Api"]


def test_unions(declared, compiled):
    anonymous = {}
    for name in declared.structs:
        for field in getattr(getattr(pypjrt_abi, name, None), "_fields_", []):
            if field[0].startswith("_anon"):
                anonymous[name + "_Value"] = field[1]
    assert declared.unions == set(anonymous)
    for name in declared.unions:
        assert compiled[f"sizeof {name}"] == ctypes.sizeof(anonymous[name]), name
        assert declared.structs[name] == reference_fields(anonymous[name])
        assert all(compiled[f"offset {name}.{f}"] == 0 for f in declared.structs[name])


def test_function_table(declared, compiled):
    fields = declared.structs["PJRT_Api"]
    reference = pypjrt_abi.PJRT_Api
    assert fields[:3] == ["struct_size", "extension_start", "pjrt_api_version"]
    for field in fields[:3]:
        assert compiled[f"offset PJRT_Api.{field}"] == getattr(reference, field).offset
    for index, function in enumerate(fields[3:]):
        assert pypjrt_abi.SLOT[function] == index
        assert compiled[f"offset PJRT_Api.{function}"] == pypjrt_abi.VTABLE_OFFSET + 8 * index


def test_ffi_function_table(declared, compiled):
    for field in declared.structs["XLA_FFI_Api"]:
        expected = getattr(pypjrt_abi.XLA_FFI_Api, field).offset
        assert compiled[f"offset XLA_FFI_Api.{field}"] == expected, field


def test_enumerators(declared, compiled):
    for name in declared.enumerators:
        assert compiled[f"value {name}"] == getattr(pypjrt_abi, name), name


def test_version(compiled):
    assert compiled["major"] == pypjrt_abi.PJRT_API_MAJOR
