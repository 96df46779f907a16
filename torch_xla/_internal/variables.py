"""Every variable of the environment that torch_xla reads: type, default, meaning, aliases.

docs/configuration.md, ``torch_xla.config``, the warning of a misspelt name and the doctor are made
of this table; a test holds the sources to it.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, NamedTuple


class Variable(NamedTuple):
    """One variable.

    Attributes:
        name: Its name.
        type: ``flag`` (``1``, ``true``; ``0``, ``false``, ``off``, ``no`` or empty: off), ``int``,
            ``float``, ``seconds``, ``text``, ``path``, or the texts that it may be, with bars
            between them.
        default: Without it, as text of that type.
        meaning: What it does, in Markdown.
        aliases: Other names for the same.
    """

    name: str
    type: str
    default: str
    meaning: str
    aliases: tuple[str, ...] = ()

    @property
    def attribute(self) -> str:
        """Its name in ``torch_xla.config``."""
        return re.sub(r"^(PT_|TORCH_)?XLA_", "", self.name).lower()

    def is_set(self) -> bool:
        """Whether the variable is set and not empty."""
        return any(os.environ.get(name) for name in (self.name, *self.aliases))

    def value(self) -> Any:
        """The variable's value, else its default.

        Raises:
            ValueError: The value does not fit the variable's type.
        """
        names = (self.name, *self.aliases)
        texts = [os.environ[name] for name in names if name in os.environ]
        text = next(filter(None, texts), "" if texts else self.default)
        if self.type == "flag":
            return text.lower() not in ("", "0", "false", "off", "no")
        if self.type == "path":
            caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
            return os.path.expanduser(text.replace("$XDG_CACHE_HOME", caches))
        if self.type == "text":
            return text
        text = text or self.default
        if "|" in self.type:
            if text not in self.type.split("|"):
                raise ValueError(f"{self.name} must be one of {self.type}, got {text!r}")
            return text
        try:
            return int(text) if self.type == "int" else float(text)
        except ValueError:
            raise ValueError(f"{self.name} must be a number, got {text!r}") from None


_TABLE = """\
# Devices
PJRT_DEVICE: text
    The platform: `CPU`, `CUDA`, `ROCM`, `TPU` or a registered name. By default the first
    accelerator's plugin that has a device, else the CPU.
PJRT_<NAME>_LIBRARY_PATH (PJRT_LIBRARY_PATH): path
    The plugin of that platform, a shared library. `PJRT_LIBRARY_PATH` names the plugin of the
    platform in `PJRT_DEVICE`.
CPU_NUM_DEVICES: int = 1
    Devices of the CPU platform, 1 to 128.
PJRT_NPROC: text
    Threads of the CPU platform. By default one a core, or 16 a device if there are several.
PJRT_ALLOCATOR_PREALLOCATE: flag = 1
    Take a GPU's memory at the start. Off: take it as it is needed, so that several processes
    and `torch.cuda` can share it.
PJRT_ALLOCATOR_FRACTION: float = 0.75
    The part of a GPU's memory to take; the most to take if it is not taken at the start.
PJRT_ALLOCATOR_CUDA_ASYNC: flag = 0
    Take a GPU's memory from CUDA's own pool (`cudaMallocAsync`).
XLA_TOPOLOGY: text
    Compile for devices that are not there: `v5e:2x4`, `h100:8`; [platforms.md](platforms.md).
XLA_USE_SPMD: flag = 0
    Start in SPMD mode, as with `torch_xla.runtime.use_spmd()`.
XLA_SHARDY: flag = 1
    Partition by Shardy, by default where the plugin can; `0`: by GSPMD. [spmd.md](spmd.md).

# Replicas
XLA_COLLECTIVE_TIMEOUT: seconds = 300
    How long replicas wait for each other.
XLA_REPLICA_ADDRESS: text
    The address of this host for replicas on other hosts. By default the address of the route to
    `MASTER_ADDR`.
