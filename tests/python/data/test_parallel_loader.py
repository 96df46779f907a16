"""ParallelLoader and MpDeviceLoader: data, order, errors, threads."""

import collections
import copy
import dataclasses
import gc
import inspect
import sys
import threading
import time
import traceback
import types
import weakref
from typing import Any, NamedTuple

import pytest
import torch
from testing.processes import start_python
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, TensorDataset

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch_xla.utils.utils import DataWrapper, SampleGenerator


@pytest.fixture
def syncs(monkeypatch) -> list[None]:
    """Grows by one with every torch_xla.sync()."""
    calls: list[None] = []
    original = torch_xla.sync

    def sync(wait: bool = False) -> None:
        calls.append(None)
        original(wait)

    monkeypatch.setattr(pl, "sync", sync)
    return calls


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in pl._live_threads if thread.is_alive()]


def assert_threads_end(seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loader_threads() == []


def numbers(count: int) -> list[torch.Tensor]:
    return [torch.full((2,), float(index)) for index in range(count)]


def test_data_loader_batches_arrive_in_order(device):
    data = torch.arange(40).view(20, 2)
    loader = DataLoader(TensorDataset(data, data[:, 0]), batch_size=3)
    wrapped = pl.MpDeviceLoader(loader, device)
    assert len(wrapped) == 7
    batches = list(wrapped)
    assert all(x.device == device and y.device == device for x, y in batches)
    torch.testing.assert_close(torch.cat([x.cpu() for x, _ in batches]), data)
    torch.testing.assert_close(torch.cat([y.cpu() for _, y in batches]), data[:, 0])
    assert len(list(wrapped)) == 7  # A second epoch.
    assert_threads_end()


def test_data_loader_with_worker_processes(device):
    loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=4, num_workers=2)
    batches = [batch[0].cpu() for batch in pl.MpDeviceLoader(loader, device)]
    assert torch.cat(batches).tolist() == list(range(12))
    assert_threads_end()


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str


class Wrapped(DataWrapper):
    def __init__(self, x: torch.Tensor, y: torch.Tensor, note: str) -> None:
        self.x, self.y, self.note = x, y, note

    def get_tensors(self):
        return [self.x, self.y]

    def from_tensors(self, tensors):
        return Wrapped(*tensors, self.note)


def test_nested_structures_keep_their_types(device):
    shared = torch.ones(1)
    default = collections.defaultdict(list, {"a": [torch.ones(2)]})
    sample = {
        "list": [torch.zeros(1), 3, "text", None],
        "tuple": (torch.zeros(2), {"deep": torch.zeros(3)}),
        "named": Pair(torch.zeros(4), 2.5),
        "dataclass": Sample(torch.zeros(5), "name"),
        "ordered": collections.OrderedDict(z=torch.zeros(6), a=1),
        "default": default,
        "user": collections.UserDict(x=torch.zeros(7)),
        "packed": pack_sequence([torch.ones(3), torch.ones(2)]),
        "wrapped": Wrapped(torch.zeros(8), torch.zeros(9), "note"),
        "object": sys,
        "twice": (shared, shared),
    }
    (result,) = pl.MpDeviceLoader([sample], None)  # The device that is current.
    assert result["list"][0].device == device
    assert result["list"][1:] == [3, "text", None]
    assert result["tuple"][1]["deep"].device == device
    assert type(result["tuple"]) is tuple
    assert type(result["named"]) is Pair
    assert result["named"].first.device == device
    assert result["named"].second == 2.5
    assert type(result["dataclass"]) is Sample
    assert result["dataclass"].image.device == device
    assert result["dataclass"].name == "name"
    assert list(result["ordered"]) == ["z", "a"]
    assert result["default"].default_factory is list
    assert result["default"]["a"][0].device == device
    assert result["user"]["x"].device == device
    assert type(result["packed"]) is PackedSequence
    assert result["packed"].data.device == device
    assert result["packed"].batch_sizes.device.type == "cpu"
    assert result["wrapped"].y.device == device
    assert result["wrapped"].note == "note"
    assert result["object"] is sys
    assert result["twice"][0] is result["twice"][1]
    # The user's own data stays where it was.
    assert sample["list"][0].device.type == "cpu"
    assert default["a"][0].device.type == "cpu"
    assert sample["dataclass"].image.device.type == "cpu"


def test_a_batch_lives_as_long_as_it_is_used(device):
    """Not until Python collects garbage, whatever the data is made of."""
    x, y = torch.ones(2), torch.ones(3)
    batches = [{"x": x, "queue": collections.deque([(y, "name")])}] * 2
    gc.disable()
    try:
        loader = iter(pl.MpDeviceLoader(batches, device))
        batch = next(loader)
        assert batch["queue"][0][0].device == device
        assert batch["queue"][0][1] == "name"
        found = [weakref.ref(batch["x"]), weakref.ref(batch["queue"][0][0])]
        batch = next(loader)
        assert [tensor() for tensor in found] == [None, None]
    finally:
        gc.enable()


