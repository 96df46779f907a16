"""examples/hf/run_mlm.py: BERT on the standard library's sources."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import BertForMaskedLM

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "hf" / "run_mlm.py"
SMALL = ("--max_seq_length", "32", "--max_files", "20", "--hidden_size", "64", "--dropout", "0")


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    log = folder / "result.json"
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--output_dir", str(folder / "model"), *SMALL, *arguments]
        + ["--log-losses", str(log)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return {**json.loads(log.read_text()), "output": result.stdout}


def test_one_device(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "")  # Programs on disk need no compilation.
    arguments = ("--do_train", "--do_eval", "--save_steps", "10", "--tpu_metrics_debug")
    trained = run(tmp_path, *arguments, "--max_steps", "30", "--learning_rate", "2e-3")
    assert trained["losses"][-1] < trained["losses"][0] - 1
    assert trained["compiles"] < 10 < 30 < trained["executions"]
    assert "Metric: CompileTime" in trained["output"]
    model = BertForMaskedLM.from_pretrained(tmp_path / "model")
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert (tmp_path / "model" / "checkpoint-20" / "optimizer.pt").is_file()
    # What was saved is what was evaluated.
    evaluated = run(tmp_path, "--do_eval")
    assert evaluated["perplexity"] == pytest.approx(trained["perplexity"], rel=1e-4)


@pytest.mark.ecosystem
@pytest.mark.parametrize("options", [(), ("--bf16",)])
def test_four_replicas(tmp_path, monkeypatch, options):
    monkeypatch.setenv("CPU_NUM_DEVICES", "4")
    arguments = ("--do_train", "--do_eval", "--max_steps", "30", "--learning_rate", "2e-3")
    result = run(tmp_path, *arguments, "--per_device_train_batch_size", "2", *options)
    assert result["replicas"] == 4
    assert result["losses"][-1] < result["losses"][0] - 1
    assert (tmp_path / "model" / "pytorch_model.bin").is_file()
