"""Numbers that a replayed call takes from optimizers: learning rates, step counters on the CPU.

``torch.optim`` works them out in Python and hands them to operations. What a recording knows of
each of its numbers is what it may come from: it is a constant, or one of the values that
:data:`_SOURCES` names, which had the same bits in every call that was traced. A call is replayed
where all that a number may come from agrees on its value; where not, it is traced, and the
recording knows more. That a source names all numbers that its optimizer makes is tried on
PyTorch's own code (:func:`_is_known`). What has never changed between traced calls may not change
in a replayed one.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_xla import _XLAC

# Entries of a parameter group whose numbers may change from call to call.
FREE = ("lr", "betas", "momentum", "weight_decay")
# The hypothesis that a number is constant. Other hypotheses are indices of candidates.
_CONSTANT = -1
_TRIALS = 24

Numbers = tuple[float, ...]
Source = Callable[[dict[str, Any], float], Numbers]


def _common(group: dict[str, Any]) -> Numbers:
    found = [group["lr"], -group["lr"]]
    if "weight_decay" in group:
        found.append(group["weight_decay"])
    if "betas" in group:
        beta1, beta2 = group["betas"]
        found += [beta1, beta2, 1 - beta1, 1 - beta2]
    if "momentum" in group:
        found.append(group["momentum"])
    return tuple(found)


def _adam(group: dict[str, Any], step: float) -> Numbers:
    lr, (beta1, beta2) = group["lr"], group["betas"]
    step_size = lr / (1 - beta1**step)
    decay = 1 - lr * group["weight_decay"]
    return (*_common(group), decay, -step_size, (1 - beta2**step) ** 0.5)


def _fused_adam(group: dict[str, Any], step: float) -> Numbers:
    return (*_common(group), 1 - group["lr"] * group["weight_decay"])


def _adamax(group: dict[str, Any], step: float) -> Numbers:
    return (*_common(group), -(group["lr"] / (1 - group["betas"][0] ** step)))


def _adagrad(group: dict[str, Any], step: float) -> Numbers:
    return (*_common(group), -group["lr"] / (1 + (step - 1) * group["lr_decay"]))


def _plain(group: dict[str, Any], step: float) -> Numbers:
    return _common(group)


_SOURCES: dict[type, Source] = {
    torch.optim.SGD: _plain,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.Adamax: _adamax,
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _plain,
    torch.optim.Adadelta: _plain,
    torch.optim.Rprop: _plain,
}


class _Spy(TorchDispatchMode):
    """Notes the numbers that operations take."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers: set[float] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        waiting = [*args, *(kwargs or {}).values()]
        while waiting:
            value = waiting.pop()
            if isinstance(value, (list, tuple)):
                waiting += value
            elif isinstance(value, float):
                self.numbers.add(value)
        return func(*args, **(kwargs or {}))


@functools.lru_cache(maxsize=256)
def _is_known(kind: type, flags: tuple[tuple[str, Any], ...]) -> bool:
    """Returns whether all numbers that change with a group's are among its source's.

    PyTorch's own optimizer runs on one parameter on the CPU, with random numbers.
    """
    random = torch.Generator().manual_seed(7)

    def draw(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=random, dtype=torch.float64).item()

    source = _SOURCES[kind]
    constants: set[float] | None = None
    unknown: list[set[float]] = []
    for trial in range(_TRIALS):
        parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        group = dict(flags)
        for name in FREE:
            if name in group and group[name] is None:
                number = draw(0.01, 0.99)
                group[name] = (number, draw(0.5, 0.99)) if name == "betas" else number
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = kind([parameter], **group)
            parameter.grad = torch.full_like(parameter, 0.3)
            optimizer.step()
            counter = optimizer.state[parameter].get("step")
            step = float(int(draw(1, 300)) if trial % 2 else trial + 1)
            if isinstance(counter, torch.Tensor):
                counter.fill_(step)
            with _Spy() as spy:
                optimizer.step()
        known = set(source(optimizer.param_groups[0], step + 1))
        known |= {-number for number in known}
        unknown.append(spy.numbers - known)
        constants = spy.numbers if constants is None else constants & spy.numbers
    return all(numbers <= (constants or set()) for numbers in unknown)


