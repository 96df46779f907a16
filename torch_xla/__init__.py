"""The ``xla`` device for PyTorch: lazy tensors, StableHLO, and any PJRT plugin.

Importing this package makes ``torch.device("xla")`` work and adds ``torch.xla``, the
device module that PyTorch itself looks for. No device is started by the import: the
PJRT client is made at the first use of a device.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.machinery
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

__version__ = "2.13.0"

# The oldest and newest (major, minor) of torch that this release supports.
_TORCH_RANGE = ((2, 11), (2, 15))


def _check_torch_version(version: str) -> None:
    """Raises ImportError when ``version`` of torch is outside the supported range."""
    low, high = _TORCH_RANGE
    found = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if not low <= found <= high:
        raise ImportError(
            f"torch_xla {__version__} works with torch {low[0]}.{low[1]} to "
            f"{high[0]}.{high[1]}, but torch {version} is installed: "
            f'pip install "torch=={high[0]}.{high[1]}.*"'
        )


_check_torch_version(torch.__version__)

# Until now this module answered for the device.
if (_autoload := sys.modules.get("torch_xla_autoload")) is not None:
    _autoload.release()


def _why_not_loaded(error: ImportError) -> str:
    """Returns what is wrong with the extension, and what helps."""
    there = [
        name
        for folder in __path__
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if name.startswith("_XLAC.") and name.endswith((".so", ".pyd"))
    ]
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    if not there:
        return "its extension torch_xla._XLAC is not built; run `pip install .` in its sources"
    if not any(f"_XLAC{suffix}" in there for suffix in suffixes):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"its extension {there[0]} was built for another Python than {version}; reinstall "
            "torch_xla for this one"
        )
    if "undefined symbol" in str(error):
        return (
            f"its extension was built for another torch than {torch.__version__}; reinstall "
            f"torch_xla for this one ({error})"
        )
    return f"its extension is refused: {error}"


try:
    from torch_xla import _XLAC as _XLAC

    # A folder with the extension's name, such as the folder of its stubs, is a module, too.
    if getattr(_XLAC, "__file__", None) is None:
        raise ModuleNotFoundError("no extension")
except ImportError as error:
    raise ImportError(
        f"torch_xla {__version__} cannot be loaded: {_why_not_loaded(error)}"
    ) from error

from torch_xla import config as config  # noqa: E402
from torch_xla._internal import variables as _variables  # noqa: E402
from torch_xla._internal.compile import auto_step as _auto_step  # noqa: E402
from torch_xla._internal.compile import higher_order as _higher_order  # noqa: E402
from torch_xla._internal.compile import traced_region as _traced_region  # noqa: E402
from torch_xla._internal.compile.step import sync as sync  # noqa: E402
from torch_xla._internal.device import module as _device_module  # noqa: E402
from torch_xla._internal.device import storage_location as _storage_location  # noqa: E402
from torch_xla._internal.files import remote_cache as _remote_cache  # noqa: E402
from torch_xla._internal.names import missing as _absent_names  # noqa: E402
from torch_xla._internal.patches import on_import as _on_import  # noqa: E402
from torch_xla._internal.patches import pytorch as _torch_patches  # noqa: E402
from torch_xla._internal.plugins import finder as _plugins  # noqa: E402
from torch_xla._internal.replicas import fsdp_operators as _fsdp_operators  # noqa: E402
from torch_xla._internal.replicas import replication as _replication  # noqa: E402
from torch_xla._internal.replicas import spmd_mode as _spmd_mode  # noqa: E402


def _xlac_getattr(name: str) -> Any:
    # Names of torch_xla 2.9's extension, which are Python here.
    if name.startswith("__"):
        raise AttributeError(name)
    from torch_xla import _xlac_names

    return _xlac_names.lookup(name)


setattr(_XLAC, "__getattr__", _xlac_getattr)  # noqa: B010  mypy takes it for a method.
sys.modules.setdefault("_XLAC", _XLAC)  # In upstream the extension is a top-level module.

from torch_xla import _ops_names  # noqa: E402, F401  (defines operators)

_plugins.register_plugins()
_XLAC._init()
_variables.warn_of_misspelt()
if _variables.is_on("XLA_IR_DEBUG"):
    _XLAC._set_ir_debug(True)
if _variables.is_on("XLA_FIND_NAN"):
    from torch_xla._internal.insight import host_calls as _host_calls

    _host_calls.set_find_nan(True)


def _create_group(*args: object) -> torch.distributed.ProcessGroup:
    from torch_xla.distributed import xla_backend  # Slow to import.

    return xla_backend.create(*args)


def _end_profile() -> None:
    # If PyTorch's profiler is still on at exit, its destructor crashes.
    autograd: Any = torch.autograd
    if autograd._profiler_enabled():
        autograd._disable_profiler()


atexit.register(_end_profile)
# Queued programs still run; afterwards no thread of this library uses the interpreter.
atexit.register(_XLAC._shutdown)
_device_module.register()
_storage_location.register()
_torch_patches.apply()
_auto_step.register()
_spmd_mode.register()
_fsdp_operators.register()
_replication.register(_create_group)
_higher_order.register()
_on_import.register()
_remote_cache.register()

_F = TypeVar("_F", bound=Callable[..., Any])


def device(index: int | None = None) -> torch.device:
    """Returns an XLA device of this process.

    Args:
        index: Ordinal of the device, from 0 to ``device_count() - 1``. ``None`` gives the
            default device (``xla:0`` unless changed). Giving an index makes that device
            the default one, as :func:`torch_xla.core.xla_model.xla_device` does.

    Returns:
        The device, for example ``torch.device("xla:0")``.

    Raises:
        RuntimeError: No PJRT plugin could be started, or there is no device ``index``.
    """
    from torch_xla.core import xla_model

    return xla_model.xla_device(index)


def devices() -> list[torch.device]:
    """Returns the XLA devices that this process can use, in order of their ordinals."""
    return [torch.device(name) for name in _XLAC._xla_get_devices()]


def real_devices() -> list[str]:
    """Returns the hardware behind :func:`devices`, for example ``["CPU:0"]``."""
    return _XLAC._xla_real_devices(_XLAC._xla_get_devices())


def device_count() -> int:
    """Returns how many XLA devices this process can use."""
    return len(_XLAC._xla_get_devices())


def manual_seed(seed: int, device: torch.device | str | None = None) -> None:
    """Sets the seed of the random number generator.

    ``torch.manual_seed`` seeds every XLA device as well as the CPU; this seeds XLA alone.

    Args:
        seed: The seed, an integer of 64 bits; negative ones are taken modulo 2**64.
        device: The XLA device to seed; every XLA device when ``None``.
    """
    if device is None:
        _device_module.manual_seed_all(seed)
    else:
        _XLAC._xla_set_rng_seed(int(seed) & _device_module.SEED_MASK, str(torch.device(device)))


def set_custom_compile_options(options: Mapping[str, Any]) -> None:
    """Sets options of XLA's compiler for all programs that are compiled from now on.

    A graph that was compiled with other options is compiled again.

    Args:
        options: Values by the names that the plugin's compiler knows, for example
            ``{"xla_cpu_enable_fast_math": True}``. They take the place of those set before.

    Raises:
        TypeError: A value is no text, number or bool. A name that the compiler does not know is
            an error at the next sync.
    """
    _XLAC._xla_set_compile_options(_traced_region.as_options(options))


def mark_dynamic(tensor: torch.Tensor, dim: int, *, max: int) -> None:
    """Gives a size of an input one bound. Without effect with ``XLA_DYNAMIC_SIZES=0``.

    Programs are compiled for the bound instead of for buckets: one program serves all sizes up to
    it. Mark each batch, after it was copied to the device. See docs/dynamic_sizes.md.

    Args:
        tensor: An input: a tensor on an xla device that is no view and whose content is known.
        dim: The dimension whose size varies.
        max: The largest size.

    Raises:
        ValueError: The size is above ``max``, or the tensor is no input.
    """
    _XLAC._mark_dynamic(tensor, dim, max)


def step() -> contextlib.AbstractContextManager[Any]:
    """Returns a context manager for one step: :func:`sync` before it and after it.

    What was traced earlier stays out of the step's graph, and the step's graph is launched at
    the end of the block. When the block raises, nothing is launched.
    """
    return _traced_region.Region()


def compile(
    f: _F | None = None,
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    custom_compile_options: Mapping[str, Any] | None = None,
    replay: bool = False,
) -> Any:
    """Traces, compiles and launches a function or a block as a unit.

    Use it on a callable (``step = torch_xla.compile(step_fn)``), as a decorator
    (``@torch_xla.compile``, ``@torch_xla.compile(full_graph=True)``) or as a context manager
    (``with torch_xla.compile():``). The code runs as usual between two :func:`sync`; a later call
    that traces the same graph uses the compiled one. In eager mode
    (:mod:`torch_xla.experimental.eager`) it is traced as a whole all the same.

    Args:
        f: The callable. ``None`` gives an object for ``with``, which is a decorator too.
        full_graph: Whether what would cut the graph (reading a tensor, an operator that runs on
            the CPU, a sync) raises there.
        name: The name of its programs in profiles and dumps, and of the counters
            ``CompiledGraph::<name>`` and ``ExecutedGraph::<name>``.
        max_different_graphs: How many different graphs it may trace; with one more it raises and
            says what differs, and nothing runs.
        custom_compile_options: Options of XLA's compiler for its programs, besides those of
            :func:`set_custom_compile_options`.
        replay: Whether calls like earlier ones run no Python of ``f``: what they did to tensors is
            recorded and done again, where everything that ``f`` reads is as it was. See
            docs/replay.md. For callables alone.

    Returns:
        A callable with the signature and results of ``f``, or the context manager.

    Raises:
        TypeError: ``f`` is not callable.
        ValueError: ``max_different_graphs`` is below 1.
    """
    region = _traced_region.Region(full_graph, name, max_different_graphs, custom_compile_options)
    if replay:
        from torch_xla._internal.replay import functions as _replay

        if f is None:
            return lambda f: _replay.replayed(f, region, name)
        if callable(f):
            return _replay.replayed(f, region, name)
    if f is None:
        return region
    if not callable(f):
        raise TypeError(f"compile(): expected `f` to be callable, got {type(f).__name__}")
    return region(f)


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Runs ``fn(ordinal, *args)`` in one process for each device, and waits for them.

    In a process that ``torchrun`` has started the function is called directly, with the ordinal
    among the replicas of this host. See
    :func:`torch_xla.distributed.xla_multiprocessing.spawn`. In SPMD mode one process has all
    devices: call the function itself, or with ``debug_single_process``.

    Args:
        fn: The function.
        args: Its arguments behind the ordinal.
        start_method: ``"spawn"``, ``"fork"`` or ``"forkserver"``.
        debug_single_process: Whether to call it in this process alone, as one replica.
    """
    from torch_xla.distributed import xla_multiprocessing

    if _replication.is_launched() and not _spmd_mode.is_on():
        fn(_replication.topology().local_rank, *args)
        return
    nprocs = 1 if debug_single_process else None
    xla_multiprocessing.spawn(fn, args, nprocs=nprocs, start_method=start_method)


# These are imported when somebody asks for them.
_SUBMODULES = (
    "amp",
    "backends",
    "debug",
    "distributed",
    "experimental",
    "library",
    "stablehlo",
    "test",
    "utils",
    "version",
)


_absent = _absent_names.getter(
    __name__, {"_dynamo": "torch.compile(backend='openxla') and torch_xla.core.dynamo_bridge"}
)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in ("save_as_stablehlo", "save_torch_model_as_stablehlo"):
        return getattr(importlib.import_module(f"{__name__}.stablehlo"), name)
    return _absent(name)


# Reached as attributes (`torch_xla.runtime.world_size()`) by many scripts.
from torch_xla import runtime  # noqa: E402
from torch_xla.core import xla_model as _xla_model  # noqa: E402, F401

__all__ = [
    "compile",
    "device",
    "device_count",
    "devices",
    "launch",
    "mark_dynamic",
    "manual_seed",
    "real_devices",
    "runtime",
    "set_custom_compile_options",
    "step",
    "sync",
]
