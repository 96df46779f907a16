"""What a recorded function reads where no attribute leads: it is guarded, or the call is traced."""

import concurrent.futures
import contextlib
import contextvars
import ctypes
import enum
import functools
import logging
import multiprocessing
import operator
import os
import random
import sys
import threading
import time
import types
import uuid
import weakref

import pytest
import torch
from testing.replay import refused, right

settings = types.ModuleType("replay_settings")
sys.modules["replay_settings"] = settings
NAME = "SCALE"
SCALE = 1.0
FILE = None


class Box:
    def __init__(self, value=None):
        self.value = value


class Colour(enum.Enum):
    RED = 1


class Meta(type):
    scale = 1.0

    @property
    def current(cls):
        return cls.scale


class WithMeta(metaclass=Meta):
    pass


def set_global(value):
    global SCALE
    SCALE = value


def set_setting(value):
    settings.SCALE = value


def importing():
    from replay_settings import SCALE

    return SCALE


def set_weak(value):
    KEPT.value = Box(value)
    WEAK["key"] = KEPT.value


def set_future(value):
    FUTURE._result, FUTURE._state = value, "FINISHED"


def set_file(value):
    FILE.touch() if value > 1 else FILE.unlink(missing_ok=True)


def entering():
    with CONTEXT as value:
        return value


def of_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(SCALE))
    thread.start()
    thread.join()
    return found[0]


def of_a_pool():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: SCALE).result()


LOCAL = threading.local()
LOGGER = logging.getLogger("replay.test")
KEPT, WEAK = Box(), weakref.WeakValueDictionary()
WEAK_KEYS = weakref.WeakKeyDictionary()
CONTEXT = contextlib.nullcontext(1.0)
SHARED = multiprocessing.Value("d", 1.0)
NUMBER = ctypes.c_double(1.0)
FUTURE = concurrent.futures.Future()
VARIABLE = contextvars.ContextVar("variable", default=1.0)
GETTER = operator.attrgetter("SCALE")
OWN_RANDOM = random.Random(0)
EVENT = threading.Event()
ON = "XLA_TEST_OF_REPLAY"

GUARDED = {
    "threading.local": (lambda v: setattr(LOCAL, "value", v), lambda: LOCAL.value),
    "logger": (lambda v: LOGGER.setLevel(int(v)), lambda: float(LOGGER.level)),
    "logger_asked": (
        lambda v: logging.getLogger("replay.asked").setLevel(int(v)),
        lambda: float(logging.getLogger("replay.asked").getEffectiveLevel()),
    ),
    "getattr": (set_setting, lambda: getattr(settings, NAME)),
    "import": (set_setting, importing),
    "sys.argv": (lambda v: sys.argv.__setitem__(0, "a" * int(v)), lambda: len(sys.argv[0])),
    "enum": (lambda v: setattr(Colour.RED, "scale", v), lambda: Colour.RED.scale),
    "metaclass": (lambda v: setattr(Meta, "scale", v), lambda: WithMeta.current),
    "contextvar": (lambda v: VARIABLE.set(v), lambda: VARIABLE.get()),
    "global": (set_global, lambda: SCALE),
    "event": (lambda v: EVENT.set() if v > 1 else EVENT.clear(), lambda: 1.0 + EVENT.is_set()),
    "environment": (
        lambda v: os.environ.__setitem__(ON, str(v)),
        lambda: float(os.environ.get(ON, "2")),
    ),
    "nullcontext": (lambda v: setattr(CONTEXT, "enter_result", v), entering),
}

REFUSED = {
    # It can reach all that this module has.
    "globals": (set_global, lambda: globals()[NAME], "test_guarded_state."),
    "weak_values": (set_weak, lambda: WEAK["key"].value, "a weak reference"),
    "weak_keys": (
        lambda v: WEAK_KEYS.__setitem__(KEPT, v),
        lambda: WEAK_KEYS[KEPT],
        "a weak reference",
    ),
    "shared": (lambda v: setattr(SHARED, "value", v), lambda: SHARED.value, "other processes"),
    "ctypes": (lambda v: setattr(NUMBER, "value", v), lambda: NUMBER.value, "no guard sees into"),
    "future": (set_future, lambda: FUTURE.result(), "calls result() of concurrent"),
    "attrgetter": (set_setting, lambda: GETTER(settings), "no guard sees into"),
    "sys.modules": (set_setting, lambda: sys.modules["replay_settings"].SCALE, "sys.modules"),
    "import_module": (
        set_setting,
        lambda: __import__("importlib").import_module("replay_settings").SCALE,
        "calls import_module()",
    ),
    "file": (set_file, lambda: 1.0 + os.path.exists(FILE), "calls stat()"),
    "threads": (
        lambda v: torch.set_num_threads(int(v)),
        lambda: torch.get_num_threads(),
        "calls get_num_threads()",
    ),
    "seed": (
        lambda v: torch.manual_seed(int(v)),
        lambda: float(torch.initial_seed()),
        "the seed of a generator",
    ),
    "own_random": (
        lambda v: OWN_RANDOM.seed(int(v)),
        lambda: OWN_RANDOM.random(),
        "no guard sees into",
    ),
    "thread": (set_global, of_a_thread, "calls start_new_thread()"),
    "pool": (set_global, of_a_pool, "of concurrent"),
    "clock": (lambda v: None, lambda: float(time.localtime().tm_year), "calls localtime()"),
    "seconds": (lambda v: None, lambda: 2 if time.time() > 5 else 3, "calls time() at"),
    "random": (
        lambda v: random.seed(v),
        lambda: random.random(),
        "draws random numbers from random",
    ),
    "sleep": (lambda v: None, lambda: time.sleep(0) or 1.0, "calls sleep()"),
    "uuid": (lambda v: None, lambda: float(uuid.uuid4().version), "calls urandom()"),
}