# Entries of a group that are not arguments of its optimizer, or are passed in another way.
_NO_FLAGS = frozenset(
    ("params", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")
    + ("foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")
)


def _source(optimizer: Any, group: dict[str, Any]) -> Source | None:
    """Returns the source that names the numbers of a group; None if there is none."""
    kind = type(optimizer)
    if kind not in _SOURCES:
        return None
    if group.get("differentiable"):
        return None
    if group.get("fused") or group.get("capturable"):
        # The numbers go to the device, or to operators of this library.
        return _fused_adam if _SOURCES[kind] is _adam else _plain
    flags = {name: value for name, value in group.items() if name not in _NO_FLAGS}
    if kind is torch.optim.Adam and group.get("decoupled_weight_decay"):  # AdamW has no such flag.
        flags["decoupled_weight_decay"] = True
    try:
        for foreach in (False, True):
            items = tuple(
                (name, None if name in FREE and value != 0 else value)
                for name, value in (*flags.items(), ("foreach", foreach))
            )
            if not _is_known(kind, items):  # type: ignore[arg-type]
                return None
    except (TypeError, ValueError, RuntimeError):  # Unknown or unhashable flags.
        return None
    return _SOURCES[kind]


def _is_number(value: Any) -> bool:
    return type(value) is float or (
        type(value) is tuple and len(value) == 2 and all(type(one) is float for one in value)
    )


@dataclasses.dataclass
class Group:
    """A group of parameters, and its entries that may change.

    Attributes:
        content: The group itself.
        free: The names of its entries that may change.
        source: The function that names its numbers.
        counters: The step counters of its parameters, those on the CPU.
    """

    content: dict[str, Any]
    free: tuple[str, ...]
    source: Source
    counters: list[torch.Tensor]


def groups(optimizer: Any) -> list[Group] | None:
    """Returns the groups of an optimizer whose numbers are known; None where they are not."""
    found = []
    for group in optimizer.param_groups:
        source = _source(optimizer, group)
        if source is None:
            return None
        free = tuple(name for name in FREE if _is_number(group.get(name)))
        if "lr" not in free or ("betas" in group and "betas" not in free):
            return None
        counters = []
        for parameter in group["params"]:
            counter = optimizer.state[parameter].get("step") if parameter in optimizer.state else 0
            if not isinstance(counter, torch.Tensor) or counter.device.type != "cpu":
                continue
            if counter.numel() != 1 or counter.dtype not in (torch.float32, torch.float64):
                return None
            counters.append(counter)
        found.append(Group(group, free, source, counters))
    return found


class _Unit:
    """Numbers of one group at one value of its counters.

    Attributes:
        group: Which group.
        counter: The class of counters; None if there is none.
        ahead: How many steps the optimizer has taken since the call began.
    """

    def __init__(self, group: int, counter: int | None, ahead: int) -> None:
        self.group, self.counter, self.ahead = group, counter, ahead

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unit) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def _special(value: float) -> str:
    """Returns the text of a value that becomes part of a program; empty for other values."""
    return str(value) if value in (0.0, 1.0) else ""


