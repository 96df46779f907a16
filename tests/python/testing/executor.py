"""What the executor did, in numbers; a small network, and a step that fails."""

import torch

import torch_xla.debug.metrics as met


def count(name: str) -> int:
    return met.counter_value(name) or 0


def compiles() -> int:
    return count("UncachedCompile")


def executions() -> int:
    return count("UncachedCompile") + count("CachedCompile")


def executed_on_device() -> int:
    data = met.metric_data("ExecuteTime")
    return data[0] if data else 0


def model(device: torch.device, width: int) -> torch.nn.Module:
    torch.manual_seed(width)
    net = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))
    return net.to(device)


TOO_LARGE = 10**5  # squared, in floats: 40 GB


def out_of_memory(device: torch.device) -> torch.Tensor:
    """More than there is, made in the step itself: fails on the worker, not here."""
    column = torch.arange(float(TOO_LARGE)).to(device)
    return column[:, None] * torch.full((1, 10**10), 2.0, device=device)
