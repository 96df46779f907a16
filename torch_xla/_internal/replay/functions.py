"""``torch_xla.compile(f, replay=True)``: calls that run no Python of ``f``.

A call is traced in full while its Python is watched (calls.py) and what it does to tensors
is recorded (csrc/replay/plan.h). Once two calls whose guards hold have done the same, calls like
them are replayed: the guards are checked, and the recorded program runs on what the tensors hold
now. What cannot be guarded is traced each time, and :func:`statuses` says why.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree

from torch_xla import _XLAC
from torch_xla._internal import variables
from torch_xla._internal.compile import step, step_closures
from torch_xla._internal.compile.traced_region import Region
from torch_xla._internal.replay.calls import Calls
from torch_xla._internal.replay.guards import LEAVES, VALUES, Walk
from torch_xla._internal.replay.host_numbers import Host

# How many recorded calls may fail to become a replay before recording stops, and how many with new
# sizes or values. Each so many replayed calls allow one more.
_MAX_ATTEMPTS = 12
_MAX_NEW = 64
_REPLAYED_FOR_ONE = 8
# How many recordings to keep per function and thread: one per set of guards.
_MAX_RECORDINGS = 64
_MAX_CANDIDATES = 64
_LONGEST_INTERVAL = 800
_MAX_GRAPH = 20_000


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of a function that was compiled with ``replay=True``, on one thread.

    Attributes:
        name: The function's name.
        state: ``"replayed"``, ``"recording"`` (it is traced, and watched), or ``"refused"``.
        reason: Why the last call that was traced was not replayed.
        calls: How many calls there were.
        replayed: How many of them were replayed.
    """

    name: str
    state: str
    reason: str
    calls: int
    replayed: int

    def __str__(self) -> str:
        text = f"{self.name}: {self.state}, {self.replayed} of {self.calls} calls replayed"
        return f"{text}; the last one that was traced: {self.reason}" if self.reason else text


class _Results:
    """A description of a call's results, from which new ones can be made."""

    def __init__(
        self, given: list[torch.Tensor], persistent: dict[int, Any], containers: list[Any]
    ) -> None:
        self.tensors: list[torch.Tensor] = []
        self.refusal = ""
        self._places: dict[int, int] = {}
        self._given = {id(tensor): i for i, tensor in reversed(list(enumerate(given)))}
        self._persistent = persistent
        self._containers = {id(one) for one in containers}

    def describe(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, torch.Tensor):
            return self._describe_tensor(value)
        if id(value) in self._persistent:
            return ("value", value)
        if id(value) in self._containers:
            self.refusal = "it returns a container that is an argument, or one of them twice"
            return ("value", None)
        if type(value) in (tuple, list, dict) and value:
            self._containers.add(id(value))
        if type(value) in (tuple, list):
            kind = type(value).__name__
            return (kind, [self.describe(item) for item in value])
        if type(value) is dict:
            return ("dict", [self.describe(item) for item in value.values()], list(value))
        if type(value) in VALUES or isinstance(value, LEAVES):
            return ("value", value)
        leaves, spec = _pytree.tree_flatten(value)
        if spec.is_leaf():
            self.refusal = f"it returns an object of type {type(value).__name__}"
            return ("value", None)
        make = _Tree(spec)
        return ("tree", [self.describe(leaf) for leaf in leaves], make)

    def _describe_tensor(self, tensor: torch.Tensor) -> tuple[str, int]:
        if id(tensor) in self._given:
            return ("given", self._given[id(tensor)])
        if type(tensor) is not torch.Tensor or vars(tensor):
            self.refusal = "it returns a tensor subclass, or one with attributes of its own"
        elif tensor.grad_fn is not None and not _spent(tensor.grad_fn):
            self.refusal = (
                "it returns a tensor that a backward pass can still go through: return "
                "loss.detach(), or run the backward pass in the function"
            )
        place = self._places.setdefault(id(tensor), len(self.tensors))
        if place == len(self.tensors):
            self.tensors.append(tensor)
        return ("new", place)