def test_samples_are_dealt_to_devices(device):
    devices = [device, torch.device("cpu")]
    loader = pl.ParallelLoader(numbers(7), devices)
    first = loader.per_device_loader(devices[0])
    second = loader.per_device_loader(devices[1])
    assert [(x.device, x[0].item()) for x in first] == [(device, i) for i in (0, 2, 4, 6)]
    assert [(x.device, x[0].item()) for x in second] == [(devices[1], i) for i in (1, 3, 5)]
    with pytest.raises(ValueError, match="per_device_loader"):
        loader.per_device_loader("meta")
    del loader, first, second
    assert_threads_end()


@pytest.mark.parametrize(
    ("batches_per_execution", "count", "expected"),
    # One before the first batch, one after each group of batches.
    [(1, 4, 5), (2, 4, 3), (2, 5, 4), (3, 0, 1)],
)
def test_syncs_at_every_step(device, syncs, batches_per_execution, count, expected):
    loader = pl.MpDeviceLoader(numbers(count), device, batches_per_execution=batches_per_execution)
    assert len(list(loader)) == count
    assert len(syncs) == expected


def test_the_last_step_is_launched(device):
    total = torch.zeros(2, device=device)
    for x in pl.MpDeviceLoader(numbers(3), device):
        total += x
    text = torch_xla._XLAC._get_xla_tensors_text([total])
    assert "add" not in text
    assert total.tolist() == [3.0, 3.0]


def failing_loader():
    yield torch.ones(1)
    yield torch.ones(1)
    raise KeyError("no more")


def test_loader_error_reaches_the_consumer(device):
    iterator = iter(pl.MpDeviceLoader(failing_loader(), device))
    next(iterator)
    next(iterator)
    with pytest.raises(KeyError, match="no more") as info:
        next(iterator)
    names = [frame.name for frame in traceback.extract_tb(info.value.__traceback__)]
    assert names[-1] == "failing_loader"
    with pytest.raises(StopIteration):
        next(iterator)
    assert_threads_end()


class Unmovable(DataWrapper):
    def get_tensors(self):
        raise RuntimeError("cannot be moved")


def test_upload_error_reaches_the_consumer(device):
    iterator = iter(pl.MpDeviceLoader([torch.ones(1), Unmovable(), torch.ones(1)], device))
    next(iterator)
    with pytest.raises(RuntimeError, match="cannot be moved"):
        next(iterator)
    del iterator
    assert_threads_end()


class Endless:
    """A loader without end, which says how much of it was read and that it was closed."""

    def __init__(self) -> None:
        self.read = 0
        self.closed = threading.Event()

    def __iter__(self):
        try:
            while True:
                yield torch.full((1,), float(self.read))
                self.read += 1
        finally:
            self.closed.set()


def test_reads_ahead_within_bounds(device):
    endless = Endless()
    loader = pl.MpDeviceLoader(endless, device, loader_prefetch_size=3, device_prefetch_size=2)
    iterator = iter(loader)
    next(iterator)
    time.sleep(0.3)
    # 1 taken, 2 on the device, 3 read, and one in the hands of each thread.
    assert 1 + 2 + 3 <= endless.read <= 1 + 2 + 3 + 2
    iterator.close()
    assert_threads_end()


def test_leaving_the_loop_ends_the_threads(device):
    endless = Endless()
    loader = pl.MpDeviceLoader(endless, device)
    for index, x in enumerate(loader):
        if index == 3:
            assert x.item() == 3
            break
    del x
    assert_threads_end()
    assert endless.closed.wait(5)
    again = iter(loader)
    next(again)
    loader.close()
    assert list(again) == []
    assert_threads_end()


def test_generator_around_the_loop_ends_the_threads(device):
    def consumer():
        yield from pl.MpDeviceLoader(Endless(), device)

    generator = consumer()
    next(generator)
    assert loader_threads()
    generator.close()
    assert_threads_end()


def test_unused_loader_ends_its_threads(device):
    loader = pl.ParallelLoader(Endless(), [device])
    assert loader_threads()
    del loader
    gc.collect()
    assert_threads_end()


def test_close_wakes_a_waiting_consumer(device):
    gate = threading.Event()

    def stuck():
        yield torch.ones(1)
        gate.wait()

    loader = pl.MpDeviceLoader(stuck(), device)
    iterator = iter(loader)
    next(iterator)
    timer = threading.Timer(0.2, loader.close)
    timer.start()
    with pytest.raises(StopIteration):
        next(iterator)
    gate.set()
    assert_threads_end()


