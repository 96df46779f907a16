"""What tests of all files use."""

from __future__ import annotations

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm


@pytest.fixture
def device() -> torch.device:
    """The XLA device, with nothing of another test pending on it."""
    torch_xla.sync(wait=True)
    return xm.xla_device()