class _Tree:
    """Makes a container of its leaves."""

    def __init__(self, spec: Any) -> None:
        self._spec = spec

    def __call__(self, leaves: list[Any]) -> Any:
        return _pytree.tree_unflatten(leaves, self._spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tree) and self._spec == other._spec

    __hash__ = None  # type: ignore[assignment]


def _spent(node: Any) -> bool:
    """Returns whether a backward pass has freed what a graph saved."""
    seen = {node}
    waiting = [node]
    while waiting and len(seen) < _MAX_GRAPH:
        node = waiting.pop()
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    getattr(node, name)
                except RuntimeError:
                    return True
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            try:
                node.saved_tensors  # noqa: B018
            except RuntimeError:
                return True
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


class _Attempt:
    """A call that is traced and recorded."""

    def __init__(
        self,
        owner: _OfThread,
        outside: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.refusal = ""
        self.asks_for_life = False
        self.is_guarded = False  # All objects that it can reach are guarded.
        self.recording: Any = None
        self.calls = Calls()
        self._owner = owner
        self._outside = outside  # The settings outside of the region, which has its own.
        self._surroundings = _XLAC._ReplaySurroundings()
        self._pattern = _XLAC._ArgumentPattern(args, kwargs)
        self._walk = Walk(owner.code)
        self._recorder: Any = None
        self.refusal = self._surroundings.refusal() or self._pattern.refusal
        if self.refusal:
            return
        for path, value in self._pattern.others:
            self._walk.add(value, path)
        self._walk.add(owner.function, owner.name)
        objects = (one() for one in owner.objects.values())
        for value in (*objects, *_get_current_function_mode_stack()):
            self._walk.add(value, type(value).__name__)
        self._walk.add_code()
        self.refusal = self._walk.refusal
        if self.refusal:
            self.asks_for_life = self._walk.asks_for_life
            del self._walk  # It would keep all that it met alive while the call runs.
            return
        self.is_guarded = True
        given = [*self._walk.tensors, *self._pattern.take_tensors()]
        self._containers = self._pattern.take_containers()
        self._given = given
        self._host = Host(self._walk.optimizers)
        self._recorder = _XLAC._ReplayRecorder(given)
        self.refusal = self._recorder.refusal()

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closures_before = len(step_closures._pending)
        try:
            with self.calls:
                result = self._owner.function(*args, **kwargs)
        except BaseException:
            self._close()
            raise
        self.refusal = self.refusal or self.calls.refusal
        if not self.refusal and len(step_closures._pending) != closures_before:
            self.refusal = "it adds a step closure"
        if not self.refusal:
            self.refusal = self._changes(args, kwargs)
        if not self.refusal:
            self._results = _Results(self._given, self._walk.seen, self._containers)
            self._description = self._results.describe(result)
            self.refusal = self._results.refusal
        if self._recorder is not None:
            tensors = [] if self.refusal else self._results.tensors
            if self._recorder.end(tensors) and not self.refusal:
                gc.collect(0)  # Unreachable cycles that it made are not results.
                self._recorder.end(tensors)
        return result

    def _changes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if changed := self._surroundings.difference():
            return f"it changes {changed}"
        if changed := self._walk.guards.difference():
            return f"it changes what it reads: {changed}"
        if changed := self._pattern.difference(args, kwargs):
            return f"it changes its arguments: {changed}"
        for generator, before, path in self._walk.generators:
            if not torch.equal(before, generator.get_state()):
                return f"it draws from the generator {path}"
        self._host.after(self.calls.events)
        return self._host.refusal

    def finish(self) -> None:
        """Ends the recording when the call's graph was cut."""
        if self._recorder is None:
            return
        plan, refusal = self._recorder.finish()
        self._close()
        self.refusal = self.refusal or refusal
        if self.refusal:
            return
        self.recording = _XLAC._ReplayRecording(
            self._outside,
            self._walk.guards,
            self._pattern,
            self._walk.tensors,
            plan,
            len(self._results.tensors),
            self._description,
        )
        if not self._host.is_trivial():
            self._host.learn(plan.numbers())
            _set_host(self.recording, self._host, [])

    def _close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None


class _OfThread:
    """The state of a function on one thread."""

    def __init__(self, function: Callable[..., Any], name: str, region: Region) -> None:
        self.function = function
        self.name = name
        self.code: dict[tuple[types.CodeType, int], dict[str, Any]] = {}
        self.objects: dict[int, weakref.ref[Any]] = {}
        self.calls = self.replayed = 0
        self.refused = False
        self.reason = ""
        self._region = region
        self._recordings: list[Any] = []
        self._candidates: list[Any] = []
        self._attempts = 0
        self._new = 0
        self._learnt = False
        check = variables.ALL["XLA_REPLAY_CHECK"]
        self._first_interval = self._interval = check.value()
        # A user's own choice of the interval does not change.
        self._longest_interval = self._interval if check.is_set() else _LONGEST_INTERVAL
        self._to_check = self._interval

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls += 1
        if self._recordings:
            if self._interval and self._to_check <= 0:
                for recording in self._recordings:
                    if recording.holds(args, kwargs) and (
                        recording.host is None or recording.host.values() is not None
                    ):
                        return self._check(recording, args, kwargs)
            replayed = _XLAC._replay(self._recordings, args, kwargs)
            if replayed is not None:
                self._to_check -= 1
                self.replayed += 1
                step_closures.run_step_closures()
                return replayed[0]
        if self.refused or not _XLAC._may_record():
            return self._run(args, kwargs)
        return self._record(args, kwargs)

    def status(self) -> Status:
        state = "refused" if self.refused else "replayed" if self._recordings else "recording"
        return Status(self.name, state, self.reason, self.calls, self.replayed)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._region.again():
            return self.function(*args, **kwargs)

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Attempt, Any]:
        outside = _XLAC._ReplaySurroundings()
        with self._region.again():
            attempt = _Attempt(self, outside, args, kwargs)
            if attempt.asks_for_life:
                self._refuse()  # Its recordings keep objects alive.
            result = attempt.run(args, kwargs)
        attempt.finish()
        return attempt, result

    def _learn(self, calls: Calls) -> bool:
        """Notes the code that ran; returns whether all of it was known."""
        known = (
            calls.code.keys() <= self.code.keys() and calls.objects.keys() <= self.objects.keys()
        )
        self.code |= calls.code
        self.objects |= calls.objects
        return known

    def _relearn(self, calls: Calls) -> None:
        """Forgets the code of all calls but one, since an earlier one may have imported modules."""
        self.code, self.objects = calls.code, calls.objects

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._learnt:  # Finds out which code it runs.
            self._learnt = True
            self.reason = "it was the first call"
            with self._region.again(), Calls() as calls:
                result = self.function(*args, **kwargs)
            self._learn(calls)
            return result
        if self._recordings:
            self.reason = _difference(self._recordings[-1], args, kwargs) or "memory is shared"
        new = not any(one.takes(args, kwargs) for one in (*self._recordings, *self._candidates))
        if new and self._new >= _MAX_NEW + self.replayed // _REPLAYED_FOR_ONE:
            self.reason = "its arguments are of new sizes or values too often"
            if not self._recordings:
                self._refuse()
            return self._run(args, kwargs)
        step.cut()  # Guards of tensors read their data.
        # A recording whose guards hold, but which was not replayed for its numbers, may learn.
        alike = [one for one in (*self._recordings, *self._candidates) if one.holds(args, kwargs)]
        if self._candidates and not alike:
            self.reason = self._candidates[-1].difference(args, kwargs)
        attempt, result = self._trace(args, kwargs)
        if attempt.refusal:
            self._relearn(attempt.calls)
        elif not self._learn(attempt.calls):
            attempt.refusal = "it ran code that it had not run before"
        if new and not attempt.refusal:
            self._new += 1
        else:
            self._attempts += 1
        before = None
        if attempt.refusal:
            self.reason = attempt.refusal
        else:
            for one in reversed(alike):
                difference = _compare(attempt.recording, one)
                if not difference:
                    before = one
                    break
                self.reason = difference
            # Drop candidates that did something else in an equal call.
            self._candidates = [one for one in self._candidates if one not in alike]
            if before is None:
                self._candidates.append(attempt.recording)
                del self._candidates[:-_MAX_CANDIDATES]
        if before is not None:
            if before in self._recordings:
                self._recordings.remove(before)
            self._recordings.append(attempt.recording)
            del self._recordings[:-_MAX_RECORDINGS]
            self._interval = self._to_check = self._first_interval
        # Each new recording except the first needs one attempt to confirm it.
        allowed = _MAX_ATTEMPTS + max(self._new - 1, 0) + self.replayed // _REPLAYED_FOR_ONE
        if self._attempts >= allowed:
            self.reason += "; too few calls are replayed for what recording costs"
            self._refuse()
        return result

    def _refuse(self) -> None:
        self.refused = True
        self._recordings.clear()
        self._candidates.clear()

    def _check(self, recording: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._interval = min(2 * self._interval, self._longest_interval)
        self._to_check = self._interval
        attempt, result = self._trace(args, kwargs)
        # Calls of a finalizer, or objects of another package, are not differences.
        if attempt.calls.refusal or not attempt.is_guarded:
            self._recordings = [one for one in self._recordings if one is not recording]
            self.reason = attempt.refusal
            return result
        difference = attempt.refusal or _compare(attempt.recording, recording, check=True)
        if difference:
            self._recordings.remove(recording)
            raise RuntimeError(
                f"torch_xla.compile({self.name}, replay=True): a call that would have been "
                f"replayed was traced to check it, and it does something else than was recorded: "
                f"{difference}. Calls since the last check may have computed something else, too"
            )
        return result


def _set_host(recording: Any, host: Host, places: list[list[int]]) -> None:
    recording.set_host(host, host.reader, places, host.schedulers)


def _difference(recording: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Returns why a recording is not replayed with arguments; empty if that is unknown."""
    text = str(recording.difference(args, kwargs))
    return text or (recording.host.difference() if recording.host is not None else "")


def _compare(now: Any, before: Any, check: bool = False) -> str:
    """Returns how a call differed from another one; empty if both did the same.

    Args:
        now: The recording of the call. Unless ``check``, it learns what the other one knew.
        before: The other recording.
        check: The other one should have known all numbers of the call.
    """
    if (now.host is None) != (before.host is None):
        return "it steps other optimizers or schedulers"
    if now.host is None:
        return str(now.compare(before, donation=not check))
    explained = now.host.explained(before.host)
    if explained is None:
        return "it steps other optimizers or schedulers, or its numbers are others"
    if difference := now.compare(before, donation=not check, explained=explained):
        return str(difference)
    if not check:
        _set_host(now, now.host, now.host.merge(before.host))
    elif not now.host.agrees(before.host):
        return "a number that comes from an optimizer's state is not as it was worked out"
    return ""


_functions: list[weakref.ref[Callable[..., Any]]] = []


def statuses() -> tuple[Status, ...]:
    """Returns the states of all living functions on the threads that called them."""
    found = []
    for reference in _functions:
        function = reference()
        if function is not None:
            found += [one.status() for one in function._xla_replay]  # type: ignore[attr-defined]
    return tuple(found)


def replayed(function: Callable[..., Any], region: Region, name: str | None) -> Callable[..., Any]:
    """Wraps ``function`` so that calls like earlier ones run no Python of it.

    Args:
        function: Any callable.
        region: The region in which the function is traced.
        name: The function's name in messages.
    """
    local = threading.local()
    known: list[_OfThread] = []
    title = str(name or getattr(function, "__qualname__", type(function).__name__))

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # The function becomes part of a larger program.
            return function(*args, **kwargs)
        state = getattr(local, "state", None)
        if state is None:
            state = local.state = _OfThread(function, title, region)
            known.append(state)
        return state.call(args, kwargs)

    call._xla_replay = known  # type: ignore[attr-defined]
    _functions[:] = [one for one in _functions if one() is not None]
    _functions.append(weakref.ref(call))
    return call
