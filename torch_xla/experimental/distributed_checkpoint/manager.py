"""Saves a run every so many steps, keeps the newest, finds the one to go on from."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from torch_xla import runtime
from torch_xla._internal.files import restricted_pickle
from torch_xla._internal.files.atomic_file import sync_directory
from torch_xla._internal.nested_data import map_tensors
from torch_xla._internal.replicas import replication
from torch_xla.core import xla_model
from torch_xla.experimental.distributed_checkpoint.planners import (
    RestrictedLoadPlanner,
    SPMDLoadPlanner,
    SPMDSavePlanner,
)
from torch_xla.utils import gcsfs

# A missing process group is not a mistake here.
warnings.filterwarnings(
    "ignore", "torch.distributed is disabled, unavailable", UserWarning, "torch.distributed"
)

_METADATA = ".metadata"  # torch.distributed.checkpoint writes it last.
# Written first: it marks a folder as a manager's, with the time in nanoseconds. Folders without it
# are never removed.
_MARK = ".torch_xla_checkpoint"
_MARK_TEXT = "torch_xla checkpoint "
_FAILURES = (Exception, CheckpointException)  # CheckpointException is no Exception.


def _on_host(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy that later training steps do not change."""
    own = map_tensors(lambda t: t.detach().clone() if t.device.type == "cpu" else t, state_dict)
    return cast(dict[str, Any], xla_model._maybe_convert_to_cpu(own))


