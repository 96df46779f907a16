"""Fourier transforms: every kind, dimension, normalization and parity."""

import pytest
import torch
from testing.ops import C64, C128, F32, F64, I64, check_many, rand

ONE = (torch.fft.fft, torch.fft.ifft, torch.fft.hfft)
ONE_REAL = (torch.fft.rfft, torch.fft.ihfft)
NORMS = ("forward", "backward", "ortho")


@pytest.mark.parametrize(("real", "complex_"), [(F32, C64), (F64, C128)])
def test_one_dimension(real: torch.dtype, complex_: torch.dtype) -> None:
    cases = []
    for n in (1, 4, 5, 7):
        a, z = rand(3, n, dtype=real), rand(3, n, dtype=complex_)
        for norm in NORMS:
            options = {"norm": norm}
            cases += [(f, (a,), options) for f in (*ONE[:2], *ONE_REAL)]
            cases += [(f, (z,), options) for f in ONE[:2]]
            cases += [(torch.fft.irfft, (z,), {**options, "n": n}) for n in (1, 6, 7)]
        cases += [(torch.fft.fft, (z,), {"n": 6, "dim": 0}), (torch.fft.rfft, (a,), {"dim": 0})]
    check_many(cases, rtol=1e-4 if real == F32 else 1e-9, atol=1e-5 if real == F32 else 1e-9)


def test_several_dimensions_and_gradients() -> None:
    a, z = rand(2, 3, 4, 5, dtype=F64), rand(2, 3, 4, 5, dtype=C128)
    cases = [
        (torch.fft.fftn, (z,)),
        (torch.fft.ifftn, (z,), {"norm": "ortho"}),
        (torch.fft.fft2, (a,)),
        (torch.fft.rfftn, (a,)),
        (torch.fft.rfft2, (a,), {"dim": (0, 2)}),
        (torch.fft.irfftn, (z,), {"s": (4, 9), "dim": (1, 3)}),
        (torch.fft.irfft2, (z,), {"norm": "forward"}),
        (torch.fft.hfft2, (z,)),
        (torch.fft.ihfft2, (a,)),
    ]
    check_many(cases, grad=True)


def test_integers_no_dimension_and_short_time() -> None:
    cases = [
        (torch.fft.fft, (rand(5, dtype=I64),)),
        (torch.fft.fftn, (rand(3, dtype=C64),), {"dim": ()}),
        (
            lambda x: torch.stft(x, 8, window=torch.hann_window(8).to(x), return_complex=True),
            (rand(2, 40),),
        ),
    ]
    check_many(cases, rtol=1e-4, atol=1e-5)
