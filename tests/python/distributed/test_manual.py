"""Manual regions: shard_map, its collectives, and both writers of shardings."""

import functools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from testing.processes import start_python
from testing.spmd import in_spmd

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
from torch_xla import _XLAC

pytestmark = pytest.mark.multiprocess


def by_both(function):
    """Runs a test in SPMD mode with each writer of shardings."""

    @functools.wraps(function)
    def wrapper(shardy):
        function._by[shardy]()

    function._by = {}
    return wrapper


def mesh_of(*sizes: int, names: str = "xy") -> xs.Mesh:
    return xs.Mesh(range(4), sizes, tuple(names[: len(sizes)]))


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)


def pair(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    host = torch.randn(shape)
    return host.clone().requires_grad_(), host.to("xla").requires_grad_()
