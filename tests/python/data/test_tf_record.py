"""TFRecord files: reader, writer, datasets."""

import gzip
import pickle
import threading
import zlib

import numpy as np
import pytest
import torch
from testing.gcs import gcs_server
from torch.utils.data import DataLoader

from torch_xla.utils.tf_record_dataset import IndexedTfRecordDataset, TfRecordDataset
from torch_xla.utils.tf_record_reader import STR, TfRecordReader, parse_example
from torch_xla.utils.tf_record_writer import TfRecordWriter, serialize_example

# What TensorFlow 2.21 writes: TFRecordWriter, with the records b"hello", b"" and this Example.
_TF_EXAMPLE = bytes.fromhex(
    "0a6b0a090a05656d70747912000a160a06666c6f617473120c120a0a080000c03f000000c00a1d0a"
    "04696e747312151a130a1101ffffffffffffffffff018080808080200a130a046d616e79120b0a09"
    "0a01610a000a0262630a120a0474657874120a0a080a0668c3a96c6c6f"
)
_TF_FILE = bytes.fromhex(
    "0500000000000000eab2043e68656c6c6fbb1f1c19000000000000000029039807d8ea82a26d0000"
    "00000000003d4de6710a6b0a090a05656d70747912000a160a06666c6f617473120c120a0a080000"
    "c03f000000c00a1d0a04696e747312151a130a1101ffffffffffffffffff018080808080200a130a"
    "046d616e79120b0a090a01610a000a0262630a120a0474657874120a0a080a0668c3a96c6c6f36d3"
    "4f6e"
)

_RECORDS = [b"", b"one", bytes(range(256)) * 100, b"last"]


def _write(path, records, compression=""):
    with TfRecordWriter(path, compression) as writer:
        for record in records:
            writer.write(record)
    return path


def test_tensorflow_s_file(tmp_path):
    (tmp_path / "file").write_bytes(_TF_FILE)
    reader = TfRecordReader(tmp_path / "file", transforms={"text": STR})
    assert reader.read_record() == b"hello"
    assert reader.read_record() == b""
    example = reader.read_example()
    assert set(example) == {"text", "floats", "ints", "many", "empty"}
    assert example["text"] == "héllo"
    assert example["floats"].dtype == torch.float32
    assert example["floats"].tolist() == [1.5, -2.0]
    assert example["ints"].dtype == torch.int64
    assert example["ints"].tolist() == [1, -1, 2**40]
    assert [bytes(value.tolist()) for value in example["many"]] == [b"a", b"", b"bc"]
    assert example["many"][0].dtype == torch.uint8
    assert example["empty"] is None
    assert reader.read_record() is None and reader.read_example() is None


def test_what_is_written_is_tensorflow_s(tmp_path):
    _write(tmp_path / "file", [b"hello", b"", _TF_EXAMPLE])
    assert (tmp_path / "file").read_bytes() == _TF_FILE


@pytest.mark.parametrize("compression", ["", "ZLIB", "GZIP"])
@pytest.mark.parametrize("buffer_size", [1, 1000, 1 << 24])
def test_round_trip(tmp_path, compression, buffer_size):
    path = _write(tmp_path / "file", _RECORDS, compression)
    with TfRecordReader(path, compression, buffer_size) as reader:
        assert [reader.read_record() for _ in range(5)] == [*_RECORDS, None]
    assert list(TfRecordReader(path, compression, buffer_size)) == _RECORDS


def test_compressed_files_are_the_usual_ones(tmp_path):
    plain = _write(tmp_path / "plain", _RECORDS).read_bytes()
    assert zlib.decompress(_write(tmp_path / "z", _RECORDS, "ZLIB").read_bytes()) == plain
    assert gzip.decompress(_write(tmp_path / "g", _RECORDS, "GZIP").read_bytes()) == plain
    (tmp_path / "two").write_bytes(gzip.compress(plain) + gzip.compress(plain))
    assert list(TfRecordReader(tmp_path / "two", "GZIP")) == _RECORDS * 2


