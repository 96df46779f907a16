"""CachedDataset: samples made once, then read from files."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testing.gcs import gcs_server
from testing.processes import write_script
from torch.utils.data import DataLoader, Dataset

from torch_xla.utils import gcsfs
from torch_xla.utils.cached_dataset import CachedDataset


class Squares(Dataset):
    """Notes in ``made`` which samples were asked for; fails at ``fails_at``."""

    def __init__(self, size: int = 10, fails_at: int = -1) -> None:
        self.size = size
        self.fails_at = fails_at
        self.made: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        if index == self.fails_at:
            raise RuntimeError("no such square")
        self.made.append(index)
        return torch.tensor([float(index)]) ** 2, {"index": index, "array": np.arange(index)}


def _check(dataset, size=10):
    assert len(dataset) == size
    for index in range(size):
        square, rest = dataset[index]
        assert square.item() == index**2 and rest["index"] == index
        np.testing.assert_array_equal(rest["array"], np.arange(index))


def _files(path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in Path(path).rglob("*") if file.is_file())


@pytest.fixture(params=["local", "gs", "memory"])
def folder(request, tmp_path):
    if request.param == "gs":
        pytest.importorskip("gcp_storage_emulator")
        with gcs_server():
            yield "gs://bucket/cache"
    elif request.param == "memory":
        yield "memory://cache"
        gcsfs.rmtree("memory://cache")
    else:
        yield str(tmp_path / "cache")


def test_samples_are_made_once(folder):
    squares = Squares()
    dataset = CachedDataset(squares, folder)
    assert dataset[3][0].item() == 9 and dataset[-7][0].item() == 9
    assert squares.made == [3]
    assert dataset.missing() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    dataset.warmup(progress=False)
    assert sorted(squares.made) == list(range(10))
    assert dataset.missing() == []
    _check(CachedDataset(None, folder))
    assert sorted(squares.made) == list(range(10))
    with pytest.raises(IndexError):
        dataset[10]


@pytest.mark.parametrize("compress", [True, False])
def test_layout(tmp_path, compress):
    CachedDataset(Squares(), tmp_path, 4, compress).warmup(progress=False)
    folders = ["000000"] * 4 + ["000001"] * 4 + ["000002"] * 2
    names = [f"{folder}/{number % 4:06d}.pt" for number, folder in enumerate(folders)]
    assert _files(tmp_path) == [*names, "metadata.json"]
    # The folder's own numbers count from then on.
    _check(CachedDataset(None, tmp_path, 1, not compress))
    _check(CachedDataset(Squares(fails_at=0), tmp_path, 1, not compress))


def test_compression_saves_space(tmp_path):
    sizes = []
    for compress in (True, False):
        dataset = CachedDataset([torch.zeros(1000)], tmp_path / str(compress), compress=compress)
        assert dataset[0].sum() == 0
        sizes.append(os.path.getsize(tmp_path / str(compress) / "000000/000000.pt"))
    assert sizes[0] < sizes[1] / 5 and sizes[1] > 4000


def test_a_moved_folder(tmp_path):
    CachedDataset(Squares(), tmp_path / "a").warmup(progress=False)
    (tmp_path / "a").rename(tmp_path / "b")
    _check(CachedDataset(None, tmp_path / "b"))


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "foreign"])
def test_a_corrupted_entry_is_made_anew(tmp_path, damage):
    CachedDataset(Squares(), tmp_path).warmup(progress=False)
    entry = tmp_path / "000000/000005.pt"
    whole = entry.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    content = {"truncated": whole[:-1], "empty": b"", "flipped": flipped, "foreign": b"x" * 50}
    entry.write_bytes(content[damage])
    with pytest.raises(RuntimeError, match="sample 5 is corrupted.*000005.pt.*no original dataset"):
        CachedDataset(None, tmp_path)[5]
    squares = Squares()
    CachedDataset(squares, tmp_path).warmup(verify=True, progress=False)
    assert squares.made == [5]
    _check(CachedDataset(None, tmp_path))


def test_warmup_shows_its_progress(tmp_path, capsys):
    dataset = CachedDataset(Squares(), tmp_path)
    dataset[0]
    dataset.warmup()
    shown = capsys.readouterr().err
    assert f"Caching to {tmp_path}" in shown and "10/10" in shown


def test_an_interrupted_warmup_goes_on(tmp_path):
    with pytest.raises(RuntimeError, match="no such square"):
        CachedDataset(Squares(fails_at=6), tmp_path).warmup(progress=False)
    squares = Squares()
    CachedDataset(squares, tmp_path).warmup(progress=False)
    assert squares.made == [6, 7, 8, 9]


_KILLED = """
import os, signal, sys
import numpy as np
import torch
from torch_xla.utils.cached_dataset import CachedDataset

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 20
    def __getitem__(self, index):
        if index == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([float(index)]) ** 2, {"index": index, "array": np.arange(index)}

