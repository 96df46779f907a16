"""peft, diffusers, Lightning, trl, sentence-transformers, torchmetrics, Keras 3,
and torchtitan."""

import pytest
from program_testing import assert_same, run_one, run_without_xla

pytestmark = [pytest.mark.ecosystem, pytest.mark.multiprocess, pytest.mark.timeout(900)]


def on_both(program: str, *arguments: str, tmp_path) -> tuple[dict, dict]:
    """Returns the reports of a program that takes --device, on xla and on the CPU."""
    output = str(tmp_path / "cpu")
    expected = run_without_xla(program, *arguments, "--device", "cpu", "--output", output)
    actual = run_one(program, *arguments, "--output", str(tmp_path / "xla"))
    assert actual["used_xla"]
    return actual, expected


def test_peft_lora(tmp_path):
    actual, expected = on_both("peft_lora", tmp_path=tmp_path)
    assert_same(actual, expected, "losses", "logits", rel=1e-4)
    for report in (actual, expected):
        assert report["loaded"] and report["merged"] and report["tied"]
    assert actual["compiles"][-1] == actual["compiles"][1]


def test_diffusers(tmp_path):
    actual, expected = on_both("diffusers_unet", tmp_path=tmp_path)
    assert_same(actual, expected, "losses", "low_rank", "adapter", rel=1e-3)
    # Weights that training has moved apart by rounding, through four steps of drawing.
    assert_same(actual, expected, "drawn", rel=0.02)
    assert actual["same"] and expected["same"]
    for counts in (actual["compiles"], actual["low_rank_compiles"]):
        assert counts[-1] == counts[1]
    assert actual["drawing"][-1] == actual["drawing"][0]


def test_supervised_fine_tuning(tmp_path):
    expected = run_without_xla("sft", "--use-cpu", "--output", str(tmp_path / "cpu"))
    actual = run_one("sft", "--output", str(tmp_path / "xla"))
    assert (actual["device"], expected["device"]) == ("xla", "cpu")
    assert_same(actual, expected, "losses", rel=1e-3)
    assert actual["compiles"][-1] == actual["compiles"][2]


@pytest.mark.parametrize("library", ["torchmetrics", "sentence_transformers", "keras"])
def test_small_libraries(tmp_path, library):
    actual, expected = on_both("small_libraries", library, tmp_path=tmp_path)
    assert_same(actual, expected, "numbers", rel=1e-3)
    assert actual.get("saved", True)


class TestLightning:
    @pytest.mark.parametrize("accelerator", ["cpu", "auto"])
    def test_trains_as_on_the_cpu(self, tmp_path, accelerator):
        """With PJRT_DEVICE=CPU an unnamed accelerator is xla; a named CPU is the CPU."""
        arguments = ("--output", str(tmp_path), "--accelerator")
        expected = run_one("lightning_fit", *arguments, "cpu", PJRT_DEVICE="")
        actual = run_one(
            "lightning_fit", *arguments, accelerator, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="1"
        )
        assert actual["used_xla"] == (accelerator == "auto")
        if accelerator == "cpu":
            assert actual == expected
            return
        assert actual["strategy"] == "SingleDeviceXLAStrategy"
        assert_same(actual, expected, "losses", "val_loss", "resumed", rel=1e-4)
        assert actual["keys"] == expected["keys"]
        # One epoch after the checkpoint's is what the first run had then.
        assert actual["resumed"] == pytest.approx(actual["losses"][4:], rel=1e-5)
        assert actual["compiles"][-1] == actual["compiles"][5]

    def test_four_replicas_train_as_one(self, tmp_path):
        arguments = ("--output", str(tmp_path), "--accelerator")
        expected = run_one("lightning_fit", *arguments, "cpu", PJRT_DEVICE="")
        actual = run_one(
            "lightning_fit", *arguments, "tpu", "--devices", "4",
            PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4",
        )  # fmt: skip
        assert actual["strategy"] == "XLAStrategy"
        assert actual["keys"] == expected["keys"]
        # Lightning shuffles what replicas train on: the same up to the order.
        assert_same(actual, expected, "val_loss", rel=0.02)

    def test_fabric_shards(self):
        expected = run_one("lightning_fabric", "--accelerator", "cpu", PJRT_DEVICE="")
        actual = run_one(
            "lightning_fabric", "--devices", "2", PJRT_DEVICE="CPU", CPU_NUM_DEVICES="2"
        )
        assert_same(actual, expected, "losses", rel=1e-4)
        assert all(actual["sharded"]) and not any(expected["sharded"])


class TestTorchtitan:
    @pytest.fixture(scope="class")
    def expected(self, tmp_path_factory):
        """FSDP2 on two processes of Gloo. Who splits a batch's computation changes no loss."""
        return self.train(tmp_path_factory.mktemp("cpu"), 2, "--device", "cpu", PJRT_DEVICE="")

    @staticmethod
    def train(folder, count, *arguments, **variables):
        pytest.importorskip("torchtitan")
        launcher = ("python", "-m", "torch.distributed.run", "--standalone")
        launcher += ("--nproc-per-node", str(count))
        return run_one(
            "titan", "--data_parallel_shard", "2", "--output", str(folder), *arguments,
            launcher=launcher, OMP_NUM_THREADS="1", **variables,
        )  # fmt: skip

    @pytest.mark.parametrize(
        "ways", [(), ("tensor",), ("context",), ("tensor", "context")], ids="-".join
    )
    def test_llama(self, tmp_path, expected, ways):
        split = [word for way in ways for word in (f"--{way}_parallel", "2")]
        actual = self.train(tmp_path, 2 << len(ways), *split, PJRT_DEVICE="CPU")
        assert not expected["used_xla"] and actual["used_xla"]
        assert actual["losses"] == pytest.approx(expected["losses"], abs=1e-5)
        assert actual["norms"] == pytest.approx(expected["norms"], rel=1e-4)
        assert actual["compiles"][-1] == actual["compiles"][1]
