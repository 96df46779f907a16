"""transformers.Trainer with its defaults, against itself without torch_xla."""

import shutil

import pytest
from program_testing import assert_same, run_one, run_without_xla

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(900)]

LOGGED = ("losses", "norms", "eval_losses", "mean_loss", "predict_loss", "eval_accuracies")


def test_defaults(tmp_path):
    """The fused optimizer, a schedule, evaluation, prediction, checkpoints, and going on."""
    expected = run_without_xla("trainer", "--output", str(tmp_path / "cpu"))
    actual = run_one("trainer", "--output", str(tmp_path / "xla"))
    assert (actual["device"], expected["device"]) == ("xla:0", "cpu")
    assert actual["optimizer"] == "adamw_torch_fused"
    assert_same(actual, expected, *LOGGED, rel=1e-3)
    assert actual["rates"] == expected["rates"] and len(set(actual["rates"])) > 6
    # The short last batch counts once, and as what it is.
    assert actual["eval_samples"] == [10, 10] and actual["predicted"] == [6, 12, 64]
    assert actual["saved_equal"] and actual["finite"]
    # The schedule's rates are parameters; evaluation and saving come between the epochs.
    counts = actual["compiles"]
    assert counts[2] == counts[5] and counts[6] == counts[-1], counts

    # From the first epoch's checkpoint alone the second one goes as it did.
    (tmp_path / "resumed").mkdir()
    shutil.copytree(tmp_path / "xla" / "checkpoint-6", tmp_path / "resumed" / "checkpoint-6")
    resumed = run_one("trainer", "--output", str(tmp_path / "resumed"), "--resume")
    assert_same(resumed, actual, "losses", "eval_losses", "predict_loss", rel=1e-5)


@pytest.mark.ecosystem
def test_bf16_and_accumulated_gradients(tmp_path):
    arguments = ("--bf16", "--accumulate", "2", "--epochs", "1")
    expected = run_without_xla("trainer", *arguments, "--use-cpu", "--output", str(tmp_path / "c"))
    actual = run_one("trainer", *arguments, "--output", str(tmp_path / "xla"))
    assert actual["device"] == "xla:0"
    assert_same(actual, expected, "losses", "eval_losses", rel=1e-2)
    assert actual["finite"]


def test_use_cpu_is_the_cpu(tmp_path):
    arguments = ("--use-cpu", "--epochs", "1", "--output", str(tmp_path))
    actual = run_one("trainer", *arguments)
    actual.pop("used_xla")
    assert actual == run_without_xla("trainer", *arguments)
