"""What training scripts print and write to TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import torch

import torch_xla
from torch_xla.core import xla_model
from torch_xla.debug import metrics


def now(format: str = "%H:%M:%S") -> str:
    """Returns the time of day as text."""
    return datetime.now().strftime(format)


def get_summary_writer(logdir: str | None) -> Any:
    """Returns a TensorBoard writer on the master replica with ``logdir``; None elsewhere.

    Raises:
        ImportError: ``tensorboard`` is not installed.
    """
    if not logdir or not xla_model.is_master_ordinal():
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(log_dir=logdir)


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: Mapping[str, float] = {},  # noqa: B006
    write_xla_metrics: bool = False,
) -> None:
    """Writes numbers to TensorBoard; nothing without a writer.

    Args:
        summary_writer: Of :func:`get_summary_writer`.
        global_step: The step.
        dict_to_write: The numbers by name.
        write_xla_metrics: Whether to write the counters and metrics, too: their counts and sums.
    """
    if summary_writer is None:
        return
    numbers = dict(dict_to_write)
    if write_xla_metrics:
        for name in metrics.counter_names():
            numbers[f"counters/{name}"] = metrics.counter_value(name) or 0
        for name in metrics.metric_names():
            count, total, _ = metrics.metric_data(name) or (0, 0.0, [])
            numbers[f"metrics/{name}/TotalSamples"] = count
            numbers[f"metrics/{name}/Accumulator"] = total
    for name, value in numbers.items():
        summary_writer.add_scalar(name, value, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    """Closes a writer that is there."""
    if summary_writer is not None:
        summary_writer.close()


def print_training_update(
    device: torch.device | str,
    step: int,
    loss: torch.Tensor | float,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """Prints one line about a training step, and writes it to TensorBoard.

    A loss that is a tensor is read here: call this from a step closure.
    """
    loss = loss.item() if isinstance(loss, torch.Tensor) else loss
    fields = [
        f"Training Device={xla_model.xla_real_devices([device])[0] if _is_xla(device) else device}",
        *([] if epoch is None else [f"Epoch={epoch}"]),
        f"Step={step}",
        f"Loss={loss:.5f}",
        f"Rate={rate:.2f}",
        f"GlobalRate={global_rate:.2f}",
        f"Time={now()}",
    ]
    print("| " + " ".join(fields), flush=True)
    write_to_summary(summary_writer, step, {"Loss": loss, "Rate": rate, "GlobalRate": global_rate})


def _is_xla(device: torch.device | str) -> bool:
    return torch.device(device).type == "xla"


def print_test_update(
    device: torch.device | str,
    accuracy: float | None,
    epoch: int | None = None,
    step: int | None = None,
) -> None:
    """Prints one line about an evaluation."""
    fields = [
        f"Test Device={device}",
        *([] if step is None else [f"Step={step}"]),
        *([] if epoch is None else [f"Epoch={epoch}"]),
        *([] if accuracy is None else [f"Accuracy={accuracy:.2f}"]),
        f"Time={now()}",
    ]
    print("| " + " ".join(fields), flush=True)


def mp_test(func: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``func`` wrapped so that all that it launched has ended when it returns."""

    def waiting(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        finally:
            torch_xla.sync()
            xla_model.wait_device_ops()

    return waiting