def test_examples(tmp_path):
    image = torch.arange(12, dtype=torch.uint8).view(3, 4)
    example = {
        "image": image,
        "array": np.array([1, 2], dtype=np.uint8),
        "label": 7,
        "weights": torch.tensor([[0.5, 1.0]], dtype=torch.float64),
        "name": "naïve",
        "names": ["a", b"b"],
        "ints": [1, -(2**63), 2**63 - 1],
        "flags": [True, False],
        "mixed": [1, 2.5],
        "none": [],
    }
    with TfRecordWriter(tmp_path / "file") as writer:
        writer.write_example(example)
    transforms = {
        "name": STR,
        "names": "STR",
        "image": lambda value: value.view(3, 4),
        "label": int,
        "absent": int,
    }
    read = TfRecordReader(tmp_path / "file", transforms=transforms).read_example()
    assert list(read) == list(example)
    assert torch.equal(read["image"], image)
    assert read["array"].tolist() == [1, 2] and read["array"].dtype == torch.uint8
    assert read["label"] == 7 and type(read["label"]) is int
    assert read["weights"].dtype == torch.float32 and read["weights"].tolist() == [0.5, 1.0]
    assert read["name"] == "naïve" and read["names"] == ["a", "b"]
    assert read["ints"].tolist() == example["ints"]
    assert read["flags"].tolist() == [1, 0] and read["flags"].dtype == torch.int64
    assert read["mixed"].tolist() == [1.0, 2.5]
    assert read["none"].shape == (0,)
    again = parse_example(serialize_example(example), transforms)
    assert torch.equal(again["image"], image) and again["names"] == ["a", "b"]


def test_tensors_own_their_memory(tmp_path):
    with TfRecordWriter(tmp_path / "file") as writer:
        for number in range(50):
            writer.write_example({"x": bytes([number]) * 100, "y": [float(number)] * 100})
    reader = TfRecordReader(tmp_path / "file", buffer_size=1)
    examples = list(iter(reader.read_example, None))
    for number, example in enumerate(examples):
        assert example["x"].eq(number).all() and example["y"].eq(number).all()


# ---------------------------------------------------------------- errors


def test_wrong_arguments(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        TfRecordReader(tmp_path / "nothing")
    path = _write(tmp_path / "file", _RECORDS)
    with pytest.raises(ValueError, match="'', 'ZLIB' or 'GZIP', got 'LZ4'"):
        TfRecordReader(path, "LZ4")
    with pytest.raises(ValueError, match="'', 'ZLIB' or 'GZIP', got 'zip'"):
        TfRecordWriter(path, "zip")
    with pytest.raises(ValueError, match="`buffer_size` above 0, got 0"):
        TfRecordReader(path, buffer_size=0)
    with pytest.raises(TypeError, match="transform of 'a' to be a callable or STR, got 3"):
        TfRecordReader(path, transforms={"a": 3})
    with TfRecordWriter(tmp_path / "other") as writer:
        with pytest.raises(TypeError, match="record of bytes, got str"):
            writer.write("text")
        with pytest.raises(TypeError, match="bytes, text or numbers under 'a', got object"):
            writer.write_example({"a": object()})
        with pytest.raises(TypeError, match="complex"):
            writer.write_example({"a": 1j})
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"")


def _error(path, compression="", call="read_record"):
    reader = TfRecordReader(path, compression)
    with pytest.raises(RuntimeError) as caught:
        while getattr(reader, call)() is not None:
            pass
    with pytest.raises(RuntimeError):
        getattr(reader, call)()
    return str(caught.value)


def test_corrupted_files(tmp_path):
    whole = _write(tmp_path / "whole", [b"first", b"second"]).read_bytes()
    bad = tmp_path / "bad"
    bad.write_bytes(whole[:-1])
    assert f"{bad}: record 1 at offset 21: the file ends within the record" in _error(bad)
    bad.write_bytes(whole[:25])
    assert "record 1 at offset 21: the file ends within the record's header" in _error(bad)
    bad.write_bytes(whole.replace(b"second", b"secund"))
    assert "record 1 at offset 21: the record's 6 bytes are corrupted: expected CRC" in _error(bad)
    bad.write_bytes(b"\x01" + whole[1:])
    assert "record 0 at offset 0: the length is corrupted, or this is no TFRecord" in _error(bad)
    bad.write_bytes(b"\n" * 100)
    assert "no TFRecord file" in _error(bad)
    (tmp_path / "empty").write_bytes(b"")
    assert TfRecordReader(tmp_path / "empty").read_record() is None


