"""Files that cannot be written to their end: what writes them raises, and what was there stays."""

import pytest
from testing.processes import start_python

# Files larger than a limit of the process fail as those on a full disk do.
CODE = """
import itertools, pathlib, resource, sys
import torch, torch_xla, torch_xla.core.xla_model as xm
from torch_xla import aot, stablehlo
from torch_xla.debug import graph, model_comparator
from torch_xla.distributed.fsdp import state_dict_utils
from torch_xla.utils import gcsfs, safetensors, serialization as xser
from torch_xla.utils.tf_record_writer import TfRecordWriter

folder = pathlib.Path(sys.argv[1])
big = {"w": torch.arange(1 << 16, dtype=torch.float32).to("xla"), "t": torch.ones(1 << 16)}
small = {"w": torch.ones(2).to("xla"), "t": torch.ones(2)}
sizes = itertools.count(300)

def picture(data, path):
    results = [torch.ones(3, device="xla")]
    for number in range(100 if data is big else 2):
        results.append(results[-1] * 1.25 + number)
    graph.render(results[-1:], path, graphviz=False)

def plan(data, path):
    new = torch.ones(next(sizes)).to("xla")  # Only what was not compiled yet has a plan.
    aot.compile(torch.sin, (new,)).save(path)

def records(data, path):
    with TfRecordWriter(path) as writer:
        writer.write(data["t"].numpy().tobytes())

class Model(torch.nn.Module):
    def __init__(self, data):
        super().__init__()
        self.w = torch.nn.Parameter(data["t"])
    def forward(self, x):
        return x + self.w

def export(data, path):
    program = torch.export.export(Model(data), (data["t"],))
    stablehlo.save_as_stablehlo(program, path)

def compared(data, path):
    model_comparator.configure(path)
    model_comparator.save("t", data["t"], 0)

def consolidated(data, path):
    state_dict_utils.consolidate_sharded_state_dicts = lambda *_: data
    torch.save({"model": {}, "shard_metadata": {"rank": 0}}, path + ".rank")
    state_dict_utils.consolidate_sharded_model_checkpoints(path, ".rank", path)

WRITERS = {
    "xser": lambda data, path: xser.save(data, path),
    "xser of the CPU": lambda data, path: xser.save({"t": data["t"]}, path),
    "xm": lambda data, path: xm.save(data, path),
    "safetensors": lambda data, path: safetensors.save_file(data, path),
    "gcsfs": lambda data, path: gcsfs.write(path, bytes(data["t"].numpy())),
    "records": records,
    "export": export,
    "picture": picture,
    "plan": plan,
    "compared": compared,
    "consolidated": consolidated,
}

def content(path):
    path = pathlib.Path(path)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {str(file): file.read_bytes() for file in files if file.is_file()}

for name, write in WRITERS.items():
    here = folder / name.replace(" ", "_")
    here.mkdir()
    path = str(here / "file")
    write(small, path)
    before = content(here)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))
    try:
        write(big, path)
    except (OSError, RuntimeError) as error:
        said = f"{type(error).__name__}: {error}"
    else:
        said = None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert said, f"{name}: no error"
    assert content(here) == before, (name, sorted(content(here)), sorted(before))
    print(name, "|", said.splitlines()[0][:100])
    write(big, path)  # The next one, with room for it.
    assert content(here) != before, name
print("WENT ON", (torch.ones(2, device="xla") + 1).tolist())
"""


@pytest.mark.multiprocess
def test_a_full_disk_loses_nothing(tmp_path):
    result = start_python("-c", CODE, str(tmp_path), timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "WENT ON [2.0, 2.0]" in result.stdout
    print(result.stdout)
