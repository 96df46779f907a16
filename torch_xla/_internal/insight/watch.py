"""Statistics of a model's tensors by module, behind :class:`torch_xla.debug.watch`."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import os
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_xla._internal.files.atomic_file import write_file
from torch_xla._internal.insight import host_calls

_KINDS = ("activations", "gradients", "weights")


class Statistics(NamedTuple):
    """What a tensor of a step was like.

    A module that runs often in a step, or on each device of ``shard_map``, has ``name[1]`` on.
    """

    step: int
    kind: str
    name: str
    mean: float
    deviation: float
    largest: float
    zeros: float
    nan: float


def _measure(tensor: torch.Tensor) -> torch.Tensor:
    """Mean, deviation and largest absolute value without NaN, the share of zeros, that of NaN."""
    x = tensor.detach().float()
    nan = x.isnan()
    count = nan.logical_not().sum().clamp(min=1)
    x = torch.where(nan, 0.0, x)
    mean = x.sum() / count
    deviation = (torch.where(nan, 0.0, x - mean).square().sum() / count).sqrt()
    zeros = (tensor.detach() == 0).float().mean()
    return torch.stack([mean, deviation, x.abs().amax(), zeros, nan.float().mean()])


@dataclasses.dataclass
class _Sink:
    """Takes what programs report. It lives as long as the process, so it holds no model."""

    writer: Any
    records: list[Statistics] = dataclasses.field(default_factory=list)
    rows: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    step: int = 0
    seen: dict[int, int] = dataclasses.field(default_factory=dict)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, values: torch.Tensor, number: torch.Tensor) -> None:
        row = int(number)
        if values.dim() == 0:  # A step begins.
            self.step, self.seen = row, {}
            return
        times = self.seen[row] = self.seen.get(row, -1) + 1
        kind, name = self.rows[row]
        record = Statistics(
            self.step, kind, f"{name}[{times}]" if times else name, *values.tolist()
        )
        self.records.append(record)
        if self.writer is not None:
            for field in Statistics._fields[3:]:
                tag = f"{kind}/{record.name}/{field}"
                self.writer.add_scalar(tag, getattr(record, field), record.step)


def _in_order(records: list[Statistics], kind: str) -> list[Statistics]:
    """The records of a kind. Gradients, which arrive in reverse, are in the order of weights."""
    order = {one.name: i for i, one in enumerate(records) if one.kind == "weights"}
    found = [one for one in records if one.kind == kind]
    return sorted(found, key=lambda one: order[one.name]) if kind == "gradients" else found


class watch:  # noqa: N801 (is used as a function)
    """Measures a model's activations, gradients and weights in every so many steps.

    A step is a call of the model in training mode with gradients. In the first and every
    ``every``-th after it the program also computes mean, deviation, largest absolute value, and
    the shares of zeros and of NaN (the first three without NaN) of each module's result, of each
    parameter, and of each parameter's gradient when it was accumulated; of a ``DTensor``, they are
    those of this replica's part. Nothing is read here and nothing waits (see
    :func:`torch_xla.debug.callback`); the other steps cost nothing. A function with
    ``replay=True`` is traced while its model is watched.

    Example::

        seen = torch_xla.debug.watch(model, every=100)
        train(model)
        print(seen)
        seen.save("model.html")

    Args:
        model: A module whose parameters are on an xla device.
        every: Of how many steps one is measured.
        writer: A ``torch.utils.tensorboard.SummaryWriter``, which gets each value as
            ``activations/<module>/mean`` and so on.

    Raises:
        TypeError, ValueError: ``model`` is no module or one of ``torch.compile``, whose graphs
            have no modules; ``every`` is no positive integer.
    """

    def __init__(self, model: nn.Module, every: int = 100, writer: Any = None) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"debug.watch(): expected a module, got {type(model).__name__}")
        if hasattr(model, "_orig_mod") or model._compiled_call_impl is not None:
            raise ValueError("debug.watch(): expected a module that torch.compile has not compiled")
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"debug.watch(): expected every >= 1, got {every!r}")
        self._every, self._sink = every, _Sink(writer)
        self._number = host_calls._number_of_function(self._sink)
        self._calls, self._measures, self._in_forward = 0, False, False
        self._parameters = [
            (self._row("weights", name), parameter) for name, parameter in model.named_parameters()
        ]
        self._hooks = [model.register_forward_pre_hook(self._begin)]
        for name, module in model.named_modules():
            if not isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
                row = self._row("activations", name or type(model).__name__)
                self._hooks.append(module.register_forward_hook(self._result(row)))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hook = self._gradient(self._row("gradients", name))
                self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))
        self._hooks.append(model.register_forward_hook(self._end, always_call=True))

    def _row(self, kind: str, name: str) -> int:
        self._sink.rows.append((kind, name))
        return len(self._sink.rows) - 1

    def _tell(self, values: torch.Tensor, number: int) -> None:
        host_calls._call(self._number, [values, torch.tensor(number)])

    def _take(self, row: int, tensor: Any) -> None:
        if hasattr(tensor, "to_local"):  # A DTensor.
            tensor = tensor.detach().to_local()
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel():
            with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
                self._tell(_measure(tensor), row)

    def _begin(self, model: nn.Module, args: Any) -> None:
        del args
        if torch.compiler.is_compiling():
            raise RuntimeError("debug.watch(): a model that is watched cannot be compiled")
        if not (model.training and torch.is_grad_enabled()):
            self._measures = False
            return
        self._measures = self._in_forward = self._calls % self._every == 0
        self._calls += 1
        if self._measures:
            device = next((one.device for _, one in self._parameters), torch.device("cpu"))
            self._tell(torch.zeros((), device=device), self._calls - 1)
            for row, parameter in self._parameters:
                self._take(row, parameter)

    def _end(self, *args: Any) -> None:
        del args
        self._in_forward = False  # A recomputed module is not measured again.

    def _result(self, row: int) -> Any:
        def hook(module: nn.Module, args: Any, result: Any) -> None:
            del module, args
            if self._in_forward:
                self._take(row, result[0] if isinstance(result, tuple) and result else result)

        return hook

    def _gradient(self, row: int) -> Any:
        def hook(parameter: torch.Tensor) -> None:
            if self._measures:
                self._take(row, parameter.grad)

        return hook

    def remove(self) -> None:
        """Measures no more; what was measured stays."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def records(self) -> list[Statistics]:
        """All that was measured, in order; runs what is traced, and waits for it."""
        host_calls.flush()
        return list(self._sink.records)

    def __str__(self) -> str:
        records = self.records()
        if not records:
            return "no step was measured yet\n"
        last = [record for record in records if record.step == records[-1].step]
        width = max(len(record.name) for record in last)
        head = "".join(f"{field:>11}" for field in Statistics._fields[3:])
        lines = [f"step {last[0].step}"]
        for kind in _KINDS:
            lines.append(f"{kind:<{width}}{head}")
            lines += [
                f"{one.name:<{width}}{one.mean:11.3g}{one.deviation:11.3g}{one.largest:11.3g}"
                f"{one.zeros:11.1%}{one.nan:11.1%}"
                for one in _in_order(last, kind)
            ]
        return "\n".join(lines) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all that was measured.

        Args:
            path: ``.json``: a list of objects with the fields of a record, where infinities are
                null. ``.html``: a page of small charts by module that needs no other file.

        Raises:
            ValueError: The path ends otherwise.
        """
        suffix = os.path.splitext(path)[1].lower()
        if suffix not in (".json", ".html"):
            raise ValueError(f"watch.save(): expected a .json or .html file, got {os.fspath(path)}")
        records = self.records()
        if suffix == ".html":
            write_file(path, _page(records))
            return
        finite = [
            {
                field: None if isinstance(value, float) and not math.isfinite(value) else value
                for field, value in record._asdict().items()
            }
            for record in records
        ]
        write_file(path, json.dumps(finite, allow_nan=False, indent=1))


# In pixels: a chart's width, the labels left of it, its height and the shares below it.
_WIDTH, _LEFT, _HEIGHT, _BARS = 210, 26, 74, 14
_LINES = (("largest", "l"), ("deviation", "d"), ("mean", "m"))
_STYLE = """
body{font:13px system-ui,sans-serif;margin:24px;color:#1d2733;background:#fff}
h1{font-size:20px;margin:0 0 4px} h2{font-size:15px;margin:26px 0 8px;text-transform:capitalize}
p{margin:0;color:#5a6775} .g{display:flex;flex-wrap:wrap;gap:12px}
figure{margin:0;padding:8px 10px;border:1px solid #dde3ea;border-radius:6px;width:210px}
figure.bad{border-color:#d62728} figcaption{overflow-wrap:anywhere;font-weight:600}
small{color:#5a6775;font-variant-numeric:tabular-nums;display:block} svg{display:block;margin:5px 0}
path{fill:none;stroke-width:1.6} .l{stroke:#1d2733} .d{stroke:#1f77b4} .m{stroke:#a8b3bf}
.z{fill:#c9d2db} .n{fill:#d62728} line{stroke:#e6ebf0} text{font-size:9px;fill:#8b96a3}
i{display:inline-block;width:14px;height:3px;margin:0 4px 3px 12px}
@media(prefers-color-scheme:dark){body{color:#dde3ea;background:#14191f}figure{border-color:#323c47}
.l{stroke:#dde3ea}line{stroke:#28313b}.m{stroke:#6b7885}.z{fill:#3c4753}}
"""
_KEY = "".join(
    f'<i style="background:{color}"></i>{words}'
    for color, words in (
        ("#1d2733;outline:1px solid #8884", "largest absolute value"),
        ("#1f77b4", "deviation"),
        ("#a8b3bf", "absolute mean"),
        ("#c9d2db", "share of zeros"),
        ("#d62728", "share of NaN"),
    )
)


def _chart(records: list[Statistics]) -> str:
    """The records of a tensor, by step: three lines on a logarithmic scale, and shares as bars."""
    first, last = records[0].step, records[-1].step
    span = _WIDTH - _LEFT
    place = [
        _LEFT + span * ((one.step - first) / (last - first) if last > first else 0.5)
        for one in records
    ]
    values = {field: [abs(getattr(one, field)) for one in records] for field, _ in _LINES}
    shown = [v for line in values.values() for v in line if 0 < v < math.inf] or [1.0]
    low, high = math.floor(math.log10(min(shown))), math.ceil(math.log10(max(shown)))
    low, high = max(low, high - 6), max(high, low + 1)

    def height(value: float) -> float:
        part = (math.log10(max(min(value, 10.0**high), 10.0**low)) - low) / (high - low)
        return _HEIGHT - part * _HEIGHT

    parts = [
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y}" y2="{y}"/>'
        f'<text x="0" y="{y + (8 if y == 0 else 0)}">1e{power}</text>'
        for y, power in ((0, high), (_HEIGHT, low))
    ]
    for field, style in _LINES:
        points = [f"{x:.1f},{height(v):.1f}" for x, v in zip(place, values[field], strict=True)]
        points = points if len(points) > 1 else [f"{_LEFT},{points[0].split(',')[1]}", *points]
        parts.append(f'<path class="{style}" d="M{" L".join(points)}"/>')
    wide = max(span / len(records) * 0.8, 1.0)
    for x, one in zip(place, records, strict=True):
        for style, share, base in (("z", one.zeros, 0.0), ("n", one.nan, one.zeros)):
            if share > 0:
                tall = max(share * _BARS, 1.0)
                top = _HEIGHT + 3 + _BARS - base * _BARS - tall
                left = min(max(x - wide / 2, _LEFT), _WIDTH - wide)
                parts.append(
                    f'<rect class="{style}" x="{left:.1f}" y="{top:.1f}" '
                    f'width="{wide:.1f}" height="{tall:.1f}"/>'
                )
    end = records[-1]
    bad = any(one.nan > 0 or math.isinf(one.largest) for one in records)
    return (
        f"<figure{' class=bad' if bad else ''}><figcaption>{html.escape(end.name)}</figcaption>"
        f'<svg width="{_WIDTH}" height="{_HEIGHT + _BARS + 4}">{"".join(parts)}</svg>'
        f"<small>{end.mean:.3g} ± {end.deviation:.3g}, largest {end.largest:.3g}</small>"
        f"<small>zeros {end.zeros:.1%}, NaN {end.nan:.1%}</small></figure>"
    )


def _page(records: list[Statistics]) -> str:
    steps = sorted({one.step for one in records})
    told = f"steps {steps[0]} to {steps[-1]}, {len(steps)} measured" if steps else "no step yet"
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>torch_xla.debug.watch</title>'
        f"<style>{_STYLE}</style><h1>Statistics by module</h1><p>{told}; lines on a logarithmic "
        f"scale.</p><p>{_KEY}</p>"
    ]
    for kind in _KINDS:
        of_name: dict[str, list[Statistics]] = {}
        for one in _in_order(records, kind):
            of_name.setdefault(one.name, []).append(one)
        charts = "".join(_chart(rows) for rows in of_name.values())
        parts.append(f'<h2>{kind}</h2><div class="g">{charts}</div>')
    return "".join(parts) + "</html>\n"
