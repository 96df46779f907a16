"""torch_xla.utils.gcsfs against a Google Cloud Storage server, on disk, and in fsspec's memory."""

import io
import time
from unittest import mock

import fsspec
import pytest
from testing.gcs import FaultyProxy, gcs_server

from torch_xla.utils import gcsfs

pytest.importorskip("gcsfs")
pytest.importorskip("gcp_storage_emulator")


@pytest.fixture(scope="module")
def server():
    with gcs_server() as proxy:
        yield proxy


@pytest.fixture
def bucket(server: FaultyProxy):
    server.faults.clear()
    server.requests.clear()
    gcsfs.rmtree("gs://bucket/test")
    return "gs://bucket/test"


@pytest.fixture(params=["gs", "local", "memory"])
def folder(request, tmp_path):
    if request.param == "gs":
        yield request.getfixturevalue("bucket")
    elif request.param == "local":
        yield str(tmp_path)
    else:
        fsspec.filesystem("memory").store.clear()
        yield "memory://folder"
        fsspec.filesystem("memory").store.clear()


def test_every_call(folder):
    gcsfs.generic_write("text: é", f"{folder}/a/one.txt", makedirs=True)
    gcsfs.write(f"{folder}/a/two.bin", bytes(range(256)) * 4)
    gcsfs.generic_write(io.BytesIO(b"from a file"), f"{folder}/b/c/three.txt", makedirs=True)
    gcsfs.write(f"{folder}/four.txt", io.StringIO("from a text file"))

    assert gcsfs.generic_read(f"{folder}/a/one.txt") == "text: é".encode()
    assert gcsfs.read(f"{folder}/a/two.bin") == bytes(range(256)) * 4
    assert gcsfs.read(f"{folder}/b/c/three.txt") == b"from a file"
    with gcsfs.open(f"{folder}/a/one.txt") as file:
        assert file.read() == "text: é"
    with gcsfs.open(f"{folder}/latin.txt", "w", encoding="latin-1") as file:
        file.write("é\nè")
    assert gcsfs.read(f"{folder}/latin.txt") == b"\xe9\n\xe8"
    with gcsfs.generic_open(f"{folder}/latin.txt", "r", encoding="latin-1") as file:
        assert [*file] == ["é\n", "è"]
    with gcsfs.generic_open(f"{folder}/a/two.bin", "rb") as file:
        file.seek(-3, io.SEEK_END)
        assert file.read() == b"\xfd\xfe\xff"

    names = [blob.path.split(folder.split("://")[-1])[1] for blob in gcsfs.list(folder)]
    assert names == ["/a/one.txt", "/a/two.bin", "/b/c/three.txt", "/four.txt", "/latin.txt"]
    assert [blob.size for blob in gcsfs.list(f"{folder}/a")] == [8, 1024]
    assert [blob.size for blob in gcsfs.list(f"{folder}/a/*.bin")] == [1024]
    assert gcsfs.list(f"{folder}/nothing") == []
    for blob in gcsfs.list(folder):
        assert gcsfs.stat(blob.path).size == blob.size == len(gcsfs.read(blob.path))

    blob = gcsfs.stat(f"{folder}/a/two.bin")
    assert blob.size == 1024 and not blob.isdir
    if not folder.startswith("memory"):
        assert abs(blob.mtime_ns - time.time_ns()) < 600e9

    gcsfs.remove(f"{folder}/four.txt")
    gcsfs.rmtree(f"{folder}/*.txt")
    assert [blob.size for blob in gcsfs.list(folder)] == [8, 1024, 11]
    gcsfs.rmtree(f"{folder}/a")
    assert [blob.size for blob in gcsfs.list(folder)] == [11]
    gcsfs.rmtree(f"{folder}/a")  # Nothing there any more.


@pytest.mark.parametrize("call", [gcsfs.read, gcsfs.stat, gcsfs.remove, gcsfs.open])
def test_missing(folder, call):
    with pytest.raises(FileNotFoundError, match=f"{folder}/nothing"):
        call(f"{folder}/nothing")


def test_missing_bucket(bucket):
    with pytest.raises(FileNotFoundError, match="gs://elsewhere/file"):
        gcsfs.read("gs://elsewhere/file")
    with pytest.raises(ValueError, match="gs://BUCKET_NAME/PATH"):
        gcsfs.read("gs://")


def test_is_gcs_path():
    assert gcsfs.is_gcs_path("gs://bucket/a")
    assert not gcsfs.is_gcs_path("/gs://bucket") and not gcsfs.is_gcs_path("s3://bucket/a")


def test_wrong_content(tmp_path):
    with pytest.raises(TypeError, match="str, bytes or a file object, got int"):
        gcsfs.write(tmp_path / "file", 7)


@pytest.mark.parametrize("mode, text", [("w", "new"), ("wb", b"new")])
def test_a_write_that_raises_leaves_the_old_object(bucket, mode, text):
    gcsfs.write(f"{bucket}/file", b"old")
    with pytest.raises(RuntimeError, match="stop"), gcsfs.open(f"{bucket}/file", mode) as file:
        file.write(text)
        raise RuntimeError("stop")
    assert gcsfs.read(f"{bucket}/file") == b"old"


@pytest.mark.parametrize("faults", [["drop"], ["busy", "busy"], ["cut"], ["busy", "cut", "drop"]])
def test_reads_go_on_after_faults(server, bucket, faults):
    content = bytes(range(256)) * 1000
    gcsfs.write(f"{bucket}/file", content)
    server.faults.extend(faults)
    assert gcsfs.read(f"{bucket}/file") == content
    assert not server.faults


@pytest.mark.parametrize("fault", ["drop", "busy"])
def test_writes_go_on_after_faults(server, bucket, fault):
    server.faults.append(fault)
    gcsfs.write(f"{bucket}/file", b"content")
    assert not server.faults
    assert gcsfs.read(f"{bucket}/file") == b"content"


def test_gcsfs_is_named_where_it_is_missing():
    with (
        mock.patch("fsspec.core.url_to_fs", side_effect=ImportError("no gcsfs")),
        pytest.raises(ImportError, match="pip install gcsfs"),
    ):
        gcsfs.read("gs://bucket/file")
