"""Which implementation of an operation is fastest, for the table of kernels, against eager PyTorch.

    python benchmarks/kernels.py [--shapes NAME …] [--json FILE]
    python benchmarks/kernels.py --table

One process for each implementation (``XLA_KERNELS``), one for the choices of the table and one for
eager PyTorch take turns, shape by shape, so that all see the same machine and never run at once.
Numbers are milliseconds, the least of several calls: what is above it is the machine's other work.
``rows`` are those that torch_xla/csrc/lowering/kernel_table.inc should have: for each kind of
shapes the implementation with the least sum of times. ``%`` is the table's rate as a part of the
best that a product of 1024 x 1024 matrices or any of the convolutions reached in eager in this run.

``--table`` measures on one thread what each kind of work costs, and writes the costs to
torch_xla/csrc/cpu/choices.inc, by which the calls of the CPU decide how many threads they take.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

PARTS = ("forward", "input_gradient", "weight_gradient")
IMPLEMENTATIONS = {
    "library": "kLibrary",
    "few_rows": "kFewRows",
    "stablehlo": "kStableHlo",
    "product": "kProduct",
    "elementwise": "kElementwise",
}
CALLS, SECONDS = 8, 0.25  # at least


Call = Callable[[], torch.Tensor | tuple[torch.Tensor, ...]]


def _random(device: torch.device, *sizes: int) -> torch.Tensor:
    if device.type == "meta":
        return torch.empty(sizes, device=device)
    return torch.randn(sizes, generator=torch.Generator().manual_seed(len(sizes))).to(device)


class Convolution(NamedTuple):
    """A convolution of ``[batch, channels, map, map]`` by square kernels."""

    batch: int
    channels: int
    map: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    transposed: bool = False
    dtype: torch.dtype = torch.float32

    def flops(self) -> float:
        """Multiplications and additions of the forward, which each gradient has too."""
        per_place = self.outputs * self.channels // self.groups * self.kernel**2
        return 2.0 * self.batch * per_place * (self.map if self.transposed else self.output()) ** 2

    def output(self) -> int:
        """The size of the output's map."""
        if self.transposed:
            return (self.map - 1) * self.stride - 2 * self.padding + self.kernel
        return (self.map + 2 * self.padding - self.kernel) // self.stride + 1

    def calls(self, device: torch.device) -> dict[str, Call]:
        """What is timed."""
        pair = (self.channels, self.outputs) if self.transposed else (self.outputs, self.channels)
        x = _random(device, self.batch, self.channels, self.map, self.map).to(self.dtype)
        dy = _random(device, self.batch, self.outputs, *[self.output()] * 2).to(self.dtype)
        w = _random(device, pair[0], pair[1] // self.groups, self.kernel, self.kernel)
        w = (w / 16).to(self.dtype)
        geometry = ([self.stride] * 2, [self.padding] * 2, [1, 1], self.transposed, [0, 0])

        def forward() -> torch.Tensor:
            return torch.ops.aten.convolution(x, w, None, *geometry, self.groups)

        def gradient(which: int) -> Call:
            mask = [which == 0, which == 1, False]
            return lambda: torch.ops.aten.convolution_backward(
                dy, x, w, None, *geometry, self.groups, mask
            )[which]

        return dict(zip(PARTS, (forward, gradient(0), gradient(1)), strict=True))


# Of ``[rows, columns]``; group_norm and batch_norm see 64 channels in each row, of 8 groups.
ROW_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cross_entropy": lambda x: torch.nn.functional.cross_entropy(
        x, torch.arange(len(x), device=x.device) % x.shape[1]
    ),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:], x[0], x[1]),
    "group_norm": lambda x: torch.nn.functional.group_norm(x.view(len(x), 64, -1), 8),
    "batch_norm": lambda x: torch.nn.functional.batch_norm(
        x.view(len(x), 64, -1), None, None, training=True
    ),
    "dot": lambda x: x[0] @ x[1],
    "norm": lambda x: x.norm(dim=-1),
    "norms": lambda x: torch.stack(torch._foreach_norm(list(x))),
    "remainder": lambda x: torch.remainder(x, x.flip(0)),
    "sum": lambda x: x.sum(-1),
    "sum of columns": lambda x: x.sum(0),
    "product": lambda x: x.prod(-1),
    "rsqrt": lambda x: x.rsqrt(),
    "largest": lambda x: x.amax(-1),
    "largest of columns": lambda x: x.amax(0),
    "transposition": lambda x: x.t().contiguous(),
}


