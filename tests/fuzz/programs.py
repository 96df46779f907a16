"""Random programs, run on the CPU and on xla, compared, and made short.

A program is a list of lines of Python over variables ``v0``, ``v1``, …; ``device`` and ``other``
are two devices (the CPU both times, or xla:0 and xla:1). Lines come from the templates of
operators.py; the CPU is asked while a program is made, and what it refuses is dropped or, rarely,
kept as a line that must fail alike.

A difference is only reported when it is one line's own: the program is run again line by line, each
time from the values that xla has (`blame`). What no single line explains, and no rounding of the
inputs either, is a fault of the graph as a whole.
"""

import dataclasses
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import operators
import torch
import torch.nn.functional as F

import torch_xla

HALF = (torch.float16, torch.bfloat16)
FLOAT = (torch.float32, torch.float64, *HALF)
INTEGER = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOAT, *INTEGER, *COMPLEX, torch.bool)
_WEIGHTS = (8, 4, 2, 2, 5, 2, 1, 1, 2, 3, 1, 3)
# rtol for one operation, and for what many operations left.
_ONE = {torch.float32: 2e-4, torch.float64: 1e-7, torch.float16: 4e-3, torch.bfloat16: 3e-2}
_MANY = {torch.float32: 3e-3, torch.float64: 1e-6, torch.float16: 5e-2, torch.bfloat16: 2e-1}
_KINDS: dict[str, Callable[[torch.Tensor], bool]] = {
    "x": lambda t: True,
    "f": lambda t: t.is_floating_point(),
    "g": lambda t: t.dtype in (torch.float32, torch.float64),
    "i": lambda t: t.dtype in INTEGER,
    "b": lambda t: t.dtype == torch.bool,
    "c": lambda t: t.is_complex(),
    "n": lambda t: not t.is_complex() and t.dtype != torch.bool,
    "r0": lambda t: not t.is_complex(),
    "z": lambda t: t.is_floating_point() or t.is_complex(),
    "q": lambda t: t.dtype in FLOAT[:2] and t.dim() == 2 and t.shape[0] == t.shape[1],
    "m": lambda t: t.is_floating_point() and t.dim() == 2,
}
# What the CPU's own kernels do not define, or what is documented to differ; by line.
EXCUSES = {
    r"= torch\.polygamma\(": "the CPU's kernel is NaN at infinity, and neither is exact at a pole",
    r"gradient\(lambda a: torch\.digamma": "a pole's derivative, whose size is rounding's",
    r"(var|std)_mean\(.*\binf\b": "the CPU's running mean of an infinity may be NaN",
    r"gradient\(lambda a: F\.hardswish.*\bnan\b": "the CPU's is NaN or 1, by the place in memory",
    r"( - |add\(|sub\().*\binf[-+].*nanj": "the CPU multiplies an infinity by 1 + 0j first: NaN",
    r"torch\.pow\(.*\(inf[+-]": "a power of a complex infinity is partly NaN on the CPU",
    r"gradient\(lambda a: F\.batch_norm\(.*: v\d+ is \[.*e-0": "0, but for rounding",
    r"multi_margin_loss\(.* is nan, not": "of no samples the CPU gives what was in memory",
    r"hessian\(.*\binf\b": "a derivative at infinity: NaN where a 0 is multiplied, or is not",
    r": no error, not (RuntimeError: )?ZeroDivisionError": "of divisors that the device computes",
    r": no error, not \w+: .*\bindex.* out of (bounds|range)": "of indices that it computes",
}