def test_exit_in_mid_epoch_does_not_hang():
    code = (
        "import itertools, torch, torch_xla.core.xla_model as xm\n"
        "import torch_xla.distributed.parallel_loader as pl\n"
        "loader = pl.MpDeviceLoader((torch.ones(2) for _ in itertools.count()), xm.xla_device())\n"
        "iterator = iter(loader)\n"
        "print(next(iterator).cpu().tolist())\n"
    )
    result = start_python("-c", code, timeout=60)
    assert (result.returncode, result.stdout) == (0, "[1.0, 1.0]\n"), result.stderr


def test_arguments_are_checked(device):
    with pytest.raises(ValueError, match="at least one device"):
        pl.ParallelLoader([], [])
    with pytest.raises(ValueError, match="loader_prefetch_size"):
        pl.ParallelLoader([], [device], loader_prefetch_size=0)


def test_sample_generator(device):
    generator = SampleGenerator((torch.ones(2), 5), sample_count=3)
    assert len(generator) == 3
    batches = list(pl.MpDeviceLoader(generator, device))
    assert [(x.tolist(), y) for x, y in batches] == [([1.0, 1.0], 5)] * 3


def test_send_cpu_data_to_device(device):
    data = xm.send_cpu_data_to_device({"x": [torch.ones(2)], "n": 1}, device)
    assert data["x"][0].device == device
    again = xm.send_cpu_data_to_device(data, device)
    assert again["x"][0] is data["x"][0]
    (single,) = xm.send_cpu_data_to_device(torch.eye(2), device)
    assert single.device == device and single.shape == (2, 2)


class Batch:
    """A class of somebody's own, with what may be in one."""

    def __init__(self, x):
        self.x = x
        self.more = {"same": x, "list": [x + 1]}
        self.me = self
        self.model = torch.nn.Linear(1, 1)
        self.lock = threading.Lock()
        self.kind = Sample
        self.config = types.SimpleNamespace(name="config")
        self.self_list = [x]
        self.self_list.append(self.self_list)
        self._shown = "hidden"

    @property
    def shown(self):
        return self._shown


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x", "name")
    x: torch.Tensor
    name: str


class Half(DataWrapper):
    def get_tensors(self):
        return [torch.ones(1), None]

    def from_tensors(self, tensors):
        return tensors


def moved_by_loader(data, device):
    return next(iter(pl.MpDeviceLoader([data], device)))


def moved_by_sending(data, device):
    return xm.send_cpu_data_to_device(data, device)


def moved_by_arena(data, device):
    arena = xm.ToXlaTensorArena(lambda ts: [t.to(device) for t in ts], torch.is_tensor)
    return arena.transform(data)


@pytest.mark.parametrize("move", [moved_by_loader, moved_by_sending, moved_by_arena])
def test_objects(device, move):
    """An object with tensors is copied, with them on the device, in the shape that it had."""
    batch = Batch(torch.ones(2))
    moved = move(batch, device)
    assert type(moved) is Batch and moved is not batch and batch.x.device.type == "cpu"
    assert moved.x.device == device and moved.more["list"][0].device == device
    assert moved.more["same"] is moved.x and moved.me is moved
    assert moved.self_list[0] is moved.x and moved.self_list[1] is moved.self_list
    for name in ("model", "lock", "kind", "config"):
        assert getattr(moved, name) is getattr(batch, name), name
    assert moved.shown == "hidden"
    both = move(
        [batch, batch.more, Slotted(batch.x, "n"), types.SimpleNamespace(x=batch.x)], device
    )
    assert both[0].more is both[1] and both[2].x is both[0].x and both[2].name == "n"
    assert both[3].x is both[0].x


def test_wrappers_may_have_none(device):
    for move in (moved_by_loader, moved_by_sending):
        x, none = move(Half(), device)
        assert x.device == device and none is None


def test_both_generations_of_calls(device):
    """The documents before 2.9 and 2.9 itself name and order some arguments otherwise."""
    for arguments in ({"loader": [1.0]}, {"cpu_loader": [1.0]}):
        loader = pl.ParallelLoader(**arguments, devices=[device], device_prefetch_size=1)
        assert list(loader.per_device_loader(device)) == [1.0]
    with pytest.raises(TypeError, match="one `loader`"):
        pl.ParallelLoader([1.0], [device], cpu_loader=[1.0])
    x = torch.ones(2, device=device)
    for more in ((None,), (True,), (None, True)):
        assert xm.all_reduce(xm.REDUCE_SUM, x, 2.0, None, *more).tolist() == [2, 2]
    for named in ({"cctx": None}, {"pin_layout": False}):
        assert xm.all_reduce(xm.REDUCE_SUM, x, 2.0, groups=None, **named).tolist() == [2, 2]