class Host:
    """The numbers that a call takes from optimizers, and their possible sources.

    Attributes:
        refusal: Why the call cannot be replayed; empty where nothing is against it.
        reader: Reads the current values of the sources.
        schedulers: The schedulers that the call steps.
    """

    def __init__(self, optimizers: dict[int, tuple[Any, list[Group]]]) -> None:
        self.refusal = ""
        self._groups = [group for _, found in optimizers.values() for group in found]
        self._owners = [one for one, found in optimizers.values() for _ in found]
        self._before = [float(c) for group in self._groups for c in group.counters]
        self._units: list[_Unit] = []
        self._steps: list[float] = []
        self._advances: list[int] = []
        self.reader = self._make_reader([])
        self._inputs = self.reader.entries()
        self.schedulers: list[Any] = []
        self._numbers: list[tuple[float | None, int]] = []
        self._candidates: list[float] = []
        self._hypotheses: list[frozenset[int]] = []
        self._specials: dict[int, str] = {}
        self._witnessed: set[int] = set()
        self._slots: list[tuple[tuple[int, ...], float | None]] = []
        self._fixed: list[tuple[int, float]] = []

    def after(self, events: list[Any]) -> None:
        """Looks at what the call did, which stepped these optimizers and schedulers in order."""
        steps = [one for one in events if isinstance(one, torch.optim.Optimizer)]
        self.schedulers = events[len(steps) :]
        if any(isinstance(one, torch.optim.Optimizer) for one in self.schedulers):
            self.refusal = "an optimizer steps after a scheduler in it"
            return
        if any(not _is_number(group.content.get("lr")) for group in self._groups):
            self.refusal = "a learning rate becomes something else than a number"
            return
        for one in self.schedulers:
            if any(not _is_number(group["lr"]) for group in one.optimizer.param_groups):
                self.refusal = "it steps a scheduler whose learning rate is a tensor"
        if not self.schedulers and self.reader.entries() != self._inputs:
            self.refusal = "it changes a learning rate, or another number of an optimizer's group"
            return
        place, classes = 0, list[Any]()
        for i, (group, owner) in enumerate(zip(self._groups, self._owners, strict=True)):
            count = sum(1 for one in steps if one is owner)
            found: dict[tuple[float, int], list[torch.Tensor]] = {}
            for counter in group.counters:
                before, now = self._before[place], float(counter)
                place += 1
                if now not in (before, before + count):
                    self.refusal = "it writes to a step counter of an optimizer on the CPU"
                    return
                advance = count if now != before else 0
                found.setdefault((before, advance), []).append(counter)
            if not found:
                self._units.append(_Unit(i, None, 0))
            for (before, advance), counters in found.items():
                self._units += [_Unit(i, len(classes), k) for k in range(1, advance + 1)]
                classes.append(counters)
                self._steps.append(before)
                self._advances.append(advance)
        self.reader = self._make_reader(classes)

    def is_trivial(self) -> bool:
        """Returns whether the call takes no numbers from optimizers and steps no scheduler."""
        return not self._groups and not self.schedulers

    def learn(self, numbers: list[tuple[float | None, int]]) -> None:
        """Takes the numbers of the program (None: not a float), with their parameters' places."""
        self._numbers = numbers
        self._candidates = self._evaluate(self._inputs, self._steps)
        self._specials = {i: _special(value) for i, value in enumerate(self._candidates)}
        by_value: dict[bytes, list[int]] = defaultdict(list)
        for i, value in enumerate(self._candidates):
            by_value[struct.pack("d", value)].append(i)
        constant = frozenset((_CONSTANT,))
        self._hypotheses = [
            constant
            if value is None
            else constant | frozenset(by_value.get(struct.pack("d", value), ()))
            for value, _ in numbers
        ]

    def explained(self, before: Host) -> set[int] | None:
        """Returns which numbers differ from those of another call and have a source.

        Returns:
            Their places; None if nothing can be compared.
        """
        if (
            self._units != before._units
            or self._advances != before._advances
            or list(map(id, self.schedulers)) != list(map(id, before.schedulers))
            or len(self._numbers) != len(before._numbers)
            or [group.free for group in self._groups] != [group.free for group in before._groups]
        ):
            return None
        return {
            i
            for i, (now, then) in enumerate(zip(self._numbers, before._numbers, strict=True))
            if now != then and (self._hypotheses[i] & before._hypotheses[i]) - {_CONSTANT}
        }

    def merge(self, before: Host) -> list[list[int]]:
        """Takes over what another call of the same program has shown.

        Returns:
            The parameters' places of each of the :meth:`values`.
        """
        for i, (now, then) in enumerate(zip(self._numbers, before._numbers, strict=True)):
            both = self._hypotheses[i] & before._hypotheses[i]
            self._hypotheses[i] = both if now == then else both - {_CONSTANT}
        # A number that is part of one of the two programs is a parameter of neither.
        self._specials = {
            i: value for i, value in self._specials.items() if before._specials.get(i) == value
        }
        theirs = (*(before._inputs or ()), *before._steps)
        inputs = zip((*(self._inputs or ()), *self._steps), theirs, strict=True)
        self._witnessed = before._witnessed | {
            i for i, (now, then) in enumerate(inputs) if now != then
        }
        self._fixed = [
            (i, value)
            for i, value in enumerate((*(self._inputs or ()), *self._steps))
            if i not in self._witnessed
        ]
        slots: dict[tuple[frozenset[int], float | None], list[int]] = {}
        for (value, place), keys in zip(self._numbers, self._hypotheses, strict=True):
            if keys == {_CONSTANT}:
                continue
            required = value if _CONSTANT in keys or place < 0 else None
            slots.setdefault((keys - {_CONSTANT}, required), []).append(place)
        self._slots = [(tuple(keys), required) for keys, required in slots]
        return [[place for place in places if place >= 0] for places in slots.values()]

    def values(self) -> list[float] | None:
        """Returns the numbers that a call would use now; None if they are not known."""
        inputs, steps = self.reader.entries(), self.reader.counters()
        if inputs is None or steps is None:
            return None
        return self._predict(inputs, steps, (*inputs, *steps))

    def difference(self) -> str:
        """Returns why :meth:`values` has none, in words; empty where it has them."""
        if self.values() is not None:
            return ""
        inputs, steps = self.reader.entries(), self.reader.counters()
        if inputs is None or steps is None:
            return "an optimizer's numbers or step counters are of another kind than before"
        found = (*inputs, *steps)
        for i, value in self._fixed:
            if found[i] != value:
                what = "a number of an optimizer's group" if i < len(inputs) else "a step counter"
                return f"{what} is {found[i]} and was {value} in all calls that were traced"
        return "numbers of an optimizer that were equal are no more, or one became 0 or 1"

    def agrees(self, recorded: Host) -> bool:
        """Returns whether a traced call used the expected numbers."""
        if self.explained(recorded) is None or self._inputs is None:
            return False
        values = recorded._predict(self._inputs, self._steps, (*self._inputs, *self._steps))
        if values is None:
            return False
        expected = dict(zip([slot[0] for slot in recorded._slots], values, strict=True))
        for (now, _), (then, _), keys in zip(
            self._numbers, recorded._numbers, recorded._hypotheses, strict=True
        ):
            if now != (then if keys == {_CONSTANT} else expected[tuple(keys - {_CONSTANT})]):
                return False
        return True

    def _make_reader(self, classes: list[list[torch.Tensor]]) -> Any:
        entries = [(group.content, group.free) for group in self._groups]
        return _XLAC._OptimizerNumbers(entries, classes, self._advances)

    def _predict(
        self, inputs: list[float], steps: list[float], found: tuple[float, ...]
    ) -> list[float] | None:
        for i, value in self._fixed:
            if found[i] != value:
                return None
        try:
            candidates = self._evaluate(inputs, steps)
        except (ZeroDivisionError, OverflowError):
            return None
        for i, special in self._specials.items():
            if _special(candidates[i]) != special:
                return None
        values = []
        for keys, required in self._slots:
            value = candidates[keys[0]] if required is None else required
            for key in keys:
                if candidates[key] != value:
                    return None
            values.append(value)
        return values

    def _evaluate(self, inputs: list[float] | None, steps: list[float]) -> list[float]:
        given = iter(inputs or ())
        contents = [_with(group, given) for group in self._groups]
        found: list[float] = []
        for unit in self._units:
            step = 1.0 if unit.counter is None else steps[unit.counter] + unit.ahead
            found += self._groups[unit.group].source(contents[unit.group], step)
        return found


def _with(group: Group, inputs: Iterator[float]) -> dict[str, Any]:
    """Returns a group's entries, with those that may change as given."""
    content = dict(group.content)
    for name in group.free:
        content[name] = (next(inputs), next(inputs)) if name == "betas" else next(inputs)
    return content
