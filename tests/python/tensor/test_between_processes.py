"""Tensors that ``multiprocessing`` sends: queues, pools, managers, the workers of a loader."""

import os
import sys
from pathlib import Path

import pytest
from testing.processes import start_python, write_script

SCRIPT = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing as mp
from torch import nn
from testing.tensors import looks
from torch.utils.data import DataLoader, Dataset

import torch_xla


def samples():
    return {
        **looks("xla"),
        "expanded": torch.ones(2, 1, device="xla").expand(2, 5),
        "pending": torch.ones(2, device="xla") * 2 + 1,
        "bfloat16": torch.ones(3, dtype=torch.bfloat16, device="xla"),
        "bool": torch.tensor([True, False], device="xla"),
        "int64": torch.arange(3, device="xla"),
        "float8": torch.ones(2).to(torch.float8_e4m3fn).to("xla"),
        "frozen": nn.Parameter(torch.ones(2, device="xla"), requires_grad=False),
    }


def look(x):
    values = str(x.detach().cpu().as_subclass(torch.Tensor).tolist())
    facts = (x.dtype, x.device, x.shape, x.stride(), x.requires_grad, x.is_leaf, x.is_conj())
    return type(x).__name__, *map(str, facts), values


def echo(incoming, outgoing):
    while (x := incoming.get()) is not None:
        if isinstance(x, torch.Tensor):
            outgoing.put(look(x))
        else:  # They share memory.
            x[0].fill_(4)
        outgoing.put(x)


def both_ways(context):
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=echo, args=(there, back), daemon=True)
    child.start()
    for name, x in samples().items():
        there.put(x)
        assert back.get(timeout=100) == look(x), name
        assert look(back.get(timeout=100)) == look(x), name
    base = torch.zeros(2, 2, device="xla")
    there.put((base, base[1], nn.ParameterList([base])))
    one, row, parameters = back.get(timeout=100)
    assert one.tolist() == [[4, 4], [4, 4]] and row.tolist() == [4, 4]
    assert parameters[0].tolist() == one.tolist() and base.tolist() == [[0, 0], [0, 0]]
    row.fill_(5)
    assert one.tolist() == [[4, 4], [5, 5]]
    there.put(None)
    child.join(100)
    assert child.exitcode == 0


class Samples(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones(2, device="xla") * index, {"index": torch.tensor(index)}


def loaded(context, **options):
    return [
        (x.tolist(), x.device.type, rest["index"].tolist(), rest["index"].device.type)
        for x, rest in DataLoader(
            Samples(), num_workers=1, multiprocessing_context=context, timeout=100, **options
        )
    ]


def tripled(x):
    return x * 3


def main():
    spawn, fork = mp.get_context("spawn"), mp.get_context("fork")
    if sys.argv[1] == "fork":
        # Before this process has a device, a child may have one.
        rows = [([[0, 0], [1, 1]], "xla", [0, 1], "cpu"), ([[2, 2], [3, 3]], "xla", [2, 3], "cpu")]
        assert loaded(fork, batch_size=2) == rows
        torch.ones(1, device="xla")
        try:
            loaded(fork, batch_size=2)
        except RuntimeError as error:
            assert "start the process with the 'spawn' method" in str(error), error
        else:
            raise AssertionError("a forked worker has used the device")
        child = fork.Process(target=lambda: torch.ones(2, requires_grad=True).sum().backward())
        child.start()
        child.join(100)
        assert child.exitcode == 0
        return
    both_ways(spawn)
    parameter = nn.Parameter(torch.ones(2, device="xla"))
    for x in (parameter * 1, torch.ones(2, device="xla", requires_grad=True) + 1):
        try:
            ForkingPickler.dumps(x)
        except RuntimeError as error:
            assert "no leaf and requires a gradient" in str(error), error
        else:
            raise AssertionError("a tensor with a graph was sent")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        assert pool.submit(tripled, parameter.detach()).result(100).tolist() == [3, 3]
    with spawn.Manager() as manager:
        kept = manager.list()
        kept.append(parameter)
        kept.append(torch.ones(2, device="xla").expand(3, 2))
        assert look(kept[0]) == look(parameter) and kept[1].shape == (3, 2)
    assert [row[0] for row in loaded(spawn, batch_size=None)] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert loaded(spawn, batch_size=4, pin_memory=True) == [
        ([[0, 0], [1, 1], [2, 2], [3, 3]], "xla", [0, 1, 2, 3], "cpu")
    ]


if __name__ == "__main__":
    main()
    print("DONE")
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_tensors_go_between_processes(tmp_path: Path, method: str) -> None:
    script = write_script(tmp_path, SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    result = start_python(script, method, timeout=400, PYTHONPATH=path)
    assert result.returncode == 0 and "DONE" in result.stdout, result.stdout + result.stderr