@pytest.mark.parametrize("compression", ["ZLIB", "GZIP"])
def test_corrupted_compressed_files(tmp_path, compression):
    whole = _write(tmp_path / "whole", _RECORDS, compression).read_bytes()
    bad = tmp_path / "bad"
    bad.write_bytes(whole[:-3])
    text = f"{bad}: the {compression} stream is truncated at compressed offset {len(whole) - 3}"
    assert text in _error(bad, compression)
    bad.write_bytes(_write(tmp_path / "plain", _RECORDS).read_bytes())
    assert "corrupted or has another compression" in _error(bad, compression)
    bad.write_bytes(whole[:20] + b"\xff" * 20 + whole[40:])
    assert str(bad) in _error(bad, compression)


def test_records_that_are_no_examples(tmp_path):
    path = _write(tmp_path / "file", [b"", b"not a protocol buffer"])
    reader = TfRecordReader(path)
    assert reader.read_example() == {}
    with pytest.raises(RuntimeError, match="record 1 at offset 16: no valid tf.train.Example: at"):
        reader.read_example()
    assert reader.read_example() is None  # The file itself is whole.
    with pytest.raises(RuntimeError, match="at byte"):
        parse_example(b"nonsense")


def test_text_that_is_none(tmp_path):
    with TfRecordWriter(tmp_path / "file") as writer:
        writer.write_example({"a": b"\xff"})
        writer.write_example({"a": 1})
    reader = TfRecordReader(tmp_path / "file", transforms={"a": STR})
    with pytest.raises(RuntimeError, match="record 0 at offset 0: text is not valid UTF-8"):
        reader.read_example()
    with pytest.raises(TypeError, match="'a' has torch.int64 values"):
        reader.read_example()