CachedDataset(Squares(), sys.argv[1]).warmup(progress=False)
"""


@pytest.mark.multiprocess
def test_a_killed_warmup_goes_on(tmp_path):
    script = write_script(tmp_path, _KILLED)
    child = subprocess.run([sys.executable, script, tmp_path / "cache"], timeout=120)
    assert child.returncode == -signal.SIGKILL
    squares = Squares(20)
    CachedDataset(squares, tmp_path / "cache").warmup(progress=False)
    assert squares.made == list(range(12, 20))
    _check(CachedDataset(None, tmp_path / "cache"), 20)


@pytest.mark.multiprocess
def test_workers(tmp_path):
    CachedDataset(Squares(50), tmp_path, 7).warmup(num_workers=2, progress=False)
    cached = CachedDataset(None, tmp_path)
    _check(cached, 50)
    loader = DataLoader(cached, batch_size=None, num_workers=2, timeout=60)
    assert [sample[1]["index"] for sample in loader] == list(range(50))


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="no cached dataset at .*nothing.*is None"):
        CachedDataset(None, tmp_path / "nothing")
    with pytest.raises(ValueError, match="`max_files_per_folder` of at least 1, got 0"):
        CachedDataset(Squares(), tmp_path, 0)
    CachedDataset(Squares(), tmp_path)
    with pytest.raises(ValueError, match="dataset of 10 samples.*got one of 11"):
        CachedDataset(Squares(11), tmp_path)
    with pytest.raises(FileNotFoundError, match="sample 4 is not cached.*run warmup"):
        CachedDataset(None, tmp_path)[4]
    for content in (b"{", b"[]", b"{}", json.dumps({"version": 99}).encode()):
        (tmp_path / "metadata.json").write_bytes(content)
        with pytest.raises(ValueError, match="metadata.json is corrupted or of another version"):
            CachedDataset(None, tmp_path)


class Harmful:
    """What runs something when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_samples_of_strangers_run_nothing(tmp_path):
    touched = tmp_path / "touched"
    # From one's own dataset it is told at once, not when the folder is read.
    with pytest.raises(RuntimeError, match="sample 0.*weights_only=False"):
        CachedDataset([Harmful(touched)], tmp_path / "own")[0]
    assert not (tmp_path / "own/000000/000000.pt").exists()
    made = CachedDataset([Harmful(touched)], tmp_path / "cache", weights_only=False)
    made.warmup(progress=False)
    for dataset in (None, [1]):
        with pytest.raises(RuntimeError, match="sample 0.*weights_only=False"):
            CachedDataset(dataset, tmp_path / "cache")[0]
    assert not touched.exists()
    CachedDataset(None, tmp_path / "cache", weights_only=False)[0]
    assert touched.exists()


def test_samples_of_bytes_and_numpy_need_no_trust(tmp_path):
    plain = [b"", b"abc", "text", {1, 2}, (1, None, [True]), 2j, bytearray(b"x")]
    CachedDataset(plain, tmp_path / "plain").warmup(progress=False)
    assert list(CachedDataset(None, tmp_path / "plain")) == plain
    samples = [
        {
            "array": np.arange(3.0),
            "number": np.float32(2),
            "integer": np.int64(3),
            "flag": np.True_,
        },
        {"array": np.array(["a", "bc"]), "number": np.ones(2, np.complex64)},
        {"array": np.zeros(0), "times": np.array(["2020-01-01"], "M8[D]")},
    ]
    CachedDataset(samples, tmp_path).warmup(progress=False)
    for sample, found in zip(samples, CachedDataset(None, tmp_path), strict=False):
        for name, value in sample.items():
            np.testing.assert_array_equal(found[name], value)
            assert found[name].dtype == value.dtype
