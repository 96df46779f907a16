"""accelerate: loops of one's own, alone and launched, saved and restored."""

import pytest
from program_testing import assert_same, run, run_one, run_without_xla

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(600)]


def test_a_loop_trains_as_on_the_cpu(tmp_path):
    arguments = ("--output", str(tmp_path))
    expected = run_without_xla("accelerator", *arguments)
    actual = run_one("accelerator", *arguments)
    assert (actual["device"], expected["device"]) == ("xla", "cpu")
    assert_same(actual, expected, "losses", "logits", rel=1e-4)
    assert actual["seen"] == list(range(13))  # The short last batch, too, once.
    assert actual["restored"]
    assert actual["local_main"]
    # The schedule's rates are no part of the graph.
    assert actual["compiles"][-1] == actual["compiles"][1]


def test_bf16_and_accumulated_gradients(tmp_path):
    arguments = ("--output", str(tmp_path), "--bf16", "--accumulate", "2")
    actual = run_one("accelerator", *arguments)
    assert_same(actual, run_without_xla("accelerator", *arguments, "--cpu"), "losses", rel=2e-2)
    assert actual["compiles"][-1] == actual["compiles"][3]


def test_a_compiled_model_trains_as_on_the_cpu(tmp_path):
    expected = run_without_xla("accelerator", "--output", str(tmp_path))
    actual = run_one("accelerator", "--output", str(tmp_path), "--compile")
    assert actual["device"] == "xla"
    assert_same(actual, expected, "losses", "logits", rel=1e-4)


@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.ecosystem)])
def test_launched_replicas_train_as_one(tmp_path, replicas):
    """`accelerate launch` divides each batch among the replicas."""
    launcher = ("accelerate", "launch", "--multi_gpu", "--num_processes", str(replicas))
    launcher += ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
    reports = run(
        "accelerator", "--output", str(tmp_path), "--batch-size", str(8 // replicas),
        launcher=launcher, CPU_NUM_DEVICES=str(replicas),
    )  # fmt: skip
    assert [report["rank"] for report in reports] == list(range(replicas))
    assert [report["local_main"] for report in reports] == [True] + [False] * (replicas - 1)
    assert {report["replicas"] for report in reports} == {replicas}
    expected = run_without_xla("accelerator", "--output", str(tmp_path / "cpu"))
    for report in reports:
        assert_same(report, expected, "losses", "logits", rel=1e-4)
        assert report["seen"] == list(range(13))
        assert report["restored"]
        assert report["weights"] == reports[0]["weights"]


def test_cpu_is_the_cpu(tmp_path):
    arguments = ("--cpu", "--output", str(tmp_path))
    actual = run_one("accelerator", *arguments)
    actual.pop("used_xla")
    assert actual == run_without_xla("accelerator", *arguments)
