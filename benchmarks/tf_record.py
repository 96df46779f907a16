"""Reads one TFRecord file with TfRecordReader and, where it is installed, with TensorFlow.

    pip install tensorflow-cpu    # in a throw-away environment
    python benchmarks/tf_record.py --rival /path/to/its/python

Both run on one core, in turns, in processes of their own. They are timed by the clock, and in CPU
time (of all their threads), which what else the machine does hardly touches. TensorFlow gives the
records from `TFRecordDataset(...).batch(n)`, its quickest way, and also one at a time, as the
reader does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {"1 KB": 1024, "10 KB": 10_240, "100 KB": 102_400, "1 MB": 1_048_576}
READ_AHEAD = 16 << 20


class Timer:
    """Seconds in a ``with`` block: by the clock, and of the process's CPU time."""

    def __enter__(self) -> Timer:
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *exc_info: object) -> None:
        wall, cpu = self._start
        self.seconds = time.perf_counter() - wall, time.process_time() - cpu


def ours(path: str) -> tuple[float, float]:
    from torch_xla.utils.tf_record_reader import TfRecordReader

    with Timer() as timer:
        for _ in TfRecordReader(path):
            pass
    return timer.seconds


def _tensorflow(path: str, batch: int) -> tuple[float, float]:
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    data = tf.data.TFRecordDataset(path, buffer_size=READ_AHEAD).with_options(options)
    if batch:
        data = data.batch(batch)
    with Timer() as timer:
        for _ in data:
            pass
    return timer.seconds


def tensorflow_batched(path: str) -> tuple[float, float]:
    return _tensorflow(path, 64)


def tensorflow_single(path: str) -> tuple[float, float]:
    return _tensorflow(path, 0)


def serve(reader: str) -> None:
    """Answers each path on the standard input with the two times that reading it took."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    function = globals()[reader]
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(function(line.strip())), flush=True)


class Reader:
    def __init__(self, python: str, name: str) -> None:
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        if name != "ours":
            environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [python, __file__, "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        while (line := self._process.stdout.readline()) and line.strip() != "ready":
            pass

    def read(self, path: str) -> tuple[float, float]:
        self._process.stdin.write(path + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rival", help="a Python that has tensorflow-cpu")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return

    from torch_xla.utils.tf_record_writer import TfRecordWriter

    readers = {"ours": Reader(sys.executable, "ours")}
    if arguments.rival:
        for name in ("tensorflow_batched", "tensorflow_single"):
            readers[name] = Reader(arguments.rival, name)
    total = arguments.megabytes << 20
    with tempfile.TemporaryDirectory() as folder:
        for label, size in SIZES.items():
            path = os.path.join(folder, "file")
            record = os.urandom(size)
            with TfRecordWriter(path) as writer:
                for _ in range(total // size):
                    writer.write(record)
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
            for _ in range(arguments.rounds + 1):
                for name, reader in readers.items():
                    times[name].append(reader.read(path))
            print(f"records of {label}:")
            own = [statistics.median(kind) for kind in zip(*times["ours"][1:], strict=True)]
            for name, taken in times.items():
                line = f"  {name:20}"
                for kind, seconds, base in zip(
                    ("clock", "CPU"), zip(*taken[1:], strict=True), own, strict=True
                ):
                    median = statistics.median(seconds)
                    line += f"  {kind} {total / 1e6 / median:6.0f} MB/s"
                    line += f" ({median / base:5.2f} x our time)" if name != "ours" else " " * 20
                print(line, flush=True)
    for reader in readers.values():
        reader.close()


if __name__ == "__main__":
    main()
