"""A part of number_sweep.py (`make conformance` runs all of it)."""

from __future__ import annotations

import pytest
from number_sweep import LIMIT, sweep

OPERATORS = (
    "add|addcmul|clamp|div|float_power|lerp|pow|remainder|sub|nan_to_num|masked_fill|fill|full_like|"
    "new_full|index_fill|addmm|logit|histc|cdist|linalg_norm|nn_functional_(elu|leaky_relu|"
    "huber_loss|smooth_l1_loss|layer_norm|threshold|softplus)"
)


@pytest.mark.parametrize("values", [6])
def test_numbers_share_programs(values: int) -> None:
    results, bad = sweep(rf"^({OPERATORS})$", values)
    assert len(results) > 20
    assert not bad, {name: results[name] for name in bad}
    assert LIMIT == 3
