"""transformers' generate() with a static cache."""

import pytest
from program_testing import run_one, run_without_xla

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "model", ["llama", *(pytest.param(m, marks=pytest.mark.ecosystem) for m in ("gpt2", "t5"))]
)
def test_static_cache(model):
    expected = run_without_xla("generation", "--model", model, "--device", "cpu")
    actual = run_one("generation", "--model", model)
    for name in ("greedy", "longer", "again", "much_longer"):
        assert actual[name] == expected[name]
    # The loop appends to the tokens and asks whether all have ended: one graph for all lengths.
    assert actual["graphs"] <= 6 and actual["graphs_longer"] <= 6
    assert actual["sampled_graphs"] <= 6
    # Neither what is generated nor how it is sampled is part of them.
    assert actual["graphs_again"] == actual["sampled_again_graphs"] == actual["other_graphs"] == 0
    assert actual["sampled"] == actual["sampled_again"] != actual["other"]