def make(shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str) -> torch.Tensor:
    """A tensor with the values of ``seed``: small numbers, ties, zeros, now and then NaN."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    if seed % 3 == 0:
        numbers = (numbers * 2).round() / 2
    if dtype in INTEGER or dtype == torch.bool:
        numbers = numbers.round()
        return (numbers.abs() if dtype == torch.uint8 else numbers).to(dtype).to(device)
    if seed % 7 == 0 and numbers.numel() > 1:
        numbers.view(-1)[seed % numbers.numel()] = (float("nan"), float("inf"), -0.0)[seed % 3]
    if dtype in COMPLEX:
        imaginary = torch.randn(shape, generator=generator, dtype=torch.float64).round()
        if seed % 5 == 0:
            numbers = torch.zeros_like(numbers)
        return torch.complex(numbers, imaginary).to(dtype).to(device)
    return numbers.to(dtype).to(device)


def environment(device: str, other: str, sync: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """What a program's lines see."""

    def gradient(function, at):
        leaf = at.detach().clone().requires_grad_()
        result = function(leaf)
        return torch.autograd.grad(result.real.sum(), leaf)[0]

    return {
        "torch": torch,
        "F": F,
        "device": device,
        "other": other,
        "kind": device.split(":")[0],
        "sync": sync,
        "make": make,
        "gradient": gradient,
    }


