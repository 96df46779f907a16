"""Measures rates: counts per second."""

from __future__ import annotations

import time


class RateTracker:
    """Counts per second, recently and since the start.

    Args:
        smooth_factor: How much of the earlier rate stays in a new one, from 0 (the default:
            none) to 1.
    """

    def __init__(self, smooth_factor: float | None = None) -> None:
        self._smooth_factor = smooth_factor or 0.0
        self._start = self._last = time.monotonic()
        self._count = self._last_count = 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """Counts ``count`` more."""
        self._count += count

    def rate(self) -> float:
        """Returns the rate since the last call, smoothed."""
        now = time.monotonic()
        if now > self._last:
            rate = (self._count - self._last_count) / (now - self._last)
            if self._rate is not None:
                rate = (1 - self._smooth_factor) * rate + self._smooth_factor * self._rate
            self._rate, self._last, self._last_count = rate, now, self._count
        return self._rate or 0.0

    def global_rate(self) -> float:
        """Returns the rate since the tracker was made."""
        passed = time.monotonic() - self._start
        return self._count / passed if passed > 0 else 0.0