def test_unfinished_files_do_not_appear(tmp_path):
    _write(tmp_path / "file", [b"old"])
    with pytest.raises(RuntimeError, match="stop"), TfRecordWriter(tmp_path / "file") as writer:
        writer.write(b"new")
        raise RuntimeError("stop")
    assert list(TfRecordReader(tmp_path / "file")) == [b"old"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_threads_share_a_reader(tmp_path):
    records = [str(number).encode() * 50 for number in range(5000)]
    reader = TfRecordReader(_write(tmp_path / "file", records), buffer_size=256)
    read: list[bytes] = []
    threads = [threading.Thread(target=lambda: read.extend(reader)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(read) == sorted(records)


def test_gcs():
    pytest.importorskip("gcp_storage_emulator")
    with gcs_server():
        _write("gs://bucket/a-0.tfrecord", _RECORDS, "GZIP")
        _write("gs://bucket/a-1.tfrecord", [b"more"], "GZIP")
        assert list(TfRecordReader("gs://bucket/a-0.tfrecord", "GZIP")) == _RECORDS
        dataset = TfRecordDataset("gs://bucket/a-*.tfrecord", "GZIP", decode=False)
        assert list(dataset) == [*_RECORDS, b"more"]
        with pytest.raises(FileNotFoundError, match="gs://bucket/nothing"):
            TfRecordReader("gs://bucket/nothing")


# ---------------------------------------------------------------- datasets


@pytest.fixture
def shards(tmp_path):
    """Five files of 20 examples whose feature ``n`` counts from 0."""
    for shard in range(5):
        with TfRecordWriter(tmp_path / f"shard-{shard}") as writer:
            for number in range(20):
                writer.write_example({"n": 20 * shard + number, "name": f"{number}"})
    return str(tmp_path / "shard-*")


def _numbers(samples):
    return [int(sample["n"]) for sample in samples]


def test_dataset_in_order(shards):
    assert _numbers(TfRecordDataset(shards)) == list(range(100))
    first = next(iter(TfRecordDataset(shards, transforms={"n": int, "name": STR})))
    assert first == {"n": 0, "name": "0"}
    dataset = TfRecordDataset(shards, transforms={"n": lambda n: n[0], "name": STR})
    batch = next(iter(DataLoader(dataset, batch_size=4)))
    assert batch["n"].tolist() == [0, 1, 2, 3] and batch["name"] == ["0", "1", "2", "3"]


def test_dataset_shuffles(shards):
    dataset = TfRecordDataset(shards, shuffle_buffer=30, seed=1)
    first = _numbers(dataset)
    assert sorted(first) == list(range(100)) and first != list(range(100))
    assert _numbers(dataset) == first
    dataset.set_epoch(1)
    second = _numbers(dataset)
    assert sorted(second) == list(range(100)) and second != first
    assert _numbers(TfRecordDataset(shards, shuffle_buffer=30, seed=2)) != first


@pytest.mark.parametrize("replicas", [1, 2, 5, 7])
@pytest.mark.parametrize("shuffle_buffer", [0, 10])
def test_replicas_share_the_records(shards, replicas, shuffle_buffer):
    parts = [
        _numbers(
            TfRecordDataset(
                shards, shuffle_buffer=shuffle_buffer, num_replicas=replicas, replica=replica
            )
        )
        for replica in range(replicas)
    ]
    assert sorted(number for part in parts for number in part) == list(range(100))
    assert max(map(len, parts)) - min(map(len, parts)) <= 20


@pytest.mark.multiprocess
@pytest.mark.parametrize("workers", [2, 7])
def test_workers_share_the_records(shards, workers):
    dataset = TfRecordDataset(shards, transforms={"n": int, "name": STR}, shuffle_buffer=10)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=workers, persistent_workers=True, timeout=60
    )
    orders = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        orders.append(_numbers(loader))
        assert sorted(orders[-1]) == list(range(100))
    assert orders[0] != orders[1]


def test_indexed_dataset(shards, tmp_path):
    dataset = IndexedTfRecordDataset(shards, transforms={"n": int, "name": STR})
    assert len(dataset) == 100
    assert [dataset[index]["n"] for index in (99, 0, 20, 19, -1, 57)] == [99, 0, 20, 19, 99, 57]
    with pytest.raises(IndexError):
        dataset[100]
    assert _numbers(pickle.loads(pickle.dumps(dataset))) == list(range(100))
    _write(tmp_path / "records", _RECORDS)
    (tmp_path / "empty").write_bytes(b"")
    dataset = IndexedTfRecordDataset([tmp_path / "empty", tmp_path / "records"], decode=False)
    assert [dataset[index] for index in range(4)] == _RECORDS


def test_indexed_dataset_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        IndexedTfRecordDataset(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no file matches the pattern"):
        IndexedTfRecordDataset(str(tmp_path / "nothing*"))
    with pytest.raises(ValueError, match="expected a local path, got gs://bucket/file"):
        IndexedTfRecordDataset("gs://bucket/file")
    whole = _write(tmp_path / "whole", [b"first", b"second"]).read_bytes()
    bad = tmp_path / "bad"
    bad.write_bytes(whole[:-1])
    with pytest.raises(RuntimeError, match="bad: record 1 at offset 21: expected it to end at 43"):
        IndexedTfRecordDataset(bad)
    bad.write_bytes(gzip.compress(whole))
    with pytest.raises(RuntimeError, match="bad: record 0 at offset 0: expected the length of"):
        IndexedTfRecordDataset(bad)
    bad.write_bytes(whole.replace(b"second", b"secund"))
    dataset = IndexedTfRecordDataset(bad, decode=False)
    assert dataset[0] == b"first"
    with pytest.raises(RuntimeError, match="bad: record 1 at offset 21: its bytes are corrupted"):
        dataset[1]
    with pytest.raises(RuntimeError, match="bad: record 0 at offset 0: no valid tf.train.Example"):
        IndexedTfRecordDataset(bad)[0]


def test_dataset_errors(shards):
    with pytest.raises(ValueError, match="`replica` from 0 to 1, got 2"):
        TfRecordDataset(shards, num_replicas=2, replica=2)
    with pytest.raises(ValueError, match="`shuffle_buffer` of at least 0, got -1"):
        TfRecordDataset(shards, shuffle_buffer=-1)
    with pytest.raises(ValueError, match="at least one path"):
        TfRecordDataset([])