# ------------------------------------------------------------------- torch_xla 2.9's interface


def test_signature():
    parameters = inspect.signature(pl.ParallelLoader.__init__).parameters
    assert {name: p.default for name, p in list(parameters.items())[3:]} == {
        "batchdim": 0,
        "batches_per_execution": 1,
        "loader_prefetch_size": 8,
        "device_prefetch_size": 4,
        "host_to_device_transfer_threads": 1,
        "input_sharding": None,
        "cpu_loader": None,
    }
    assert list(parameters)[1:3] == ["loader", "devices"]


@pytest.mark.parametrize("threads", [1, 4])
def test_order_with_many_uploading_threads(threads, device):
    class Uneven(pl.ParallelLoader):
        def send_cpu_data_to_device(
            self, batches: list[Any], device: torch.device
        ) -> list[torch.Tensor]:
            # The later, the faster.
            time.sleep(0.01 / (1 + batches[0][0].item() % 4))
            return super().send_cpu_data_to_device([2 * batch for batch in batches], device)

    loader = Uneven(numbers(30), [device], host_to_device_transfer_threads=threads)
    assert sum(t.name == "torch_xla transfer" for t in loader_threads()) == threads
    assert loader.per_device_samples() == 30
    found = [batch.cpu()[0].item() for batch in loader.per_device_loader(device)]
    assert found == [2.0 * i for i in range(30)]
    del loader
    assert_threads_end()


def test_errors_and_ends_with_many_uploading_threads(device):
    def failing() -> Any:
        yield from numbers(6)
        raise KeyError("in the loader")

    samples = iter(pl.MpDeviceLoader(failing(), device, host_to_device_transfer_threads=3))
    assert [next(samples).cpu()[0].item() for _ in range(6)] == list(range(6))
    with pytest.raises(KeyError, match="in the loader"):
        next(samples)
    assert_threads_end()
    # Left early.
    for _ in pl.MpDeviceLoader(numbers(50), device, host_to_device_transfer_threads=3):
        break
    del samples
    gc.collect()
    assert_threads_end()


def test_next_item_and_next(device):
    loader = pl.ParallelLoader([torch.ones(2), None, torch.zeros(2)], [device])
    samples = loader.per_device_loader(device)
    assert len(samples) == 3 and loader.batches_per_execution == 1
    assert samples.next().tolist() == [1, 1]
    assert next(samples) is None  # A sample like any other.
    assert loader.next_item(device).tolist() == [0, 0]
    assert loader.next_item(str(device)) is None
    with pytest.raises(StopIteration):
        samples.next()


def test_what_is_unknown_is_the_wrapped_loaders(device):
    inner = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
    loader = pl.MpDeviceLoader(inner, device)
    assert loader.dataset is inner.dataset and loader.batch_size == 2
    with pytest.raises(AttributeError, match="nothing_of_it"):
        loader.nothing_of_it  # noqa: B018
    with pytest.raises(AttributeError):
        pl.MpDeviceLoader.__new__(pl.MpDeviceLoader).dataset  # noqa: B018
    assert copy.copy(loader).dataset is inner.dataset


class Telling:
    """A loader that tells where it is, as those of accelerate do: it reads one sample ahead."""

    def __init__(self, count: int) -> None:
        self.samples = numbers(count)
        self.end_of_dataloader = False
        self.active = False
        self.threads: set[threading.Thread] = set()

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Any:
        self.active, self.end_of_dataloader = True, False
        for index, sample in enumerate(self.samples):
            self.threads.add(threading.current_thread())
            self.end_of_dataloader = index == len(self.samples) - 1
            yield sample
        self.active = False


def test_a_loader_that_tells_where_it_is_is_not_read_ahead(device):
    loader = Telling(5)
    wrapped = pl.MpDeviceLoader(loader, device)
    for _ in range(2):
        told = []
        for sample in wrapped:
            assert sample.device == device
            time.sleep(0.01)  # Time in which somebody could read on.
            told.append((loader.active, loader.end_of_dataloader))
        assert told == [(True, False)] * 4 + [(True, True)]
        assert not loader.active
    assert loader.threads == {threading.current_thread()}
    # Errors, and the end, come as from a thread.
    loader.samples[1] = property()  # Passes through.
    assert isinstance(list(wrapped)[1], property)
    samples = iter(wrapped)
    next(samples)
    samples.close()
    assert list(samples) == []
    assert list(pl.MpDeviceLoader(Telling(0), device)) == []