TORCH_XLA_STORE: text
    The address of the store of `xmp.spawn`, which sets it for its processes.
ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB: int = 0
    Megabytes of gradients in one all-reduce of `xm.optimizer_step`; 0: all in one.

# Programs
XLA_AUTO_STEP: flag = 1
    Cut a loop without `mark_step` where its steps end:
    [architecture.md](architecture.md#steps-without-mark_step).
XLA_DYNAMIC_SIZES: 0|1|poison = 1
    One program for many sizes; `0`: each size has a program of its own:
    [dynamic_sizes.md](dynamic_sizes.md).
XLA_DYNAMIC_BUCKETS: few|pow2|all = few
    The buckets of `XLA_DYNAMIC_SIZES`: [dynamic_sizes.md](dynamic_sizes.md).
XLA_REPLAY_CHECK: int = 50
    After so many replayed calls one call is traced in full and compared with the recording; 0:
    never. By default twice as many calls after each that agreed, up to 800:
    [replay.md](replay.md).
XLA_NO_SPECIAL_SCALARS: flag = 0
    Make 0 and 1 parameters of programs, as other numbers are.
XLA_USE_BF16: flag = 0
    Hold `float` and `double` as bf16.
XLA_USE_F16: flag = 0
    Refused: there is no float16 behind `float`.
XLA_DOWNCAST_BF16: flag = 0
    Hold `float` as bf16 and `double` as f32.
XLA_CPU_KERNELS: flag = 1
    Programs on the CPU call PyTorch's kernels for linear algebra, and library kernels where
    they are faster (convolution, long log-softmax).
XLA_KERNELS: text
    For measurements: rows `operation=implementation,…` before the table of kernels:
    [op_lowering.md](op_lowering.md).
XLA_COMPILATION_CACHE_SIZE: int = 2048
    How many programs are kept in memory. Fewer if XLA:CPU's machine code uses half of the
    memory mappings that Linux allows a process (`vm.max_map_count`). Counter `EvictedCompile`.
XLA_PERSISTENT_CACHE_PATH: path = $XDG_CACHE_HOME/torch_xla/programs
    The folder of compiled programs, which a later process need not compile again. Empty: no
    folder. `gs://…`, `s3://…` and other places that fsspec knows are mirrored in a local
    folder. `python -m torch_xla.cache` lists, verifies, clears and warms it. Counters
    `PersistentCacheHit`, `Miss`, `Write`, `Evict`, `CacheRejected`.
XLA_PERSISTENT_CACHE_READ_ONLY: flag = 0
    Write nothing to that folder.
XLA_PERSISTENT_CACHE_MAX_BYTES: int = 10737418240
    The most bytes in that folder. Programs that were not used for the longest time go.

# Insight
PT_XLA_DEBUG: flag = 0
    Print why each program was compiled, what ran it, and which operations ran on the CPU. Also
    check indices: [debugging.md](debugging.md).
PT_XLA_DEBUG_LEVEL: int = 0
    1: print compilations alone. 2, as `PT_XLA_DEBUG=1`: print executions, too.
PT_XLA_DEBUG_FILE: path
    Print to this file, not to the standard error.
XLA_CHECK_INDICES: flag = 0
    Raise IndexError for indices out of range that the device computes, and RuntimeError for
    probabilities and the like that are out of range, at the next read:
    [differences.md](differences.md#errors). If it is not set, `PT_XLA_DEBUG` decides.
    `torch_xla.config.check_indices` can be assigned to.
XLA_FIND_NAN: flag = 0
    Write to standard error which operation made a NaN first, with its line:
    [debugging.md](debugging.md#where-does-the-nan-come-from).
XLA_IR_DEBUG (XLA_HLO_DEBUG): flag = 0
    Keep the whole stack of calls of each operation, and name lines in programs. The innermost
    line is always kept.
XLA_ON_RECOMPILE: ignore|error = ignore
    `error`: raise if nearly the same graph is compiled again, with the reason.
XLA_COMPILE_PROGRESS: seconds = 5
    A compilation that takes longer shows a line on the terminal, which is erased at its end; 0:
    no line. If the standard error is no terminal, one line comes after twice as long.
XLA_RECOMPILE_WARNING: flag = 1
    Print a line of warning if nearly the same graph is compiled again and again.
XLA_SAVE_TENSORS_FILE: path
    Append each graph that is cut to this file; with several devices `.<rank>` is behind the
    name.
XLA_SAVE_TENSORS_FMT: text|hlo|dot = text
    The form of these graphs: a list, StableHLO (`hlo`), or Graphviz (`dot`).
XLA_SAVE_HLO_FILE: path
    Append a program that cannot be compiled to this file, as StableHLO.
XLA_METRICS_FILE: path
    Append the metrics' report at each sync.
XLA_EMIT_STEPLOG: flag = 0
    Print a line to standard error at each sync.
XLA_SYNC_WAIT: flag = 0
    `torch_xla.sync` waits for the device.
XLA_USE_EAGER_DEBUG_MODE: flag = 0
    In eager mode wait for each operator, so that an error has the operator's line.
"""


def _groups(table: str) -> dict[str, tuple[Variable, ...]]:
    """Reads a table whose rows are ``NAME (aliases): type = default`` and an indented meaning."""
    row = re.compile(r"(\S+)(?: \((.+)\))?: (\S+)(?: = (.+))?\n((?:    .+\n)+)")
    groups = {}
    for group in re.split(r"^# ", table, flags=re.M)[1:]:
        title, rows = group.split("\n", 1)
        groups[title] = tuple(
            Variable(
                name,
                kind,
                default,
                " ".join(meaning.split()),
                tuple(filter(None, aliases.split(", "))),
            )
            for name, aliases, kind, default, meaning in row.findall(rows)
        )
    return groups


GROUPS = _groups(_TABLE)

# Variables of other software that this library reads, too.
FOREIGN: dict[str, str] = {
    "XLA_FLAGS": "XLA's own flags, read by the plugin. On the CPU a child process tries them "
    "first, because XLA ends a process over a flag that it does not know.",
    "LIBTPU_INIT_ARGS": "Flags of the TPU's plugin. These and `XLA_FLAGS` are part of a program's "
    "key on disk.",
    "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT": "Set by "
    "`torchrun`: which replica this process is.",
    "CUDA_VISIBLE_DEVICES": "The GPUs that `xmp.spawn` starts a process for.",
    "TPU_ACCELERATOR_TYPE, TPU_WORKER_HOSTNAMES, TPU_WORKER_ID, TPU_PROCESS_BOUNDS, "
    "TPU_VISIBLE_CHIPS, TPU_SKIP_MDS_QUERY, ALLOW_MULTIPLE_LIBTPU_LOAD": "Which part of which "
    "slice this host is. If they are not set, the cloud's metadata server says so. `XLA_TOPOLOGY` "
    "sets some of them.",
    "MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES": "If none of them is "
    "set, freed memory of a CPU device is kept for the next step: up to 512 MiB an arena, and "
    "blocks of 1 MiB and more until a block is needed that none of them fits, or until "
    "`torch.xla.empty_cache()`.",
    "HOME, XDG_CACHE_HOME": "Where the folder of compiled programs is by default.",
}

# Variables of torch_xla 2.9 that have no effect. Scripts may still set them.
NOT_READ: dict[str, str] = {
    "XLA_DUMP_HLO_GRAPH, XLA_DUMP_POST_OPTIMIZATIONS": "`XLA_FLAGS=--xla_dump_to=<folder>`, or "
    "`torch_xla.debug.graph.save_optimized(folder)`",
    "XLA_USE_32BIT_LONG": "int64 stays int64",
    "XLA_RNG_BIT_GENERATOR": "there is one generator",
    "XLA_DYNAMO_DEBUG": "`TORCH_LOGS=dynamo`",
    "XLA_STABLEHLO_COMPILE, XLA_DISABLE_FUNCTIONALIZATION": "StableHLO always, functionalization "
    "never",
    "XLA_AUTO_SPMD, CONVERT_SHLO_TO_SHARDY": "they need passes that plugins lack",
}

ALL: dict[str, Variable] = {
    variable.name: variable for group in GROUPS.values() for variable in group
}
_OWN = re.compile(r"(PT_|TORCH_)?XLA_|PJRT_")


def is_on(name: str) -> bool:
    """Returns whether a flag is set to something that does not mean off."""
    return bool(ALL[name].value())


def known_names() -> set[str]:
    """Returns the names of all variables of this module, aliases among them."""
    names = set(ALL)
    for variable in ALL.values():
        names.update(variable.aliases)
    for several in (*FOREIGN, *NOT_READ):
        names.update(several.split(", "))
    return names


def misspelt() -> dict[str, str]:
    """Returns unknown variables that are set, each with the known one that it resembles."""
    known = known_names()
    strange = [
        name
        for name in sorted(os.environ)
        if _OWN.match(name)
        and name not in known
        and not re.fullmatch(r"PJRT_\w+_LIBRARY_PATH", name)
    ]
    if not strange:
        return {}
    import difflib

    found = {}
    for name in strange:
        # The plugin or another package may read a variable that resembles none of ours.
        if near := difflib.get_close_matches(name, known, 1, cutoff=0.85):
            found[name] = near[0]
    return found


def warn_of_misspelt() -> None:
    """Warns at import, in a host's first process, of all misspelt variables in one line."""
    if found := misspelt():
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return
        parts = (f"{name} is not read (is {near} meant?)" for name, near in found.items())
        print("torch_xla: of the environment " + ", ".join(parts), file=sys.stderr)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |\n"


def markdown() -> str:
    """Returns docs/configuration.md."""
    text = (
        "<!-- Made by: python -c 'from torch_xla import config; print(config.markdown(), "
        'end="")\' -->\n'
        "# Configuration\n\n"
        "The variables of the environment that torch_xla reads. Set them before the import: "
        "some are read then, some at their first use, some each time.\n\n"
        "- `torch_xla.config` has each as an attribute with a type "
        "(`torch_xla.config.compilation_cache_size`). A variable that can be assigned to while the "
        "process runs says so.\n"
        "- `python -m torch_xla.doctor` shows the variables that are set.\n"
        "- A flag is off with `0`, `false`, `off`, `no` or nothing, in any case. A path may begin "
        "with `~`.\n"
        "- A name that is nearly one of these gets a line of warning at import.\n"
    )
    for title, variables in GROUPS.items():
        text += f"\n## {title}\n\n" + _row(("variable", "type", "default", "meaning"))
        text += "|---|---|---|---|\n"
        for variable in variables:
            names = f"`{variable.name}`"
            if variable.aliases:
                names += "; also " + ", ".join(f"`{alias}`" for alias in variable.aliases)
            kind = ", ".join(f"`{one}`" for one in variable.type.split("|"))
            text += _row(
                (
                    names,
                    kind if "|" in variable.type else variable.type,
                    f"`{variable.default}`" if variable.default else "",
                    variable.meaning,
                )
            )
    for title, rows in (
        ("Of other programs", FOREIGN),
        ("Of torch_xla 2.9, not read here", NOT_READ),
    ):
        text += f"\n## {title}\n\n" + _row(
            ("variable", "meaning" if rows is FOREIGN else "instead")
        )
        text += "|---|---|\n"
        for names, meaning in rows.items():
            text += _row((", ".join(f"`{name}`" for name in names.split(", ")), meaning))
    return text
