"""What tests of all files use."""

import gc
import os
from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla import _XLAC

# No test finds what another, or an earlier run, has compiled.
os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""


@pytest.fixture(autouse=True)
def no_steps() -> None:
    """No test's loop is cut where one of another was."""
    _XLAC._xla_forget_steps()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """A test draws the same numbers in each run, whatever ran before it."""
    torch.default_generator.manual_seed(0)


@pytest.fixture
def device() -> torch.device:
    """The XLA device, with nothing of another test pending on it."""
    torch_xla.sync(wait=True)
    return xm.xla_device()


@pytest.fixture
def no_failure_left() -> Iterator[None]:
    """What executions of this test failed with is not told to the next one."""
    yield
    gc.collect()
    try:
        torch_xla.sync(wait=True)
    except RuntimeError:
        torch_xla.sync(wait=True)