class CheckpointManager:
    """Takes checkpoints of a run with ``torch.distributed.checkpoint``.

    A checkpoint is a folder named by its step. It appears when it is whole: a process that is
    killed while saving leaves the older ones as they were. Where a process group is initialised,
    all its ranks make the same calls, and each writes what it holds; otherwise this process
    writes all. In SPMD mode :meth:`save` writes each part of a tensor once, and restoring keeps
    the way tensors lie on the devices, whichever way they lay when they were saved::

        manager = CheckpointManager("gs://bucket/run", save_interval=100, max_to_keep=3)
        prime_optimizer(optimizer)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        last = manager.restore_latest(state)
        if last is not None:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        for step in range(0 if last is None else last + 1, steps):
            train(step)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            manager.save_async(step, state)
            if manager.reached_preemption(step):
                break
        manager.join()

    Args:
        path: The folder of the checkpoints: a local path, or an URL of any file system that
            fsspec knows.
        save_interval: A checkpoint is taken at every step that is a multiple of it.
        max_to_keep: How many checkpoints are kept, those that were saved last, whichever run
            saved them; 0 keeps all. What is no checkpoint of a manager is left alone.
        max_pending_async: How many asynchronous checkpoints may be unfinished. One more waits.
        num_of_threads: Changes nothing: checkpoints are written one after the other.
        process_group: The ranks that take part; all when None.
        chkpt_on_preemption: Whether SIGTERM, by which machines tell that they are about to go, is
            caught and makes the next step one that is saved. Needs the main thread.

    Raises:
        ValueError: One of the numbers is too small.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        save_interval: int,
        max_to_keep: int = 0,
        max_pending_async: int = 1,
        num_of_threads: int = 1,
        process_group: dist.ProcessGroup | None = None,
        chkpt_on_preemption: bool = True,
    ) -> None:
        for name, number, least in (
            ("save_interval", save_interval, 1),
            ("max_to_keep", max_to_keep, 0),
            ("max_pending_async", max_pending_async, 1),
        ):
            if number < least:
                raise ValueError(
                    f"CheckpointManager: expected `{name}` of at least {least}, got {number}"
                )
        self._path = os.fspath(path).rstrip("/")
        self._remote = gcsfs._is_url(self._path)
        self._save_interval = save_interval
        self._max_to_keep = max_to_keep
        self._group: dist.ProcessGroup | None = None
        self._flags: dist.ProcessGroup | None = None
        if dist.is_available() and dist.is_initialized():
            # Groups of its own: background saves must not mix with collectives of the training, nor
            # with the questions asked in the training's thread.
            ranks = dist.get_process_group_ranks(process_group or dist.group.WORLD)
            # Replicas need a group that launches traced operations, for which other replicas may
            # wait, and that names a replica that has ended.
            backend = "xla" if replication.topology().world_size > 1 else "gloo"
            self._group = dist.new_group(ranks, backend=backend)
            self._flags = dist.new_group(ranks, backend=backend)
        self._executor = ThreadPoolExecutor(1, "torch_xla checkpoint")
        self._room = threading.BoundedSemaphore(max_pending_async)
        self._pending: list[Future[None]] = []
        self._preempted = threading.Event()
        self._previous_handler: Any = None
        if chkpt_on_preemption:
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_sigterm)
        if not self._remote and self._is_coordinator():
            os.makedirs(self._path, exist_ok=True)
            for name in os.listdir(self._path):  # Left by runs that were killed.
                if partial := re.fullmatch(r"\.(\d+)\.tmp", name):
                    if self._saved_at(f"{self._path}/{name}") is None:
                        continue  # Not a folder of a manager.
                    if self._has_metadata(f"{self._path}/{name}"):
                        self._publish(int(partial[1]))
                    else:
                        shutil.rmtree(f"{self._path}/{name}", ignore_errors=True)

    def _on_sigterm(self, number: int, frame: Any) -> None:
        self._preempted.set()
        if callable(self._previous_handler):
            self._previous_handler(number, frame)

    def _is_coordinator(self) -> bool:
        return self._group is None or dist.get_rank(self._group) == 0

    def _folder(self, step: int) -> str:
        return f"{self._path}/{step}"

    def _partial(self, step: int) -> str:
        return f"{self._path}/.{step}.tmp"

    # ------------------------------------------------------------ when

    def reached_preemption(self, step: int) -> bool:
        """Returns whether SIGTERM has come, on any rank: save, :meth:`join`, and leave.

        Args:
            step: The step that was just taken. With a process group, all ranks ask at each.
        """
        return self._on_any_rank(self._preempted.is_set())

    def _on_any_rank(self, truth: bool) -> bool:
        if self._flags is None:
            return truth
        flag = torch.tensor(int(truth))
        dist.all_reduce(flag, dist.ReduceOp.MAX, self._flags)
        return bool(flag)

    def should_save(self, step: int) -> bool:
        """Returns whether ``step`` is one that is saved: by the interval, or for preemption."""
        if step < 0:
            raise ValueError(f"CheckpointManager: expected a step of at least 0, got {step}")
        return self.reached_preemption(step) or step % self._save_interval == 0

    # ------------------------------------------------------------ saving

    def save(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """Takes a checkpoint, if it is time, and returns when it is whole.

        XLA tensors are copied to the host one at a time.

        Args:
            step: The number of the step, at least 0.
            state_dict: Nested dictionaries and lists of tensors (any shape and dtype) and other
                objects that can be pickled.
            force: Whether to save whatever the step.

        Returns:
            Whether a checkpoint was taken.

        Raises:
            Exception: What made this or an earlier asynchronous checkpoint fail.
        """
        if not (self.should_save(step) or force):
            return False
        self.join()
        self._write(step, state_dict)
        return True

    def save_async(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """Takes a checkpoint, if it is time, writing it while the training goes on.

        The tensors are copied to the host before this returns, all of them.

        Args, Returns and Raises are those of :meth:`save`; an error of the writing is raised by
        the next call, or by :meth:`join`.
        """
        if not (self.should_save(step) or force):
            return False
        self._raise_failure()
        self._room.acquire()
        try:
            future = self._executor.submit(self._write, step, _on_host(state_dict))
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        self._pending.append(future)
        return True

    def join(self) -> None:
        """Waits until all checkpoints are whole.

        Raises:
            Exception: What made one fail.
        """
        while self._pending:
            self._pending.pop(0).result()

    def _raise_failure(self) -> None:
        """Raises the error of a finished checkpoint, on all ranks or on none."""
        done = [future for future in self._pending if future.done()]
        if self._on_any_rank(any(future.exception() for future in done)):
            self.join()
        self._pending = [future for future in self._pending if future not in done]

    def _agree(self, failure: BaseException | None = None) -> None:
        """Waits for all ranks, and raises on each of them if one has failed."""
        failures: list[str | None] = [None]
        if self._group is not None:
            failures *= dist.get_world_size(self._group)
            text = None if failure is None else f"{type(failure).__name__}: {failure}"
            try:
                dist.all_gather_object(failures, text, self._group)
            except Exception as error:
                raise failure or error from None
        if failure is not None:
            raise failure
        for rank, text in enumerate(failures):
            if text is not None:
                raise RuntimeError(f"CheckpointManager: rank {rank} failed to save: {text}")

    def _write(self, step: int, state_dict: dict[str, Any]) -> None:
        # A remote checkpoint is complete when it has metadata, a local one when it is renamed.
        target = self._folder(step) if self._remote else self._partial(step)
        self._on_coordinator(lambda: self._prepare(step, target))
        # Closing a remote file syncs it; the writer would call os.sync().
        writer = (
            FsspecWriter(target, sync_files=False) if self._remote else FileSystemWriter(target)
        )
        failure = None
        try:
            save(
                state_dict,
                storage_writer=writer,
                planner=SPMDSavePlanner() if runtime.is_spmd() else None,
                process_group=self._group,
                no_dist=self._group is None,
            )
        except _FAILURES as error:
            failure = error
        try:
            self._agree(failure)
        except _FAILURES:
            if self._is_coordinator():
                with contextlib.suppress(Exception):
                    if not self._has_metadata(target):  # The disk may have been full.
                        self._remove(target)
            raise
        self._on_coordinator(lambda: self._finish(step))

    def _on_coordinator(self, work: Callable[[], None]) -> None:
        failure = None
        if self._is_coordinator():
            try:
                work()
            except Exception as error:
                failure = error
        self._agree(failure)

    def _prepare(self, step: int, target: str) -> None:
        for folder in {target, self._folder(step)}:
            if self._saved_at(folder) is None and not self._is_free(folder):
                raise FileExistsError(
                    f"CheckpointManager: {folder} has files that are no checkpoint, which saving "
                    f"step {step} would remove: move them, or save to another folder"
                )
        self._remove(target)
        if not self._remote:
            os.makedirs(target)
        gcsfs.write(f"{target}/{_MARK}", f"{_MARK_TEXT}{time.time_ns()}\n")

    def _is_free(self, folder: str) -> bool:
        """Whether there is no such folder, an empty one or a checkpoint without the mark."""
        if self._remote:
            names = [blob.path.rsplit("/", 1)[1] for blob in gcsfs.list(folder)]
        else:
            names = os.listdir(folder) if os.path.lexists(folder) else []
        return not names or _METADATA in names

    def _has_metadata(self, folder: str) -> bool:
        path = f"{folder}/{_METADATA}"
        return bool(gcsfs.list(path)) if self._remote else os.path.exists(path)

    def _saved_at(self, folder: str) -> int | None:
        """When a manager began to save the checkpoint, by its clock; None if no manager did."""
        try:
            text = gcsfs.read(f"{folder}/{_MARK}").decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        time_ns = text.removeprefix(_MARK_TEXT).strip()
        return int(time_ns) if text.startswith(_MARK_TEXT) and time_ns.isdecimal() else None

    def _steps_by_age(self) -> list[int]:
        """The steps, oldest first; checkpoints without the mark come first, in order of steps."""
        ages = {step: self._saved_at(self._folder(step)) for step in self.all_steps()}
        return sorted(ages, key=lambda step: (ages[step] or 0, step))

    def _finish(self, step: int) -> None:
        if not self._remote:
            self._publish(step)
        if not self._max_to_keep:
            return
        for old in self._steps_by_age()[: -self._max_to_keep]:
            if old != step and self._saved_at(self._folder(old)) is not None:
                self._remove(self._folder(old))

    def _publish(self, step: int) -> None:
        """Gives a whole local checkpoint its name.

        An older one of that name is removed first. If the process dies between, the next finishes.
        """
        sync_directory(self._partial(step))
        self._remove(self._folder(step))
        os.rename(self._partial(step), self._folder(step))
        sync_directory(self._path)

    def _remove(self, folder: str) -> None:
        if self._remote:
            # Without metadata it is no checkpoint any more, even if the removal is interrupted.
            if self._has_metadata(folder):
                gcsfs.remove(f"{folder}/{_METADATA}")
            gcsfs.rmtree(folder)
        elif os.path.exists(folder):
            if self._has_metadata(folder):
                os.remove(f"{folder}/{_METADATA}")
            shutil.rmtree(folder)

    # ------------------------------------------------------------ restoring

    def all_steps(self) -> list[int]:
        """Returns the steps of the checkpoints that are there, in increasing order."""
        if self._remote:
            paths = [blob.path for blob in gcsfs.list(self._path)]
        else:
            names = os.listdir(self._path) if os.path.isdir(self._path) else []
            paths = [f"{self._path}/{name}/{_METADATA}" for name in names]
            paths = [path for path in paths if os.path.exists(path)]
        steps = []
        for path in paths:
            *_, name, file = path.split("/")
            if file == _METADATA and name.isdecimal():
                steps.append(int(name))
        return sorted(steps)

    def _reader(self, step: int) -> Any:
        folder = self._folder(step)
        return FsspecReader(folder) if self._remote else FileSystemReader(folder)

    def _is_whole(self, step: int, weights_only: bool) -> bool:
        """Whether the metadata can be read and the files have the lengths that it names."""
        try:
            if weights_only:
                content = gcsfs.read(f"{self._folder(step)}/{_METADATA}")
                restricted_pickle.check_metadata(content)
            stored = self._reader(step).read_metadata().storage_data
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, ValueError):
            return False
        ends: dict[str, int] = {}
        for info in stored.values():
            end = info.offset + info.length
            ends[info.relative_path] = max(end, ends.get(info.relative_path, 0))
        try:
            return all(
                gcsfs.stat(f"{self._folder(step)}/{name}").size >= end for name, end in ends.items()
            )
        except FileNotFoundError:
            return False

    def restore(self, step: int, state_dict: dict[str, Any], weights_only: bool = True) -> None:
        """Restores a checkpoint into ``state_dict``, in place.

        Args:
            step: One of :meth:`all_steps`.
            state_dict: Of the form that was saved; its tensors get the values, on the devices
                where they are, and other objects are replaced. An optimizer must have its state:
                see :func:`prime_optimizer`.
            weights_only: Whether all else than tensors must be plain Python objects. With False any
                object is loaded, and a checkpoint from a stranger may run any code.

        Raises:
            FileNotFoundError: There is no checkpoint of that step.
            RuntimeError: ``state_dict`` has what the checkpoint has not, or of other shapes.
            pickle.UnpicklingError: Its metadata is not PyTorch's.
            torch.distributed.checkpoint.api.CheckpointException: It holds what ``weights_only``
                does not admit.
        """
        self.join()
        if step not in (steps := self.all_steps()):
            raise FileNotFoundError(
                f"CheckpointManager: there is no checkpoint of step {step} at {self._path}; "
                f"there are {steps}"
            )
        if weights_only:
            content = gcsfs.read(f"{self._folder(step)}/{_METADATA}")
            restricted_pickle.check_metadata(content)
        planner = SPMDLoadPlanner if runtime.is_spmd() else RestrictedLoadPlanner
        load(
            state_dict,
            storage_reader=self._reader(step),
            planner=planner(weights_only=weights_only),
            process_group=self._group,
            no_dist=self._group is None,
        )

    def restore_latest(self, state_dict: dict[str, Any], weights_only: bool = True) -> int | None:
        """Restores the checkpoint that was saved last and is whole: see :meth:`restore`.

        That is not the one of the largest step where another run has saved to the folder before.
        Checkpoints of earlier versions, which did not write down the time, are the oldest.

        One with missing or truncated files, or with metadata that is not PyTorch's, is passed over.

        Returns:
            Its step; None where there is none, with ``state_dict`` as it was.
        """
        self.join()
        found = [
            next(
                (s for s in reversed(self._steps_by_age()) if self._is_whole(s, weights_only)),
                None,
            )
        ]
        if self._group is not None:  # All ranks restore what rank 0 sees.
            dist.broadcast_object_list(found, group_src=0, group=self._group)
        if found[0] is not None:
            self.restore(found[0], state_dict, weights_only)
        return found[0]

    def close(self) -> None:
        """Waits for what is pending and gives SIGTERM back to who had it."""
        try:
            self.join()
        finally:
            self._executor.shutdown()
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, self._previous_handler or signal.SIG_DFL)