def program_of(write, read):
    def program(compile, device):
        @compile
        def f(x):
            return x * read()

        found = []
        for i in range(14):
            write(1.0 + (i > 7))
            found.append(f(torch.ones(3, device=device)))
        return found

    return program


@pytest.fixture(autouse=True)
def surroundings(tmp_path):
    global FILE
    FILE = tmp_path / "file"
    threads, arguments = torch.get_num_threads(), list(sys.argv)
    yield
    os.environ.pop(ON, None)
    torch.set_num_threads(threads)
    sys.argv[:] = arguments


@pytest.mark.parametrize("name", GUARDED)
def test_is_guarded(device, name):
    right(program_of(*GUARDED[name]), device)


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(device, name):
    write, read, reason = REFUSED[name]
    refused(program_of(write, read), device, reason)


_LIBRARY = """
import sys

def version():
    return sys.version_info[0]

def parts(network):
    return float(len(list(network.modules()))) + version()

def find():
    return sys.modules["replay_settings"].SCALE
"""


def test_modules_of_a_network_are_not_those_of_sys(device):
    """In a library, whose code is told apart by function."""
    library = types.ModuleType("replay_library")
    library.__file__ = os.path.join(os.sep, "site-packages", "replay_library", "code.py")
    exec(compile(_LIBRARY, library.__file__, "exec"), vars(library))
    network = torch.nn.Sequential(torch.nn.ReLU())
    right(
        program_of(lambda v: setattr(library, "SCALE", v), lambda: library.parts(network)), device
    )
    refused(program_of(set_setting, lambda: library.find()), device, "sys.modules")


def of_values(box):
    found = weakref.WeakValueDictionary(key=box)
    return lambda: len(found)


def has_value(proxy):
    try:
        return proxy.value > 0
    except ReferenceError:
        return False


ASKS_FOR_LIFE = {
    "reference": (weakref.ref, lambda weak: weak() is not None),
    "subclass": (type("Reference", (weakref.ref,), {}), lambda weak: weak() is not None),
    "method": (lambda box: weakref.WeakMethod(box.get), lambda weak: weak() is not None),
    "set": (lambda box: weakref.WeakSet([box]), len),
    "keys": (lambda box: weakref.WeakKeyDictionary({box: 1.0}), len),
    "values": (of_values, lambda weak: weak()),
    "proxy": (weakref.proxy, has_value),
    "finalizer": (lambda box: weakref.finalize(box, len, ()), lambda weak: weak.alive),
}


@pytest.mark.parametrize("name", ASKS_FOR_LIFE)
@pytest.mark.parametrize("of_module", [False, True], ids=["object", "module"])
def test_whether_an_object_is_still_alive(device, name, of_module):
    """The step leads to the object itself, too, until nothing but what is weak refers to it."""
    make, is_alive = ASKS_FOR_LIFE[name]

    class Module(torch.nn.Module):
        value = 2.0

        def get(self):
            return self.value

        forward = get

    class Plain:
        value, get, __call__ = 2.0, Module.get, Module.get

    def program(compile, device):
        boxes = [Module() if of_module else Plain()]
        weak = make(boxes[0])

        @compile
        def f(x):
            return x * (float(is_alive(weak)) + sum(box() for box in boxes))

        found = []
        for i in range(9):
            if i == 5:
                boxes.clear()
            found.append(f(torch.ones(3, device=device)))
        return found

    refused(program, device, "a weak reference")


def test_tensors_that_are_exchanged(device):
    """torch.utils.swap_tensors() counts the owners of both tensors."""

    def program(inside, compile, device):
        weights = [torch.nn.Parameter(torch.full((3,), 1.0 + i, device=device)) for i in range(2)]

        @compile
        def f(x):
            if inside:
                torch.utils.swap_tensors(*weights)
            return (x * weights[0]).detach()

        found = []
        for i in range(9):
            if not inside and i % 3 == 2:
                torch.utils.swap_tensors(*weights)
            found.append(f(torch.ones(3, device=device)))
        return found

    refused(functools.partial(program, True), device, "it changes what it reads")
    right(functools.partial(program, False), device)


def test_handles_of_hooks_are_no_question(device):
    """A handle has a weak reference, by which it only removes its hook."""

    def program(compile, device):
        module = torch.nn.Flatten()
        module.handle = module.register_forward_hook(lambda _module, _inputs, output: output * 2)
        f = compile(module)
        found = []
        for i in range(12):
            if i == 6:
                module.handle.remove()
            found.append(f(torch.ones(3, 1, device=device)))
        return found

    right(program, device)


def test_the_first_call_keeps_no_module_alive(device):
    def program(compile, device):
        modules = [torch.nn.Flatten()]
        weak = weakref.ref(modules[0])

        @compile
        def f(x):
            return [one(x) for one in modules] or x * (weak() is not None)

        found = [f(torch.ones(3, 1, device=device))]
        modules.clear()
        return found + [f(torch.ones(3, device=device)) for _ in range(4)]

    right(program, device)


def test_version_of_a_tensor(device):
    def program(compile, device):
        @compile
        def f(x):
            return x * float(x._version)

        x, found = torch.ones(3, device=device), []
        for i in range(14):
            if i > 7:
                x.add_(0.0)
            found.append(f(x))
        return found

    refused(program, device, "the version of a tensor")
