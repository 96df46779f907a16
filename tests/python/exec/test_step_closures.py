"""xm.add_step_closure: order, threads, errors, and that it costs no execution."""

import threading
import time

import pytest
import torch
from testing.processes import start_python

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla._internal.compile import step_closures as closures


def drain() -> None:
    """Waits for the asynchronous closures that are queued."""
    if closures._async_handler is not None:
        closures._async_handler.wait()


def test_runs_at_the_next_step_in_order(device):
    seen = []
    for index in range(5):
        xm.add_step_closure(seen.append, args=(index,))
    assert seen == []
    xm.mark_step()
    assert seen == [0, 1, 2, 3, 4]
    xm.mark_step()
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("run_async", [False, True])
def test_arguments_have_their_values(device, run_async):
    seen = []
    a = torch.arange(4.0).to(device)
    xm.add_step_closure(
        lambda name, x, y: seen.append((name, x.tolist(), y.item())),
        args=("step", a * 2, a.sum()),
        run_async=run_async,
    )
    xm.mark_step()
    drain()
    assert seen == [("step", [0.0, 2.0, 4.0, 6.0], 6.0)]


def test_one_execution_for_all_closures(device):
    a = torch.arange(4.0).to(device)
    torch_xla.sync(wait=True)
    xm.wait_device_ops()
    met.clear_metrics()
    for factor in range(2, 6):
        xm.add_step_closure(lambda x: x.tolist(), args=(a * factor,))
    xm.mark_step()
    xm.wait_device_ops()
    assert met.metric_data("ExecuteTime")[0] == 1


def test_sync_runs_closures_too(device):
    seen = []
    xm.add_step_closure(seen.append, args=(1,))
    torch_xla.sync()
    assert seen == [1]


def test_closure_added_by_a_closure_waits_for_the_next_step(device):
    seen = []
    xm.add_step_closure(lambda: xm.add_step_closure(seen.append, args=("inner",)))
    xm.mark_step()
    assert seen == []
    xm.mark_step()
    assert seen == ["inner"]


def test_closure_may_mark_a_step(device):
    seen = []
    xm.add_step_closure(xm.mark_step)
    xm.add_step_closure(seen.append, args=(1,))
    xm.mark_step()
    assert seen == [1]


def test_error_is_raised_by_the_step(device):
    seen = []
    xm.add_step_closure(lambda: 1 / 0)
    xm.add_step_closure(seen.append, args=(1,))
    with pytest.raises(ZeroDivisionError):
        xm.mark_step()
    xm.mark_step()
    assert seen == []  # The step ended with the error.


def test_async_runs_sequentially_on_another_thread(device):
    seen = []

    def closure(index: int) -> None:
        time.sleep(0.01)
        seen.append((index, threading.current_thread()))

    for index in range(5):
        xm.add_step_closure(closure, args=(index,), run_async=True)
    start = time.perf_counter()
    xm.mark_step()
    assert time.perf_counter() - start < 0.04
    drain()
    assert [index for index, _ in seen] == [0, 1, 2, 3, 4]
    threads = {thread for _, thread in seen}
    assert len(threads) == 1
    assert threads != {threading.main_thread()}
    assert threads.pop().daemon


def test_async_error_is_raised_once_by_a_later_step(device):
    seen = []
    xm.add_step_closure(lambda: 1 / 0, run_async=True)
    xm.add_step_closure(seen.append, args=(1,), run_async=True)
    try:
        xm.mark_step()
        drain()
        raised = False
    except ZeroDivisionError:  # The thread was faster than this one.
        raised = True
    if not raised:
        with pytest.raises(ZeroDivisionError) as info:
            xm.mark_step()
        assert info.traceback[-1].name == "<lambda>"  # The place where it happened.
    drain()
    assert seen == [1]
    xm.mark_step()


def test_async_queue_is_bounded():
    handler = closures.AsyncClosureHandler(max_queue_size=2)
    gate = threading.Event()
    done = []
    handler.run(gate.wait)
    handler.run(lambda: done.append(1))
    handler.run(lambda: done.append(2))
    blocked = threading.Thread(target=handler.run, args=(lambda: done.append(3),))
    blocked.start()
    blocked.join(0.1)
    assert blocked.is_alive()
    gate.set()
    blocked.join(5)
    handler.wait()
    assert done == [1, 2, 3]


def test_async_closures_finish_at_exit():
    result = start_python(
        "-c",
        "import time, torch_xla.core.xla_model as xm\n"
        "xm.add_step_closure(lambda: (time.sleep(0.3), print('done')), run_async=True)\n"
        "xm.mark_step()\n",
    )
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_async_error_is_printed_at_exit():
    result = start_python(
        "-c",
        "import time, torch_xla.core.xla_model as xm\n"
        "def fail():\n"
        "  time.sleep(0.3)\n"
        "  raise ValueError('in the closure')\n"
        "xm.add_step_closure(fail, run_async=True)\n"
        "xm.mark_step()\n",
    )
    assert "ValueError: in the closure" in result.stderr