WITH_GRADIENTS = {"cross_entropy", "softmax", "layer_norm", "group_norm", "batch_norm"}


class Rows(NamedTuple):
    """A function of each of some rows, and its gradient where that is another function."""

    function: str
    rows: int
    columns: int
    dtype: torch.dtype = torch.float32

    def flops(self) -> float:
        """About three operations an element."""
        return 3.0 * self.rows * self.columns

    def calls(self, device: torch.device) -> dict[str, Call]:
        """What is timed."""
        x = _random(device, self.rows, self.columns).to(self.dtype)
        function = ROW_FUNCTIONS[self.function]
        if self.function not in WITH_GRADIENTS:
            return {PARTS[0]: lambda: function(x)}
        leaf, grad = x.clone().requires_grad_(), x.flip(0)

        def gradient() -> tuple[torch.Tensor, ...]:
            y = function(leaf)
            return torch.autograd.grad(y, [leaf], grad.flatten()[: y.numel()].view_as(y))

        return {PARTS[0]: lambda: function(x), "all gradients": gradient}


class Bags(NamedTuple):
    """Bags of 4 rows of a table, and the table's gradient."""

    bags: int
    rows: int
    width: int

    def flops(self) -> float:
        """Additions of the forward."""
        return 4.0 * self.bags * self.width

    def calls(self, device: torch.device) -> dict[str, Call]:
        """What is timed."""
        table = _random(device, self.rows, self.width).requires_grad_()
        index = torch.arange(4 * self.bags, device=device).view(-1, 4) * 7919 % self.rows
        grad = _random(device, self.bags, self.width)

        def forward() -> torch.Tensor:
            return torch.nn.functional.embedding_bag(index, table, mode="sum")

        def gradient() -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(forward(), [table], grad)

        return {PARTS[0]: lambda: forward().detach(), "all gradients": gradient}


class Linear(NamedTuple):
    """Rows with weights, without gradients; a few of them, as while a model makes the next word."""

    rows: int
    width: int
    outputs: int
    dtype: torch.dtype = torch.float32

    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.rows * self.width * self.outputs

    def calls(self, device: torch.device) -> dict[str, Call]:
        """What is timed."""
        x = _random(device, self.rows, self.width).to(self.dtype)
        weights = _random(device, self.outputs, self.width).to(self.dtype)
        return {PARTS[0]: lambda: torch.nn.functional.linear(x, weights)}


class WeightGradient(NamedTuple):
    """The gradient of weights ``[outputs, width]`` that rows were multiplied with."""

    rows: int
    width: int
    outputs: int

    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.rows * self.width * self.outputs

    def calls(self, device: torch.device) -> dict[str, Call]:
        """What is timed."""
        x = _random(device, self.rows, self.width)
        dy = _random(device, self.rows, self.outputs)
        return {PARTS[0]: lambda: dy.t() @ x}


class Recurrent(NamedTuple):
    """A layer of a recurrent network over ``[times, batch, width]``, and all its gradients."""

    cell: str
    times: int
    batch: int
    width: int
    state: int

    def flops(self) -> float:
        """Multiplications and additions of the products; the gradients have twice as many."""
        gates = {"lstm": 4, "gru": 3}[self.cell] * self.state
        return 2.0 * self.times * self.batch * gates * (self.width + self.state)

    def calls(self, device: torch.device) -> dict[str, Call]:
        """What is timed."""
        kind = torch.nn.LSTM if self.cell == "lstm" else torch.nn.GRU
        layer = kind(self.width, self.state, device=device)
        x = _random(device, self.times, self.batch, self.width).requires_grad_()

        def forward() -> torch.Tensor:
            with torch.no_grad():
                return layer(x)[0]

        def gradient() -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(layer(x)[0].sum(), [x, *layer.parameters()])

        return {PARTS[0]: forward, "all gradients": gradient}


