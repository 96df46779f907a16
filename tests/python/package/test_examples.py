"""The examples train, and train the same on xla and on eager PyTorch."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.processes import start_python

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def run_example(
    tmp_path: Path, script: str, *arguments: str, timeout: float, launcher: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns what the script wrote with --log-losses, and ``output``, what it printed."""
    log = tmp_path / "losses.json"
    options = ("--log-losses", str(log), *arguments)
    result = start_python(*launcher, str(EXAMPLES / script), *options, timeout=timeout)
    assert result.returncode == 0, result.stderr[-4000:]
    return {**json.loads(log.read_text()), "output": result.stdout}


@pytest.mark.timeout(400)
def test_digits_reaches_97_percent(tmp_path):
    result = run_example(tmp_path, "train_digits.py", timeout=360)
    assert result["accuracy"] >= 0.97
    # Nothing is compiled after the first epoch.
    assert set(result["compiles"]) == {result["compiles"][0]}
    assert "after the first epoch: 0" in result["output"]
    assert f"test accuracy: {100 * result['accuracy']:.2f} %" in result["output"]


@pytest.mark.timeout(400)
def test_a_second_run_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path / "cache"))
    first, second = (
        run_example(tmp_path, "train_digits.py", "--epochs", "1", timeout=180) for _ in range(2)
    )
    assert first["compiles"][0] > 0 and second["compiles"] == [0]
    assert second["losses"] == first["losses"]


@pytest.mark.timeout(400)
def test_digits_curves_agree(tmp_path):
    arguments = ("--epochs", "2", "--dropout", "0")
    xla = run_example(tmp_path, "train_digits.py", *arguments, timeout=240)
    cpu = run_example(tmp_path, "train_digits.py", *arguments, "--device", "cpu", timeout=120)
    assert len(xla["losses"]) == len(cpu["losses"]) == 44
    # Rounding grows from step to step: tight at first, then in the large.
    assert xla["losses"][:10] == pytest.approx(cpu["losses"][:10], rel=1e-3, abs=1e-4)
    assert xla["losses"] == pytest.approx(cpu["losses"], rel=0.05, abs=0.05)
    assert abs(xla["accuracy"] - cpu["accuracy"]) <= 0.02


SMALL_GPT = ("--layers", "2", "--width", "64", "--context", "32", "--batch-size", "16")


@pytest.mark.timeout(400)
def test_gpt_learns_as_on_cpu(tmp_path):
    arguments = (*SMALL_GPT, "--steps", "60", "--warmup", "10", "--sample", "20")
    xla = run_example(tmp_path, "train_gpt.py", *arguments, timeout=300)
    assert xla["losses"][0] == pytest.approx(math.log(128), abs=0.2)
    assert sum(xla["losses"][-10:]) / 10 < 3.2
    assert len(xla["sample"]) == 20
    cpu = run_example(tmp_path, "train_gpt.py", *arguments, "--device", "cpu", timeout=120)
    assert xla["losses"][:20] == pytest.approx(cpu["losses"][:20], rel=1e-3)
    assert xla["losses"] == pytest.approx(cpu["losses"], rel=0.02)


@pytest.mark.timeout(400)
def test_gpt_compiles_do_not_grow_with_steps(tmp_path):
    counts = []
    for steps in ("6", "12"):
        arguments = (*SMALL_GPT, "--steps", steps, "--warmup", "2", "--sample", steps)
        counts.append(run_example(tmp_path, "train_gpt.py", *arguments, timeout=180)["compiles"])
    assert counts[0] == counts[1]


@pytest.mark.multiprocess
@pytest.mark.timeout(400)
def test_gpt_on_four_devices_trains_as_on_one(tmp_path, monkeypatch):
    monkeypatch.delenv("CPU_NUM_DEVICES", raising=False)
    arguments = (*SMALL_GPT, "--steps", "12", "--warmup", "4", "--check", "--tolerance", "1e-5")
    result = run_example(tmp_path, "train_gpt_spmd.py", *arguments, timeout=300)
    assert "largest relative difference to one device" in result["output"]
    assert result["losses"][-1] < result["losses"][0] - 0.5
    assert result["compiles"] <= 2 and result["compiles_after_third_step"] == 0
    # All but embeddings, normalizations and two biases are halved by the axis of the weights.
    assert len(result["parameters_by_device"]) == 4
    assert max(result["parameters_by_device"]) < 0.6 * result["parameters"]


