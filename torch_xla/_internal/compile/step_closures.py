"""Functions to run at the end of a step, when its tensors have their values."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any

Closure = Callable[[], Any]


class ClosureHandler:
    """Runs closures at once, in their order."""

    def run(self, closure: Closure) -> None:
        """Runs ``closure``."""
        closure()

    def run_all(self, closures: Iterable[Closure]) -> None:
        """Runs each of ``closures``."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Runs closures one after the other on a thread of its own.

    The thread starts with the first closure. An error is kept and raised by
    :meth:`raise_error`; the closures behind it still run.

    Args:
        max_queue_size: How many closures may wait; :meth:`run` blocks when there are more.
    """

    def __init__(self, max_queue_size: int = 100) -> None:
        self._queue: queue.Queue[Closure] = queue.Queue(max_queue_size)
        self._errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start_event_loop(self) -> None:
        """Starts the thread, where it does not run."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # A fork has no thread.
                self._thread = threading.Thread(
                    target=self._work, name="torch_xla step closures", daemon=True
                )
                self._thread.start()

    def run(self, closure: Closure) -> None:
        """Queues ``closure``; blocks while the queue is full."""
        self.start_event_loop()
        self._queue.put(closure)

    def wait(self) -> None:
        """Blocks until every queued closure has run; not in a closure, which would be waiting."""
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            self._queue.join()

    def raise_error(self) -> None:
        """Raises the oldest error of a closure that was not raised yet, if there is one."""
        try:
            error = self._errors.get_nowait()
        except queue.Empty:
            return
        raise error

    def _work(self) -> None:
        while True:
            closure = self._queue.get()
            try:
                closure()
            except BaseException as error:  # Raised at the next step, in the user's thread.
                self._errors.put(error)
            finally:
                del closure  # Frees its tensors.
                self._queue.task_done()


_pending: list[tuple[Closure, bool]] = []
_async_handler: AsyncClosureHandler | None = None


def add_step_closure(
    closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False
) -> None:
    """Adds a function to call after the next cut of the graph.

    See :func:`torch_xla.core.xla_model.add_step_closure`.
    """
    _pending.append((lambda: closure(*args), run_async))


def run_step_closures() -> None:
    """Runs the closures added since the last step, in their order.

    Asynchronous ones go to one daemon thread. A closure that raises ends the step's closures;
    an error of an asynchronous one is raised once, by the first step after it.

    Raises:
        Exception: What a closure raised.
    """
    global _pending
    closures: list[tuple[Closure, bool]] = []
    if _pending:
        closures, _pending = _pending, closures
    for closure, run_async in closures:
        if run_async:
            _get_async_handler().run(closure)
        else:
            closure()
    if _async_handler is not None:
        _async_handler.raise_error()


def wait_for_asynchronous() -> None:
    """Waits for the asynchronous closures of the steps so far.

    Raises:
        Exception: What one of them raised.
    """
    if _async_handler is not None:
        _async_handler.wait()
        _async_handler.raise_error()


def _get_async_handler() -> AsyncClosureHandler:
    global _async_handler
    if _async_handler is None:
        _async_handler = AsyncClosureHandler()
        atexit.register(wait_for_asynchronous)  # An error is printed there.
    return _async_handler