class Attention(NamedTuple):
    """Causal attention of ``[batch, heads, length, width]``, and all its gradients."""

    batch: int
    heads: int
    length: int
    width: int

    def flops(self) -> float:
        """Multiplications and additions of two products; half of the scores are masked."""
        return 2.0 * self.batch * self.heads * self.length**2 * self.width

    def calls(self, device: torch.device) -> dict[str, Call]:
        """What is timed."""
        sizes = (self.batch, self.heads, self.length, self.width)
        q, k, v = (_random(device, *sizes).requires_grad_() for _ in range(3))

        def attend() -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        def forward() -> torch.Tensor:
            with torch.no_grad():
                return attend()

        def gradient() -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(attend().sum(), [q, k, v])

        return {PARTS[0]: forward, "all gradients": gradient}


SHAPES: dict[str, Convolution | Rows | Linear | WeightGradient | Recurrent | Attention] = {
    "stem 7x7/2": Convolution(16, 3, 64, 64, 7, 2, 3),
    "3x3 64@16": Convolution(16, 64, 16, 64, 3, 1, 1),
    "3x3/2 64>128@16": Convolution(16, 64, 16, 128, 3, 2, 1),
    "3x3 256@4": Convolution(16, 256, 4, 256, 3, 1, 1),
    "3x3 512@2": Convolution(16, 512, 2, 512, 3, 1, 1),
    "1x1 64>256@16": Convolution(16, 64, 16, 256, 1),
    "1x1/2 256>512@8": Convolution(16, 256, 8, 512, 1, 2),
    "1x1 512>2048@2": Convolution(4, 512, 2, 2048, 1),
    "depthwise 3x3 96@28": Convolution(8, 96, 28, 96, 3, 1, 1, groups=96),
    "grouped 3x3 128@14": Convolution(8, 128, 14, 128, 3, 1, 1, groups=32),
    "U-Net 3x3 32@64": Convolution(4, 32, 64, 32, 3, 1, 1),
    "U-Net up 2x2 64>32@32": Convolution(4, 64, 32, 32, 2, 2, transposed=True),
    "DCGAN up 4x4 256>128@8": Convolution(16, 256, 8, 128, 4, 2, 1, transposed=True),
    "3x3 64@16, bf16": Convolution(16, 64, 16, 64, 3, 1, 1, dtype=torch.bfloat16),
    "3x3 256@4, bf16": Convolution(16, 256, 4, 256, 3, 1, 1, dtype=torch.bfloat16),
    "1x1 64>256@16, bf16": Convolution(16, 64, 16, 256, 1, dtype=torch.bfloat16),
    "cross entropy 128x10": Rows("cross_entropy", 128, 10),
    "cross entropy 512x256": Rows("cross_entropy", 512, 256),
    "cross entropy 128x1000": Rows("cross_entropy", 128, 1000),
    "log-softmax 1024x30522": Rows("log_softmax", 1024, 30522),
    "log-softmax 64x50257": Rows("log_softmax", 64, 50257),
    "log-softmax 16x32000": Rows("log_softmax", 16, 32000),
    "log-softmax 1024x4096": Rows("log_softmax", 1024, 4096),
    "log-softmax 64x4096": Rows("log_softmax", 64, 4096),
    "log-softmax 2048x1000": Rows("log_softmax", 2048, 1000),
    "log-softmax 128x1000": Rows("log_softmax", 128, 1000),
    "softmax 1024x1024": Rows("softmax", 1024, 1024),
    "softmax 128x128": Rows("softmax", 128, 128),
    "layer norm 64x64": Rows("layer_norm", 64, 64),
    "layer norm 1024x768": Rows("layer_norm", 1024, 768),
    "layer norm 2048x1024, bf16": Rows("layer_norm", 2048, 1024, torch.bfloat16),
    "group norm 8x64x1024": Rows("group_norm", 8, 64 * 1024),
    "group norm 2x64x64": Rows("group_norm", 2, 64 * 64),
    "batch norm 16x64x1024": Rows("batch_norm", 16, 64 * 1024),
    "batch norm 16x64x49": Rows("batch_norm", 16, 64 * 49),
    "batch norm 64x64x4": Rows("batch_norm", 64, 64 * 4),
    "dot 65536": Rows("dot", 2, 65536),
    "dot 1000000": Rows("dot", 2, 1000000),
    "norm 4096x512": Rows("norm", 4096, 512),
    "norm 8192x32": Rows("norm", 8192, 32),
    "norms of 300 arrays of 4096": Rows("norms", 300, 4096),
    "remainder 1000x1000": Rows("remainder", 1000, 1000),
    "sum 1024x4096, bf16": Rows("sum", 1024, 4096, torch.bfloat16),
    "product 1024x4096": Rows("product", 1024, 4096),
    "rsqrt 1000x1000": Rows("rsqrt", 1000, 1000),
    "sum 64x65536": Rows("sum", 64, 65536),
    "sum 4096x512": Rows("sum", 4096, 512),
    "sum 1x65536": Rows("sum", 1, 65536),
    "sum 256x3136": Rows("sum", 256, 3136),
    "sum 128x1500": Rows("sum", 128, 1500),
    "sum 1024x256, columns": Rows("sum of columns", 1024, 256),
    "sum 128x512, columns": Rows("sum of columns", 128, 512),
    "sum 1024x30522, columns": Rows("sum of columns", 1024, 30522),
    "largest 4096x512": Rows("largest", 4096, 512),
    "largest 4096x512, columns": Rows("largest of columns", 4096, 512),
    "transposition 4096x512": Rows("transposition", 4096, 512),
    "bags 256 of 20000x32": Bags(256, 20000, 32),
    "bags 16 of 100x16": Bags(16, 100, 16),
    "attention 8x4x128x64": Attention(8, 4, 128, 64),
    "attention 4x4x256x64": Attention(4, 4, 256, 64),
    "attention 2x8x512x64": Attention(2, 8, 512, 64),
    "attention 1x8x2048x64": Attention(1, 8, 2048, 64),
    "rows 4x256>8192": Linear(4, 256, 8192),
    "rows 1x4096>4096": Linear(1, 4096, 4096),
    "rows 32x1024>1024": Linear(32, 1024, 1024),
    "rows 4x256>8192, bf16": Linear(4, 256, 8192, torch.bfloat16),
    "rows 1x4096>4096, bf16": Linear(1, 4096, 4096, torch.bfloat16),
    "rows 16x4096>1024, bf16": Linear(16, 4096, 1024, torch.bfloat16),
    "rows 256x256>1024, bf16": Linear(256, 256, 1024, torch.bfloat16),
    "rows 1024x1024>256, bf16": Linear(1024, 1024, 256, torch.bfloat16),
    "weights 128x64>256": WeightGradient(128, 64, 256),
    "weights 128x512>256": WeightGradient(128, 512, 256),
    "weights 1024x256>1024": WeightGradient(1024, 256, 1024),
    "weights 1024x1024>256": WeightGradient(1024, 1024, 256),
    "weights 512x256>8192": WeightGradient(512, 256, 8192),
    "LSTM 32x16x64>128": Recurrent("lstm", 32, 16, 64, 128),
    "LSTM 32x64x256>512": Recurrent("lstm", 32, 64, 256, 512),
    "LSTM 100x1x128>256": Recurrent("lstm", 100, 1, 128, 256),
    "GRU 32x16x64>128": Recurrent("gru", 32, 16, 64, 128),
    "GRU 32x64x256>512": Recurrent("gru", 32, 64, 256, 512),
}


