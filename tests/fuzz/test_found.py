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


def test_complex_powers_and_quotients():
    numbers = "torch.tensor([float('-inf'), -2.0, -0.0, 0.0, 1.0, 3.0, float('inf'), float('nan')])"
    agrees(
        f"v0 = {numbers}.to(device)",
        "v1 = torch.complex(v0.reshape(-1, 1).expand(8, 8), v0.expand(8, 8))",
        "v2 = v1 / v1.T.contiguous()",
        "v3 = v1 / 0",
        "v4 = v1 / torch.complex(-0.0 * v0[3], v0[2])",
        "v5 = torch.pow(v1, torch.complex(v0[3], v0[3]))",
        "v6 = v1[1:6, 1:6] ** 0.5",
        "v7 = v1[1:6, 1:6] ** -0.5",
        "v8 = v1[1:6, 1:6].rsqrt()",
    )


def test_powers_of_large_exponents():
    values = "torch.tensor([0, 1, 2, 3, 63, 64, 65, 126, 127, 128, 253, 254, 255])"
    agrees(
        f"v0 = {values}.to(torch.uint8).to(device)",
        f"v1 = {values}.to(device) * 2**50 // 2**49",
        "v2 = 3 ** v0",
        "v3 = v0.reshape(-1, 1) ** v0",
        "v4 = v1.reshape(-1, 1) ** v1",
        "v5 = v0.to(torch.int8).clamp(min=0).reshape(-1, 1) ** v0.to(torch.int8)",
        "v6 = torch.tensor([-3, -2, -1, 0, 1, 2], device=device).reshape(-1, 1) ** -v1",
        "v7 = torch.tensor(7, device=device) ** torch.tensor(66, device=device)",
    )


def test_zeta_at_infinity():
    agrees(
        "v0 = torch.tensor([1.0, 2.0, float('inf'), float('nan'), 0.0, 60.0]).to(device)",
        "v1 = torch.tensor([0.0, 1.0, 2.0, float('inf'), float('nan'), 1e30]).to(device)",
        "v2 = torch.special.zeta(v0.reshape(-1, 1), v1)",
    )


def test_complex_reductions_of_little():
    agrees(
        "v0 = make((3, 3, 0), torch.complex64, 345, device)",
        "v1 = torch.amax(v0, -3)",
        "v2 = torch.var(make((2,), torch.complex64, 305, device), -1, correction=2)",
    )
