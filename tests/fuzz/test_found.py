"""What the random programs found, once: each as few lines as it takes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import programs  # noqa: E402

import torch_xla  # noqa: E402


def agrees(*lines: str) -> None:
    """Runs the lines on the CPU and on xla, whole and line by line."""
    reference = programs.environment("cpu", "cpu")
    errors = [programs.execute(line, reference).split(":")[0] for line in lines]
    program = programs.Program(list(lines), errors)
    devices = ("xla:0", "xla:0")
    env = programs.environment(*devices, torch_xla.sync)
    assert not programs.check(program, env, program.run(env))
    assert not programs.blame(program, devices, torch_xla.sync)


def test_complex_functions_at_their_cuts():
    signed = "torch.tensor([-2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0], dtype=torch.float64)"
    agrees(
        f"v0 = {signed}.to(device)",
        "v1 = torch.complex(v0.reshape(-1, 1).expand(8, 8), v0.expand(8, 8))",
        "v2 = torch.stack([torch.sqrt(v1), torch.acos(v1), torch.acosh(v1)])",
        "v3 = torch.stack([torch.asin(v1), torch.asinh(v1), torch.atan(v1)])",
    )


def test_conjugate_in_place():
    agrees(
        "v0 = make((3, 2), torch.complex64, 8, device)",
        "v1 = v0.conj_physical_()",
        "v2 = make((3,), torch.float32, 8, device).conj_physical_()",
    )


def test_margin_losses_of_nan():
    agrees(
        "v0 = torch.tensor([[1.0, 2.0, float('nan')], [0.5, 1.0, 0.0]], device=device)",
        "v1 = F.multi_margin_loss(v0, torch.tensor([2, 0], device=device), reduction='none')",
        "v2 = torch.tensor([[2, -1, 0], [0, 1, -1]], device=device)",
        "v3 = F.multilabel_margin_loss(v0, v2, reduction='none')",
    )
