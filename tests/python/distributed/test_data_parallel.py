"""DataParallel: devices of one process that train together, a thread for each."""

import pytest
from testing.processes import run_python

pytestmark = pytest.mark.multiprocess

SCRIPT = """
import torch_xla.distributed.data_parallel as dp

torch.manual_seed(0)
reference = torch.nn.Linear(3, 2)
batches = torch.randn(7, 4, 3, generator=torch.Generator().manual_seed(1))
made = []
parallel = dp.DataParallel(reference)

def loop(model, samples, device, context, word):
    optimizer = context.getattr_or(
        "optimizer", lambda: made.append(device) or torch.optim.SGD(model.parameters(), lr=0.1)
    )
    count = 0
    for x in samples:
        assert x.device == device and word == "given"
        optimizer.zero_grad()
        model(x).square().mean().backward()
        xm.optimizer_step(optimizer)
        count += 1
    largest = xm.all_reduce(xm.REDUCE_MAX, torch.tensor([float(device.index)], device=device))
    return count, largest.item()

results = [parallel(loop, batches, word="given") for _ in range(2)]
optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
for _ in range(2):
    for x in batches[:6].view(3, 8, 3):  # Two batches of 4 at a time.
        optimizer.zero_grad()
        reference(x).square().mean().backward()
        optimizer.step()
weights = [model.weight.detach().cpu() for model in parallel.models]
report(
    results=results, made=sorted(map(str, made)), devices=list(map(str, parallel.devices)),
    same=bool(torch.equal(*weights)), error=(weights[0] - reference.weight).abs().max().item(),
)

def failing(model, samples, device, context):
    if device.index == 1:
        raise KeyError("in a thread")
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(1, device=device))

try:
    parallel(failing, batches)
except KeyError as error:
    report(failed=str(error))
"""


def test_trains_as_one_device_with_larger_batches(tmp_path):
    result, _ = run_python(SCRIPT, tmp_path, CPU_NUM_DEVICES="2")
    assert result["results"] == [[[3, 1.0], [3, 1.0]]] * 2
    assert result["made"] == result["devices"] == ["xla:0", "xla:1"]
    assert result["same"] and result["error"] < 1e-6
    assert "in a thread" in result["failed"]