# Of each cost in the table: the shape that it is measured by, and how many items its forward has.
COSTS = {
    "kProduct": ("weights 1024x1024>256", 1024 * 1024 * 256),
    "kPlaneProduct": ("depthwise 3x3 96@28", 8 * 96 * 28**2 * 9),
    "kAttention": ("attention 2x8x512x64", 2 * 8 * 512**2 * 64),
    "kFloat": ("sum 64x65536", 64 * 65536),
    "kMoved": ("transposition 4096x512", 4096 * 512),
    "kNormalize": ("layer norm 1024x768", 1024 * 768),
    "kFunction": ("softmax 1024x1024", 1024 * 1024),
}
CHOICES = Path(__file__).resolve().parents[1] / "torch_xla/csrc/cpu/choices.inc"

_square = torch.ones(1024, 1024)


def _product() -> torch.Tensor:
    return _square @ _square


def _work(connection: Connection, backend: str) -> None:
    """Times what it is asked for: (shape, part), answered by milliseconds and the kinds chosen."""
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
    if backend in IMPLEMENTATIONS:
        os.environ["XLA_KERNELS"] = f"*={backend}"
    if backend == "eager":
        device = torch.device("cpu")
    else:
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.debug.metrics as met

        device = xm.xla_device()
    seen: set[tuple[str, str, str]] = set()
    while (request := connection.recv()) is not None:
        name, part = request
        call = _product if name == "sgemm" else SHAPES[name].calls(device)[part]
        times: list[float] = []
        while len(times) < CALLS or (sum(times) < SECONDS and len(times) < 100):
            start = time.perf_counter()
            result = call()
            if backend != "eager":
                torch_xla.sync(wait=True)
            times.append(time.perf_counter() - start)
            del result
        if backend != "eager":
            times = [ns / 1e9 for _, ns in met.metric_data("ExecuteTime")[2][-len(times) :]]
        chosen = set() if backend == "eager" else torch_xla._XLAC._kernel_choices()
        connection.send((1e3 * min(times), sorted(chosen - seen)))
        seen |= chosen


