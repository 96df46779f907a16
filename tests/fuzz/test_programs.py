"""Random programs with fixed seeds; `make fuzz-programs` runs as many as one likes."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fuzz  # noqa: E402
import operators  # noqa: E402
import programs  # noqa: E402
import sizes  # noqa: E402
import surfaces  # noqa: E402

_BATCH = 20


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", range(0, 400, 100))
def test_programs_agree_with_the_cpu(start):
    worker = fuzz.Worker(timeout=240)
    try:
        found = [
            failure
            for first in range(start, start + 100, _BATCH)
            for failure in worker.run(list(range(first, first + _BATCH)), length=11)
        ]
    finally:
        worker.close()
    assert not found, "\n\n".join(f"{said}\n{test}" for _, said, test in found)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_programs_of_several_sizes_agree_with_the_cpu():
    worker = fuzz.Worker(240, sizes.MODE)
    try:
        found = worker.run([*range(30), 159], sizes.LENGTH)
    finally:
        worker.close()
    assert not found, "\n\n".join(f"{said}\n{test}" for _, said, test in found)


def test_a_program_gets_other_sizes():
    program = programs.Program(
        ["v0 = make((2, 3), torch.float32, 1, device)", "v1 = v0.reshape(6)", "v2 = v0.sum(1)"],
        [""] * 3,
    )
    first, *others = sizes.steps(program, 0)
    assert first.lines == [program.lines[0], program.lines[2]]
    assert len({step.lines[0] for step in others} | {first.lines[0]}) == 1 + len(others)


def test_a_fault_of_a_surface_is_found(monkeypatch):
    def wrong(called):
        return {name: value + 1 for name, value in called.function(*called.inputs()).items()}

    monkeypatch.setitem(surfaces.SURFACES, "wrong", wrong)
    monkeypatch.setattr(surfaces, "drawn", lambda seed: "wrong")
    seed, said, test = surfaces.failure(3, 6, ("xla:0", "xla:0"))
    assert seed == 3 and said.startswith("wrong: ") and " = make(" in test


def test_a_wrong_line_is_found_and_made_short():
    program = programs.Program(
        [
            "v0 = make((3,), torch.float32, 1, device)",
            "v1 = v0 + 1",
            "v2 = torch.ones(2, device=device)",
            "v3 = v1 * (2 if kind == 'xla' else 3)",
            "v4 = v2 + 1",
        ],
        [""] * 5,
    )
    with pytest.raises(AssertionError, match="v3"):
        programs.agrees(*program.lines)
    devices = ("xla:0", "xla:0")
    assert programs.blame(program, devices, lambda: None).startswith("v3 = ")
    short = programs.shrink(program, lambda p: bool(programs.blame(p, devices, lambda: None)))
    assert [line.split(" =")[0] for line in short.lines] == ["v0", "v1", "v3"]


def test_programs_use_many_operators():
    names = {line for seed in range(300) for line in programs.write(seed).lines}
    assert len(operators.ALL) > 600 and len(names) > 1500