@pytest.mark.multiprocess
def test_ring_attention_equals_attention_on_one_device(monkeypatch):
    monkeypatch.delenv("CPU_NUM_DEVICES", raising=False)
    result = start_python(str(EXAMPLES / "ring_attention.py"))
    assert result.returncode == 0, result.stderr
    assert "largest difference to attention on one device" in result.stdout


def run_digits_mp(tmp_path: Path, replicas: int, *arguments: str) -> dict[str, Any]:
    variables = {"CPU_NUM_DEVICES": str(replicas), "XLA_COLLECTIVE_TIMEOUT": "120"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return run_example(tmp_path, "train_digits_mp.py", *arguments, timeout=280)


@pytest.mark.multiprocess
@pytest.mark.timeout(600)
def test_digits_replicas_train_as_one_process(tmp_path):
    arguments = ("--epochs", "1", "--dropout", "0", "--norm", "none")
    one = run_digits_mp(tmp_path, 1, *arguments, "--batch-size", "64")
    four = run_digits_mp(tmp_path, 4, *arguments, "--batch-size", "16")
    assert len(one["losses"]) == len(four["losses"]) == 22
    assert four["losses"][:10] == pytest.approx(one["losses"][:10], rel=1e-3, abs=1e-4)
    assert four["losses"] == pytest.approx(one["losses"], rel=0.05, abs=0.05)
    # The same bits on all replicas.
    assert len(set(four["weights"])) == 1 and len(four["weights"]) == 4


@pytest.mark.multiprocess
@pytest.mark.timeout(400)
def test_fsdp2_trains_as_by_gloo(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    model = tmp_path / "model.pt"
    xla, cpu = (
        run_example(
            tmp_path, "train_fsdp2.py", "--device", device, "--steps", "60", "--save", str(model),
            timeout=180, launcher=torchrun,
        )
        for device in ("xla", "cpu")
    )  # fmt: skip
    assert xla["losses"][:10] == pytest.approx(cpu["losses"][:10], rel=1e-4)
    assert xla["losses"] == pytest.approx(cpu["losses"], rel=0.02)
    assert min(xla["accuracy"], cpu["accuracy"]) > 0.8
    assert xla["held"] == xla["parameters"] / 2
    assert sum(x.numel() for x in torch.load(model).values()) == xla["parameters"]


@pytest.mark.multiprocess
@pytest.mark.timeout(600)
def test_all_ways_train_alike(tmp_path, monkeypatch):
    """DDP, FSDP of both kinds and SPMD see the batch that the plain loop sees."""

    def losses(devices: int, *ways: str) -> dict[str, list[float]]:
        monkeypatch.setenv("CPU_NUM_DEVICES", str(devices))
        arguments = (*ways, "--steps", "8")
        return run_example(tmp_path, "train_ways.py", *arguments, timeout=180)["losses"]

    one = losses(1, "plain", "amp")
    expected = one["plain"]
    assert expected[-1] < 0.8 * expected[0]
    assert one["amp"] == pytest.approx(expected, rel=0.01)
    for how, actual in {**losses(2, "ddp", "fsdp"), **losses(2, "spmd", "fsdp_v2")}.items():
        assert actual == pytest.approx(expected, rel=1e-3), how


@pytest.mark.timeout(400)
def test_all_ways_with_a_decoder_train_alike(tmp_path):
    ways = ("plain", "eager", "profile", "scan", "offload", "flash")
    trace = tmp_path / "trace"
    arguments = (*ways, "--steps", "4", "--layers", "2", "--trace", str(trace))
    result = run_example(tmp_path, "decoder_ways.py", *arguments, timeout=300)
    expected = result["losses"]["plain"]
    assert expected[-1] < 0.9 * expected[0]
    for how in ways:
        assert result["losses"][how] == pytest.approx(expected, rel=1e-3), how
        # One for a step, and what stacks the losses.
        assert how == "eager" or result["compiles"][how] <= 4, how
    assert list(trace.rglob("*.json*")) and "steps" in result["output"]
