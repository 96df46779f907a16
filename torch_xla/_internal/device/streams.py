"""Streams and events of ``torch.xla``: a device has one queue, in which programs run in order."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._internal.compile.step import sync
from torch_xla._internal.device.memory import Device, device_name

_DEVICE_TYPE = 9  # c10::DeviceType::XLA. Python has no name for it.


class Stream(torch.Stream):
    """The one stream of a device.

    Args:
        device: An xla device; the current one when None.
        priority: Not used.
    """

    def __new__(cls, device: Device = None, priority: int = 0) -> Stream:  # noqa: D102
        # By default torch.Stream is for the accelerator that PyTorch was built for.
        index = torch.device(device_name(device)).index
        return super().__new__(cls, stream_id=0, device_index=index, device_type=_DEVICE_TYPE)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Returns the event, a new one when None, after recording it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Does nothing: later work of the one stream runs after earlier work."""

    def wait_stream(self, stream: torch.Stream) -> None:
        """Does nothing: there is one stream."""

    def synchronize(self) -> None:
        """Launches what was traced and waits for the device."""
        _wait(str(self.device))

    def query(self) -> bool:
        """Returns True, after waiting: PJRT's queue cannot be asked."""
        self.synchronize()
        return True


def _wait(device: str) -> None:
    sync()
    _XLAC._xla_wait_device_ops([device])


def default_stream(device: Device = None) -> Stream:
    """Returns the one stream of a device."""
    return Stream(device)


current_stream = default_stream


def set_stream(stream: torch.Stream) -> None:
    """Makes the stream's device the current one.

    Raises:
        ValueError: The stream belongs to another kind of device.
    """
    if stream.device.type != "xla":
        raise ValueError(f"set_stream(): expected a stream of an xla device, got {stream}")
    _XLAC._xla_set_default_device(str(stream.device))


class StreamContext(contextlib.AbstractContextManager[Any]):
    """Context manager under which the stream's device is the current one; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._previous = _XLAC._xla_get_default_device()
            set_stream(self._stream)

    def __exit__(self, *exc_info: object) -> None:
        if self._stream is not None:
            _XLAC._xla_set_default_device(self._previous)


stream = StreamContext


class Event(torch.Event):
    """A point in a device's queue.

    What is traced is launched when somebody asks for the event, not by :meth:`record`, so that a
    program that orders its streams by events keeps its graph whole.

    Args:
        enable_timing: Whether :meth:`elapsed_time` is asked for: :meth:`record` then launches
            what is traced, and waits.
        blocking: Not used: waiting never spins.
        interprocess: Not supported.
    """

    def __new__(  # noqa: D102
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        if interprocess:
            raise ValueError("Event(): interprocess events are not supported on xla")
        return super().__new__(cls, "xla")

    def __init__(self, enable_timing: bool = False, *args: bool, **kwargs: bool) -> None:
        self._timing = enable_timing
        self._recorded_on: str | None = None
        self._time: float | None = None

    def record(self, stream: torch.Stream | None = None) -> None:
        """Marks the end of what the program has said so far for the stream's device."""
        self._recorded_on = (
            _XLAC._xla_get_default_device() if stream is None else str(stream.device)
        )
        if self._timing:
            self.synchronize()
            self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Waits for the work before the mark, and for what the device was given since."""
        if self._recorded_on is not None:
            _wait(self._recorded_on)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Does nothing: later work of the one stream runs after earlier work."""

    def query(self) -> bool:
        """Returns True, after waiting: PJRT's queue cannot be asked."""
        self.synchronize()
        return True

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Returns the milliseconds between two recorded events made with ``enable_timing``."""
        end: float | None = getattr(end_event, "_time", None)
        if self._time is None or end is None:
            raise ValueError(
                "Event.elapsed_time(): expected two events that have `enable_timing` and were "
                "recorded"
            )
        return 1e3 * (end - self._time)
