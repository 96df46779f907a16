"""Memory of a CPU device that is freed stays for the next step."""

import pytest
from testing.processes import run_python

import torch_xla.runtime as xr

pytestmark = pytest.mark.skipif(xr.device_type() != "CPU", reason="the plugin's own memory")


RESIDENT = """
    import resource

    def resident():  # MiB
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() >> 20
"""


def steps(rows: int, step: str) -> str:
    """Ten of `step`, which says whether it is right, of a square matrix `x` with so many rows; what
    faulted in each."""
    return f"""
    import time
    {RESIDENT}
    def faulted():  # MiB
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize() >> 20

    x = torch.randn({rows}, {rows}).to(device)
    step = {step}
    for _ in range(3):
        step()
    start = faulted()
    for _ in range(10):
        assert step()
    report(faulted=(faulted() - start) / 10)
    """


SOFTMAX = "lambda: torch_xla.sync() or abs(x.softmax(0).softmax(1).sum().item() - 4096) < 1"
STEPS = steps(4096, SOFTMAX)  # 64 MiB


def test_code_of_the_compiler_does_not_stay(tmp_path):
    """Neither what making a client uses of the plugin's library nor what a longer compile does."""
    result, _ = run_python(
        """
        import re

        def mapped():  # MiB of each read-only part of the plugin's library
            name, sizes = "", []
            with open("/proc/self/smaps") as file:
                for line in file:
                    if found := re.match(r"[0-9a-f]+-[0-9a-f]+ (....) .{8,} \\d+ +(.*)", line):
                        permissions, name = found.groups()
                    elif line.startswith("Rss:") and "pjrt" in name and "w" not in permissions:
                        sizes.append(int(line.split()[1]) >> 10)
            return sizes

        x = torch.randn(32, 32).to(device)
        sizes = [mapped()]
        for i in range(30):
            x = (x @ x).softmax(-1).cumsum(i % 2) + i
        x.cpu()
        sizes.append(mapped())
        report(sizes=sizes, compiled=met.metric_data("CompileTime")[1])
        """,
        tmp_path,
        XLA_PERSISTENT_CACHE_PATH="",
    )
    created, compiled = result["sizes"]
    assert len(created) >= 2
    assert sum(created) < 16
    assert result["compiled"] > 100e6
    assert sum(compiled) < 32


def test_pages_of_temporaries_do_not_fault_again(tmp_path):
    result, _ = run_python(STEPS, tmp_path)
    assert result["faulted"] < 16
    # A test of this test: where malloc is the user's, it stays as it is.
    pages = "/sys/kernel/mm/transparent_hugepage/enabled"
    with open(pages) as file:
        if "[always]" in file.read():
            return
    result, _ = run_python(STEPS, tmp_path, MALLOC_MMAP_THRESHOLD_="33554432")
    assert result["faulted"] > 64


def test_pages_of_smaller_results_do_not_fault_again(tmp_path):
    """Where malloc would unmap the heap of a thread's arena as soon as it is empty."""
    step = "lambda: (-x, torch_xla.sync(wait=True))"
    result, _ = run_python(steps(1448, step), tmp_path)  # 8 MiB
    assert result["faulted"] < 1


def test_a_block_that_fits_nothing_gives_up_as_much(tmp_path):
    """What is kept does not add to what is needed; empty_cache() gives it back, too."""
    result, _ = run_python(
        STEPS
        + """
    def emptied():  # A program's memory is freed a little after its result is there.
        sizes = []
        for _ in range(10):
            torch.xla.empty_cache()
            sizes.append(resident())
            time.sleep(0.1)
        return min(sizes)

    before = emptied()
    step()
    kept = resident()
    again = emptied()
    step()
    large = torch.ones(16384, 8192, device=device)  # 512 MiB
    torch_xla.sync(wait=True)
    with_large = resident()
    del large
    report(kept=kept - before, emptied=again - before, large=with_large - before)
    """,
        tmp_path,
    )
    assert result["kept"] >= 64
    assert result["emptied"] < 32
    assert result["large"] < 512 + 64


def test_steps_do_not_add_to_what_is_kept(tmp_path):
    """What the library frees of memory that it had otherwise is not kept, nor a block for each time
    that two threads asked at once."""
    result, _ = run_python(
        RESIDENT
        + """
    from torch.nn.functional import cross_entropy

    model = torch.nn.LSTM(64, 128, 2, batch_first=True).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(16, 32, 64).to(device)
    target = torch.randint(128, (16,)).to(device)
    sizes = []
    for i in range(400):
        optimizer.zero_grad()
        cross_entropy(model(x)[0][:, -1], target).backward()
        optimizer.step()
        torch_xla.sync(wait=True)
        if i in (60, 399):
            sizes.append(resident())
    report(grown=sizes[1] - sizes[0])
        """,
        tmp_path,
    )
    assert result["grown"] < 18