def variables(env: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The program's tensors by name."""
    return {name: value for name, value in env.items() if re.fullmatch(r"v\d+", name)}


def execute(line: str, env: dict[str, Any]) -> str:
    """Runs a line; "" or the name of the class of its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # What is deprecated is not tried: out= that another shape is made of.
            warnings.filterwarnings("error", "An output with one or more elements was resized")
            # oneDNN's functions are less exact, and which it has depends on the CPU's model.
            with torch.backends.mkldnn.flags(enabled=False):
                exec(line, env)  # noqa: S102
        return ""
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"


@dataclasses.dataclass
class Program:
    """Lines, and for each the class of the error that the CPU raises ("" for none)."""

    lines: list[str]
    errors: list[str]

    def run(self, env: dict[str, Any]) -> list[str]:
        return [execute(line, env) for line in self.lines]


# ---------------------------------------------------------------- making one


def _overlaps(tensor: torch.Tensor) -> bool:
    return torch._debug_has_internal_overlap(tensor) != 0 and tensor.numel() > 1


class _Writer:
    """Writes one program, asking the CPU about each line."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.program = Program([], [])
        self.env = environment("cpu", "cpu")
        self.devices: dict[str, str] = {}

    def _pick(self, accept: Callable[[torch.Tensor], bool], place: str | None = None) -> str | None:
        names = [
            name
            for name, value in variables(self.env).items()
            if accept(value) and place in (None, self.devices.get(name))
        ]
        # The younger the likelier: chains, not stars.
        return self.random.choice(names[-6:] + names) if names else None

    def _fill(self, template: str) -> tuple[str, list[str]] | None:
        """The line without its holes, and the operands' names."""
        filled: dict[str, str] = {}
        first: str | None = None

        def operand(hole: str) -> str | None:
            nonlocal first
            kind = hole.split(":")[0]
            value = self.env[first] if first else None
            place = self.devices[first] if first else None
            if kind == "y" and value is not None:
                like = self._pick(lambda t: t.shape == value.shape, place)
                return (
                    like if self.random.random() < 0.7 and like else self._pick(_KINDS["x"], place)
                )
            if kind == "w" and value is not None:
                return self._pick(
                    lambda t: t.shape == value.shape and t.dtype == value.dtype, place
                )
            if kind == "o":
                return self._pick(lambda t: not _overlaps(t), place)
            if kind == "j":
                rows = value.shape[0] if value is not None and value.dim() else 1
                if not rows:
                    return None
                picked = [self.random.randrange(rows) for _ in range(self.random.randint(1, 3))]
                return f"torch.tensor({picked}, device={first}.device)"
            if kind in _KINDS:
                name = self._pick(_KINDS[kind], place)
                if name and not first:
                    first = name
                return name
            return self._number(kind, value)

        holes = [h for h in re.findall(r"{([a-z]\w*(?::\d)?)}", template) if h != "c0"]
        for hole in holes:
            if hole not in filled:
                name = operand(hole)
                if name is None:
                    return None
                filled[hole] = name
        filled["c0"] = f"{first}.device" if first else "device"
        line = re.sub(r"{([a-z]\w*(?::\d)?)}", lambda m: filled[m.group(1)], template)
        return line, re.findall(r"\bv\d+\b", line)

    def _number(self, kind: str, value: torch.Tensor | None) -> str:
        choose = self.random.choice
        match kind:
            case "s":
                return choose(["2", "-1", "0.5", "3", "-2.5", "True", "1.5j", "0", "1e-3", "7"])
            case "u":
                return choose(["0.5", "-1.25", "2.0", "0.0", "0.1", "1.0"])
            case "k":
                return str(self.random.randint(0, 3))
            case "p":
                return str(self.random.randint(1, 3))
            case "e":
                return str(self.random.randint(-1, 1))
            case "t":
                return choose(["True", "False"])
            case "dt":
                return str(choose(DTYPES))
            case "d":
                rank = max(value.dim() if value is not None else 1, 1)
                return str(self.random.randint(-rank, rank - 1))
            case "h":
                return str(tuple(value.shape)) if value is not None else "(2, 2)"
            case "r":
                size = value.numel() if value is not None else 1
                even = (2, size // 2) if size % 2 == 0 else (size,)
                return str(choose([(size,), (1, size), (size, 1), even, (-1, 1)]))
        raise ValueError(kind)

    def _try(self, line: str, place: str, keep_error: bool = False) -> bool:
        """Runs a line on the CPU and keeps it when it gave something to go on with."""
        target = re.search(r"(?:^|: )(v\d+) = ", line)
        before = dict(self.env)
        error = execute(line, self.env)
        value = self.env.get(target[1]) if target else None
        fits = not error and (
            value is None
            or isinstance(value, torch.Tensor)
            and value.layout == torch.strided
            and value.dtype in DTYPES
            and value.numel() <= 200
            and value.dim() <= 4
            and not value.requires_grad
        )
        if isinstance(value, bool) and not error:
            fits = False
        if not fits and not (error and keep_error):
            # What it may have written is undone by running the rest again.
            self.env = before if "_(" not in line and "=" not in line[6:] else None
            if self.env is None:
                self.env = environment("cpu", "cpu")
                self.program.run(self.env)
            if target:
                self.env.pop(target[1], None)
            return False
        if target and not error:
            self.devices[target[1]] = place
        self.program.lines.append(line)
        self.program.errors.append(error.split(":")[0])
        return True

    def _name(self) -> str:
        return f"v{len(self.program.lines)}"

    def _input(self) -> None:
        rank = self.random.choices((0, 1, 2, 3), (1, 3, 5, 2))[0]
        sizes = self.random.choices((0, 1, 2, 3, 4), (0.4, 2, 4, 4, 2), k=rank)
        if self.random.random() < 0.4 and rank == 2:
            sizes = [3, 3]
        dtype = self.random.choices(DTYPES, _WEIGHTS)[0]
        place = "other" if self.random.random() < 0.1 else "device"
        seed = self.random.randrange(1000)
        self._try(f"{self._name()} = make({tuple(sizes)}, {dtype}, {seed}, {place})", place)

    def _writes_are_sound(self, line: str, names: list[str]) -> bool:
        """Whether what the line writes overlaps neither itself nor what it reads."""
        out = re.search(r"out=(v\d+)", line)
        if not out and not re.search(r"\w_\(|\] = ", line):
            return True
        tensors = {name: self.env[name] for name in names}
        written = tensors[out[1] if out else names[0]]
        return not _overlaps(written) and all(
            other is written
            or other.untyped_storage().data_ptr() != written.untyped_storage().data_ptr()
            or other.numel() == 0
            for other in tensors.values()
        )

    def _operation(self) -> None:
        dice = self.random.random()
        if dice < 0.04:
            self._try("sync()", "device")
            return
        if dice < 0.07 and (name := self._pick(_KINDS["x"])):
            place = self.random.choice(["device", "other"])
            # A copy, as the CPU is one device and not two.
            self._try(f"{self._name()} = {name}.to({place}, copy=True)", place)
            return
        pool = operators.ALL
        if dice < 0.17:
            pool = operators.DIFFERENTIABLE
        elif dice < 0.20:
            pool = operators.AUTOCAST
        filled = self._fill(self.random.choice(pool))
        if filled is None:
            return
        line, names = filled
        if not self._writes_are_sound(line, names):
            return
        if ".view(torch." in line and self.env[names[0]].isnan().any():
            return  # The bits of a NaN are nobody's promise.
        if pool is operators.DIFFERENTIABLE and "softshrink(" in line:
            if self.env[names[0]].isnan().any():
                return  # The CPU's gradient is 0 in a vector, and 1 in the rest at its end.
        if "median(" in line and any(_overlaps(self.env[name]) for name in names):
            return  # The CPU reads beyond the memory of what is expanded.
        place = self.devices[names[0]] if names else "device"
        if pool is operators.DIFFERENTIABLE:
            body = re.sub(rf"\b{names[0]}\b", "a", line) if names else line
            line = f"gradient(lambda a: {body}, {names[0] if names else 'v0'})"
        elif pool is operators.AUTOCAST:
            expression = f"{self._name()} = {line}"
            self._try(f"with torch.autocast(kind, torch.bfloat16): {expression}", place)
            return
        keep = self.random.random() < 0.04 and not re.search(r"\w_\(|\] = |out=", line)
        self._try(line if "] = " in line else f"{self._name()} = {line}", place, keep)

    def write(self, length: int) -> Program:
        for _ in range(4):
            self._input()
        for _ in range(60):
            if len(self.program.lines) >= length:
                break
            if self.random.random() < 0.06:
                self._input()
            else:
                self._operation()
        return self.program


def write(seed: int, length: int = 11) -> Program:
    """The program of this seed."""
    return _Writer(seed).write(length)


# ---------------------------------------------------------------- comparing


def difference(
    actual: torch.Tensor,
    expected: torch.Tensor,
    rtol: dict[torch.dtype, float],
    exact: torch.Tensor | None = None,
) -> str:
    """What differs, or "". ``exact``: the result from operands in double precision, if known."""
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return "" if type(actual) is type(expected) else f"{type(actual)}, not {type(expected)}"
    if actual.dtype != expected.dtype:
        return f"{actual.dtype}, not {expected.dtype}"
    if actual.shape != expected.shape:
        return f"{tuple(actual.shape)}, not {tuple(expected.shape)}"
    if not (expected.is_floating_point() or expected.is_complex()):
        return (
            "" if torch.equal(actual, expected) else f"{actual.tolist()}, not {expected.tolist()}"
        )
    real = torch.float64 if not expected.is_complex() else torch.complex128
    a, e = actual.to(real), expected.to(real)
    tolerance = rtol[expected.real.dtype]
    finite = e[e.isfinite()].abs()
    atol = tolerance * max(float(finite.max()) if finite.numel() else 0.0, 0.05)
    if torch.allclose(a, e, rtol=tolerance, atol=atol, equal_nan=True):
        return ""
    if exact is not None and exact.shape == e.shape:
        x = exact.to(real)
        near = (a - x).abs() <= 4 * (e - x).abs() + atol + tolerance * x.abs()
        if bool(
            (near | (a == e) | (a.isnan() & e.isnan()) | (a == x) | (a.isnan() & x.isnan())).all()
        ):
            return ""
    return f"{actual.tolist()}, not {expected.tolist()}"


def check(
    program: Program,
    env: dict[str, Any],
    errors: list[str],
    reference: dict[str, Any] | None = None,
) -> str:
    """How a finished run differs from the CPU's; "" for not at all."""
    if reference is None:
        reference = environment("cpu", "cpu")
        program.run(reference)
    for line, expected, error in zip(program.lines, program.errors, errors, strict=True):
        if error.split(":")[0] != expected:
            return f"{line}: {error or 'no error'}, not {expected or 'a result'}"
    actual = variables(env)
    for name, expected in variables(reference).items():
        if name not in actual:
            return f"{name}: not there"
        try:
            value = actual[name].cpu()
        except Exception as error:  # noqa: BLE001
            return f"{name}: reading it raised {type(error).__name__}: {error}"
        if said := difference(value, expected, _MANY):
            return f"{name}: {said}"
    return ""


def _doubled(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float32, *HALF):
        return value.double()
    if isinstance(value, torch.Tensor) and value.dtype == torch.complex64:
        return value.to(torch.complex128)
    return value


def blame(program: Program, devices: tuple[str, str], sync: Callable[[], None]) -> str:
    """The first line that alone differs from the CPU given the same operands, and how; or ""."""
    cpu, xla = environment("cpu", "cpu"), environment(*devices, sync)
    for line in program.lines:
        before = {name: value.clone() for name, value in variables(cpu).items()}
        exact = {**cpu, **{name: _doubled(value) for name, value in before.items()}}
        expected_error = execute(line, cpu)
        execute(line, exact)
        error = execute(line, xla)
        used = [cpu[name].dtype for name in re.findall(r"\bv\d+\b", line) if name in cpu]
        coarsest = max(
            (_ONE[dtype.to_real()] for dtype in used if dtype.to_real() in _ONE), default=0
        )
        rtol = {dtype: max(own, coarsest) for dtype, own in _ONE.items()}
        if error.split(":")[0] != expected_error.split(":")[0]:
            return f"{line}: {error or 'no error'}, not {expected_error or 'a result'}"
        for name, expected in variables(cpu).items():
            try:
                value = xla[name].cpu()
            except Exception as failure:  # noqa: BLE001
                return f"{line}: reading {name} raised {type(failure).__name__}: {failure}"
            wide = exact.get(name)
            wide = wide if isinstance(wide, torch.Tensor) else None
            if said := difference(value, expected, rtol, wide):
                return f"{line}: {name} is {said}"
            if expected.numel() and not _overlaps(expected):
                expected.copy_(value)
    return ""


def explained_by_rounding(program: Program, said: str) -> bool:
    """Whether values that differ in their last digits change the program's results as much."""
    name = said.split(":")[0]
    if not re.fullmatch(r"v\d+", name):
        return False
    results = []
    for sign in (0.0, 1.0, -1.0):
        generator = torch.Generator().manual_seed(0)
        env = environment("cpu", "cpu")
        for line in program.lines:
            execute(line, env)
            made = env.get(line.split(" ")[0])
            if isinstance(made, torch.Tensor) and (made.is_floating_point() or made.is_complex()):
                step = 1e-2 if made.dtype in HALF else 1e-5
                if not _overlaps(made):
                    # The sign of a zero, too.
                    noise = torch.rand(made.shape, generator=generator, dtype=torch.float64)
                    made.mul_(1 + sign * step * noise).add_(sign * 1e-7 * step)
        results.append(env.get(name))
    return any(difference(other, results[0], _MANY) != "" for other in results[1:])


def excused(said: str) -> bool:
    return any(re.search(pattern, said) for pattern in EXCUSES)


# ---------------------------------------------------------------- making it short


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The fewest lines that still fail, by leaving out one after the other."""

    def without(lines: list[str]) -> Program | None:
        env = environment("cpu", "cpu")
        errors = [execute(line, env) for line in lines]
        if any(error.startswith("NameError") for error in errors):
            return None
        return Program(lines, [error.split(":")[0] for error in errors])

    again = True
    while again:
        again = False
        for i in reversed(range(len(program.lines))):
            candidate = without(program.lines[:i] + program.lines[i + 1 :])
            if candidate is not None and candidate.lines and fails(candidate):
                program, again = candidate, True
                break
    return program


def agrees(*lines: str) -> None:
    """Asserts that the lines do on xla what they do on the CPU, whole and one by one."""
    reference = environment("cpu", "cpu")
    program = Program(list(lines), [execute(line, reference).split(":")[0] for line in lines])
    env = environment("xla:0", "xla:0", torch_xla.sync)
    said = check(program, env, program.run(env))
    said = said or blame(program, ("xla:0", "xla:0"), torch_xla.sync)
    assert not said, said


def as_test(program: Program, said: str, seed: int) -> str:
    """The program as a test, for the file of its operator's family in tests/python/ops."""
    body = "\n".join(f"        {line!r}," for line in program.lines)
    return f"def test_{seed}():\n    # {said[:150]}\n    programs.agrees(\n{body}\n    )\n"