def _write_costs(context: multiprocessing.context.SpawnContext) -> None:
    """Measures the costs in a process with one thread, and puts them into choices.inc."""
    os.environ["NPROC"] = "1"
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, "table"))
    process.start()
    theirs.close()
    text = CHOICES.read_text()
    for name, (shape, items) in COSTS.items():
        ours.send((shape, PARTS[0]))
        picoseconds = round(1e9 * ours.recv()[0] / items)
        text = re.sub(rf"(COST\({name}, )\d+", rf"\g<1>{picoseconds}", text)
        print(f"{name:<16}{picoseconds:>6}")
    ours.send(None)
    process.join()
    CHOICES.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    parser.add_argument("--table", action="store_true", help="measure the costs of choices.inc")
    args = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    if args.table:
        return _write_costs(context)
    connections, processes = {}, []
    for backend in ("eager", "table", *IMPLEMENTATIONS):
        connections[backend], theirs = context.Pipe()
        processes.append(context.Process(target=_work, args=(theirs, backend)))
        processes[-1].start()
        theirs.close()  # So that a process that fails ends recv() with EOFError.

    def ask(backend: str, *request: str) -> tuple[float, list[tuple[str, str, str]]]:
        connections[backend].send(request)
        return connections[backend].recv()

    peak = 2 * 1024**3 / ask("eager", "sgemm", "")[0] / 1e6
    results: dict[str, dict[str, dict[str, float]]] = {}
    sums: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name in args.shapes:
        results[name] = {}
        for part in SHAPES[name].calls(torch.device("meta")):
            row = results[name][part] = {}
            for backend in connections:
                milliseconds, chosen = ask(backend, name, part)
                operations = {(operation, kind) for operation, kind, _ in chosen}
                made = {implementation for *_, implementation in chosen}
                # An implementation that is not to be had falls back to the table's.
                if backend in IMPLEMENTATIONS and chosen and made != {backend}:
                    continue
                row[backend] = milliseconds
                if backend in IMPLEMENTATIONS:
                    for key in operations:
                        sums[key][backend] += milliseconds
            peak = max(peak, SHAPES[name].flops() / row["eager"] / 1e6)
    for connection in connections.values():
        connection.send(None)
    for process in processes:
        process.join()

    print(f"peak {peak:.0f} GFLOP/s")
    columns = ("eager", "table", *IMPLEMENTATIONS)
    print(f"{'shape':<26}{'part':<16}" + "".join(f"{c:>12}" for c in columns) + "  / eager    %")
    for name, parts in results.items():
        for part, row in parts.items():
            times = "".join(f"{row[c]:>12.2f}" if c in row else f"{'-':>12}" for c in columns)
            rate = SHAPES[name].flops() / row["table"] / 1e6
            print(
                f"{name:<26}{part:<16}{times}{row['table'] / row['eager']:>9.2f}"
                f"{100 * rate / peak:>5.0f}"
            )
        total = {c: sum(row[c] for row in parts.values()) for c in ("eager", "table")}
        print(f"{name:<26}{'all':<16}{total['eager']:>12.2f}{total['table']:>12.2f}")
    print("rows:")
    for (operation, kind), times in sorted(sums.items()):
        best = min(times, key=lambda implementation: times[implementation])
        print(f'{{"{operation}", "CPU", "{kind}", Kernel::{IMPLEMENTATIONS[best]}}},')
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"peak_gflops": peak, "ms": results}, file, indent=2)


if __name__ == "__main__":
    main()
