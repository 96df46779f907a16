"""What is in device memory, with the line that made it."""

from __future__ import annotations

from process_testing import run_python
from test_explain import line


def test_live_arrays_have_their_lines(tmp_path):
    result, _ = run_python(
        """
        from torch_xla.debug import memory_report
        a = torch.randn(1024, 64).to(device)  # UPLOAD
        b = a * 2  # PRODUCT
        c = [a[i].exp() for i in range(3)]  # ROWS
        torch_xla.sync()
        before = memory_report()
        del b, c
        after = memory_report()
        report(
            arrays=[[x.bytes, x.shape, x.line] for x in before.arrays],
            text=str(before),
            after=[x.line for x in after.arrays],
            short=str(memory_report(0)),
        )
        """,
        tmp_path,
    )
    upload, product, rows = (line(tmp_path, mark) for mark in ("UPLOAD", "PRODUCT", "ROWS"))
    arrays = result["arrays"]
    assert sorted(arrays[:2]) == sorted([[262144, "f32[1024,64]", x] for x in (upload, product)])
    assert arrays.count([256, "f32[64]", rows]) == 3
    assert f"256.0 KiB: 1 x f32[1024,64] made at {upload}" in result["text"]
    assert f"768 B: 3 x f32[64] made at {rows}" in result["text"]
    assert "programs, by the compiler's own statistics" in result["text"]
    assert "torch_xla.sync() at" in result["text"]
    assert upload in result["after"]
    assert product not in result["after"] and rows not in result["after"]
    assert "made at" not in result["short"]


def test_out_of_memory_prints_it(tmp_path):
    result, _ = run_python(
        """
        a = torch.randn(256, 64).to(device)  # HELD
        try:
            huge = a[0, :1].expand(1 << 45) + a[0, 1]
            torch_xla.sync(wait=True)  # SYNC
        except torch.OutOfMemoryError as error:
            report(error=str(error))
        """,
        tmp_path,
    )
    assert "device memory: " in result["error"]
    assert f"made at {line(tmp_path, 'HELD')}" in result["error"]
    assert f"in the program of torch_xla.sync() at {line(tmp_path, 'SYNC')}" in result["error"]
