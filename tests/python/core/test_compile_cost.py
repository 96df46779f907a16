"""What compiling costs: how many kernels a program has."""

import re
from pathlib import Path

import torch
from process_testing import python_output

import torch_xla

# Updates alike, each with numbers of its own, then what XLA made of them.
UPDATES = """
import torch, torch_xla
def update(p, i):
    return (p * (2.5 + i)).sin() + p.int() * (i + 3)
cpu = [torch.full((3, 5), 1.0 + i) for i in range(24)]
xla = [p.to("xla") for p in cpu]
torch_xla.sync()
for _ in range(3):  # until the integers are parameters, too
    results = [update(p, i + _) for i, p in enumerate(xla)]
    torch_xla.sync()
for i, (p, result) in enumerate(zip(cpu, results)):
    torch.testing.assert_close(result.cpu(), update(p, i + 2))
"""


def kernels(folder: Path) -> list[int]:
    """How many each program has, in the order in which they were compiled."""
    programs: dict[str, int] = {}
    for file in folder.glob("module_*.o"):
        number = re.match(r"module_(\d+)", file.name)
        assert number
        programs[number[1]] = programs.get(number[1], 0) + 1
    return [programs[number] for number in sorted(programs)]


def test_kernels_alike_but_for_their_numbers_are_one(tmp_path: Path) -> None:
    made = {}
    for kind in "1", "0":
        folder = tmp_path / kind
        python_output(
            UPDATES,
            XLA_CPU_KERNELS=kind,
            XLA_PERSISTENT_CACHE_PATH="",
            XLA_FLAGS=f"--xla_dump_to={folder}",
        )
        made[kind] = kernels(folder)
    assert max(made["1"]) <= 3
    assert max(made["0"]) >= 24  # or this counts something else


def test_a_programs_text_for_others_has_no_calls_of_ours(device: torch.device) -> None:
    results = [torch.ones(3, device=device) * (1.5 + i) for i in range(20)]
    text = torch_xla._XLAC._get_xla_tensors_hlo(results)
    assert "custom_call" not in text and "stablehlo.slice" in text
