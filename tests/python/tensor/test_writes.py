"""Writes in place, threads and processes."""

import threading

import pytest
import torch
from testing.ops import C64, check
from testing.processes import python_output
from testing.tensors import xla
from torch.utils.data import DataLoader, TensorDataset

import torch_xla

# ---------------------------------------------------------------- writes


def test_index_writes():
    def f(device):
        x = torch.arange(12.0, device=device).view(3, 4)
        index = torch.tensor([2, 0], device=device)
        x[x > 9] = -1.0
        x[index] += 100
        x[index, torch.tensor([1, 1], device=device)] = 7.0
        x[:, 3] = torch.tensor([1.0, 2.0, 3.0], device=device)
        x[1, ..., None] = 5
        x[(x == 5) | (x == 7)] = torch.arange(6.0, device=device)
        x[0] += 1
        x[-1, ::2] *= 2
        x[:, 0:0] = 3
        return x

    torch.testing.assert_close(f("xla").cpu(), f("cpu"))


def test_augmented_operators_keep_identity():
    x = torch.ones(2, device="xla")
    y = x
    x += 1
    x *= 3
    x -= 2
    x /= 4
    assert x is y and y.tolist() == [1, 1]


def test_out_arguments():
    a = xla([1.0, 2.0])
    out = torch.zeros(2, device="xla")
    assert torch.add(a, 1, out=out) is out and out.tolist() == [2, 3]
    base = torch.zeros(2, 3, device="xla")
    torch.mul(a, 10, out=base[:, 1])
    assert base.tolist() == [[0, 10, 0], [0, 20, 0]]
    empty = torch.empty(0, device="xla")
    torch.exp(torch.zeros(3, device="xla"), out=empty)
    assert empty.shape == (3,) and empty.tolist() == [1, 1, 1]
    wide = torch.empty(2, device="xla", dtype=torch.float64)
    assert torch.add(a, a, out=wide).dtype == torch.float64 and wide.tolist() == [2, 4]
    values, indices = torch.empty(0, device="xla"), torch.empty(0, device="xla", dtype=torch.int64)
    torch.max(xla([[1.0, 3.0], [5.0, 2.0]]), 1, out=(values, indices))
    assert values.tolist() == [3, 5] and indices.tolist() == [1, 0]
    with pytest.raises(RuntimeError, match="xla"):
        torch.add(a, 1, out=torch.zeros(2))


def test_in_place_with_itself():
    x = xla([1.0, 2.0, 3.0, 4.0])
    x.add_(x)
    x[1:].copy_(x[:-1].clone())
    assert x.tolist() == [2, 2, 4, 6]
    square = torch.arange(4.0, device="xla").view(2, 2)
    square.copy_(square.t().clone())
    assert square.tolist() == [[0, 2], [1, 3]]


def test_clone_and_values_outlive_their_sources():
    x = torch.ones(3, device="xla")
    y = x + 1
    z = x.clone()
    x.zero_()
    torch_xla.sync()
    x.add_(5)
    del x
    assert y.tolist() == [2, 2, 2] and z.tolist() == [1, 1, 1]


def test_view_of_a_dead_base():
    view = (torch.arange(6.0, device="xla") * 2)[2:4]
    torch_xla.sync()
    view.add_(1)
    assert view.tolist() == [5, 7]


# ---------------------------------------------------------------- loaders, threads, processes


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers):
    torch.ones(1, device="xla").add(1).cpu()  # the client runs when the workers are forked
    data = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))
    total = torch.zeros((), device="xla")
    for x, y in DataLoader(data, batch_size=4, num_workers=workers, timeout=60 if workers else 0):
        x, y = x.to("xla"), y.to("xla")
        total += x.sum() + y.sum()
    assert total.item() == 190 + 45


def test_threads_trace_at_once():
    # Each sync cuts what all threads have traced so far, so hardly two graphs are alike.
    threads, rounds = 3, 9
    start = threading.Barrier(threads, timeout=60)
    results, errors = [None] * threads, []

    def work(k):
        try:
            start.wait()
            x = torch.full((4,), float(k), device="xla", requires_grad=True)
            state = torch.zeros(4, device="xla")
            for step in range(rounds):
                loss = (x * x + state).sum()
                (grad,) = torch.autograd.grad(loss, x)
                state[1:].add_(grad[:-1])
                state.view(2, 2).t().mul_(0.5)
                if step % 3 == k % 3:
                    torch_xla.sync()
                elif step % 5 == 0:
                    state.sum().item()
            results[k] = state.cpu()
        except BaseException as error:  # noqa: B036 - reported by the test
            errors.append(error)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    assert not errors and not any(worker.is_alive() for worker in workers)
    for k in range(threads):
        state = torch.zeros(4)
        for _ in range(rounds):
            state[1:].add_(2.0 * k)
            state.view(2, 2).t().mul_(0.5)
        torch.testing.assert_close(results[k], state)


@pytest.mark.multiprocess
def test_a_forked_child_that_uses_the_device_fails_cleanly():
    out = python_output(
        """
        import os, torch, torch_xla
        x = torch.ones(2, device="xla") + 1
        torch_xla.sync(wait=True)
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                torch.ones(2, device="xla").add(1).cpu()
            except RuntimeError as error:
                code = 7 if "fork" in str(error) else 4
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), x.tolist())
        """
    )
    assert out.split() == ["7", "[2.0,", "2.0]"]


@pytest.mark.multiprocess
def test_exit_with_pending_work_and_live_tensors():
    out = python_output(
        """
        import torch, torch_xla
        x = torch.ones(300, 300, device="xla")
        for _ in range(20):
            x = x @ x * 1e-3
        torch_xla.sync()
        y = x + 1
        print("end")
        """
    )
    assert out.strip() == "end"


def test_writes_to_expanded_nothing() -> None:
    def write(x: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
        y = x.expand(size)
        y.fill_(1)
        y.add_(1)
        return y.copy_(torch.ones(size, device=x.device))

    check(write, torch.empty(0, 1), (0, 3))
    check(write, torch.empty(1, 0), (3, 0))


def test_results_into_views_without_elements() -> None:
    for look in (torch.imag, torch.view_as_real, lambda x: x.mT.reshape(-1), lambda x: x.real):
        for device in ("cpu", "xla"):
            base = torch.zeros(0, 3, dtype=C64, device=device)
            out = look(base)
            one = torch.ones(2, 2, dtype=out.dtype, device=device)
            torch.add(one, 1, out=out)
            assert out.cpu().equal(torch.full((2, 2), 2, dtype=out.dtype))
            assert base.shape == (0, 3) and base.cpu().numel() == 0
