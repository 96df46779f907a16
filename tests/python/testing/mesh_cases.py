"""Cases that replicas run on xla and on the CPU by Gloo, all of a module in one spawn."""

import contextlib
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from testing.replicas import run_replicas

Case = Callable[[str], Any]


class Cases:
    """The cases of a module: each a function of the device type that returns a tree of tensors.

    A case runs with the same seed on each device type and in each replica.
    """

    def __init__(self) -> None:
        self.functions: dict[str, tuple[Case, tuple[int, ...]]] = {}

    def add(self, name: str, function: Case, replicas: tuple[int, ...] = (2,)) -> None:
        """Adds a case that runs with each of these counts of replicas."""
        assert name not in self.functions, name
        self.functions[name] = (function, replicas)

    def case(self, *replicas: int) -> Callable[[Case], Case]:
        """Decorator that adds a function by its name; with 2 replicas unless told."""

        def decorate(function: Case) -> Case:
            self.add(function.__name__, function, replicas or (2,))
            return function

        return decorate

    def names(self) -> list[tuple[int, str]]:
        """Returns count and name of all that are to run."""
        return [
            (count, name)
            for count in (2, 4)
            for name, (_, counts) in self.functions.items()
            if count in counts
        ]

    def results(self, function: Callable[[], Any]) -> Any:
        """Returns a fixture: by count of replicas, what the cases gave in each.

        ``function`` is what calls :meth:`run_here` in a replica.
        """

        @pytest.fixture(scope="module")
        def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
            folder = tmp_path_factory.mktemp("cases")
            return {
                count: run_replicas(function, count, folder / str(count), timeout=400)
                for count in (2, 4)
            }

        return results

    def run_here(self) -> dict[str, Any]:
        """Runs the cases in this replica; returns by name what each device type gave."""
        dist.init_process_group("xla", init_method="xla://")
        results: dict[str, Any] = {}
        for name, (function, counts) in self.functions.items():
            if dist.get_world_size() in counts:
                results[name] = {kind: _result(function, kind) for kind in ("cpu", "xla")}
        return results


def _plain(value: Any) -> Any:
    if isinstance(value, DTensor):
        return {
            "placements": str(value.placements),
            "local": _plain(value.to_local().detach()),
            "full": _plain(value.full_tensor().detach()),
        }
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    return value


def _result(function: Case, kind: str) -> Any:
    torch.manual_seed(0)
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        try:
            return pytree.tree_map(
                _plain, function(kind), is_leaf=lambda leaf: isinstance(leaf, torch.Tensor)
            )
        except Exception:
            return RuntimeError(traceback.format_exc(limit=-8))


def check(results: list[dict[str, Any]], name: str, tolerance: float = 1e-5) -> None:
    """Asserts that in all replicas xla gave what the CPU gave."""
    for rank, of_rank in enumerate(results):
        found, expected = of_rank[name]["xla"], of_rank[name]["cpu"]
        for kind, value in (("xla", found), ("cpu", expected)):
            assert not isinstance(value, Exception), f"rank {rank} on {kind}: {value}"
        leaves, places = pytree.tree_flatten(expected)
        found_leaves, found_places = pytree.tree_flatten(found)
        assert found_places == places, f"rank {rank}: {found} is not like {expected}"
        for value, other in zip(found_leaves, leaves, strict=True):
            if isinstance(other, torch.Tensor):
                limits = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
                torch.testing.assert_close(value, other, **limits)
            else:
                assert value == other, f"rank {rank}: {value}, on the CPU {other}"
