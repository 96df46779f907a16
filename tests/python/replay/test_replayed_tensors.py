"""Known traps of replay, in tensors: each is right, or refused with words; none is silent."""

import threading

import pytest
import torch
from testing.replay import is_refused, is_replayed, is_right, mlp, status

import torch_xla
import torch_xla.core.xla_model as xm


class TestTensors:
    @is_replayed
    def test_results_are_kept(self, compile, device):
        total = torch.zeros(2, device=device)

        @compile
        def f(x):
            total.add_(x)
            return total * 2, total.clone(), total

        return [f(torch.full((2,), float(i), device=device))[:2] for i in range(12)]

    @is_replayed
    def test_arguments_that_share_memory(self, compile, device):
        @compile
        def f(a, b):
            a.add_(1)
            return a * b

        found = []
        for _ in range(6):
            x, y = torch.ones(2, device=device), torch.full((2,), 3.0, device=device)
            found += [f(x, y), x, y]
        for i in range(6):
            x = torch.full((2,), float(i), device=device)
            found += [f(x, x), x]
        for _ in range(6):
            x = torch.arange(4.0, device=device)
            found += [f(x[:2], x[1:3]), x]
            found += [f(x[:2], x[2:]), x]
        return found

    @is_replayed
    def test_argument_that_is_a_result(self, compile, device):
        @compile
        def f(x):
            return x * 2 + 1, x

        x, found = torch.ones(2, device=device), []
        for _ in range(12):
            y, same = f(x)
            assert same is x
            found.append(y)
            x = y
        return found

    @is_refused("returns a container that is an argument")
    def test_result_is_a_list_that_an_argument_holds(self, compile, device):
        x = torch.ones(2, device=device)
        x.parts = [torch.zeros(2, device=device)]

        @compile
        def f(x):
            return x.parts

        return [f(x) is x.parts for _ in range(8)]

    @is_replayed
    def test_result_is_a_view_of_an_argument(self, compile, device):
        @compile
        def f(x):
            return x[1:], x.t()

        found = []
        for _ in range(8):
            x = torch.arange(6.0, device=device).reshape(2, 3)
            row, turned = f(x)
            turned.add_(1)
            row.mul_(2)
            found.append(x)
        return found

    @is_replayed
    def test_view_at_another_offset(self, compile, device):
        @compile
        def f(x):
            return x * 2

        x = torch.arange(12.0, device=device)
        return [f(x[i // 4 * 3 : i // 4 * 3 + 2]) for i in range(16)]

    @is_replayed
    def test_clone_of_state_survives(self, compile, device):
        weight = torch.ones(3, device=device)

        @compile
        def f(x):
            weight.add_(x)

        kept = []
        for i in range(16):
            if i % 3 == 0:
                kept.append(weight.clone())
            f(torch.full((3,), float(i), device=device))
        return [*kept, weight]

    @is_replayed
    def test_gradients_of_earlier_calls(self, compile, device):
        """One that nobody has seen is written in place; one that somebody has is another tensor."""
        layer = torch.nn.Linear(3, 3, device=device)

        @compile
        def step(x):
            layer.zero_grad()
            layer(x).square().sum().backward()

        found, kept = [], []
        for i in range(16):
            step(torch.full((2, 3), float(i), device=device))
            grad = layer.weight.grad
            if i % 4 == 0:
                kept += [grad, layer.bias.grad.view(3, 1), layer.bias.grad[1:]]
            elif i % 4 == 1:
                assert not hasattr(grad, "mark"), i
                grad.mark = i
            elif i % 4 == 2:
                kept.append(grad.detach())
                layer.bias.grad.add_(1)
            found += [grad._version, layer.bias.grad._version]
            found += [layer.weight.grad.clone(), layer.bias.grad.clone()]
            del grad
        for i in range(4):
            step(torch.full((2, 3), float(i), device=device))  # Nobody looks.
        return found, kept, [p.grad for p in layer.parameters()]

    @is_replayed
    def test_state_is_replaced_between_calls(self, compile, device):
        model = mlp(device)

        @compile
        def f(x):
            with torch.no_grad():
                return model(x)

        found = []
        x = torch.ones(2, 6, device=device)
        for i in range(24):
            if i == 6:
                model[0].weight.data = torch.ones(8, 6, device=device)
            if i == 10:
                model.load_state_dict(
                    {k: v * 2 for k, v in model.state_dict().items()}, assign=True
                )
            if i == 16:
                model[0].weight = model[0].weight
                model[3].bias = torch.nn.Parameter(torch.ones(3, device=device))
            found.append(f(x))
        return found

    @is_replayed
    def test_lora_on_and_off(self, compile, device):
        class Lora(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.base = torch.nn.Linear(3, 3)
                self.low = torch.nn.Linear(3, 3)
                self.on = True

            def forward(self, x):
                return self.base(x) + self.low(x) if self.on else self.base(x)

        model = Lora().to(device)

        @compile
        def f(x):
            with torch.no_grad():
                return model(x)

        found = []
        for i in range(20):
            model.on = i // 5 % 2 == 0
            found.append(f(torch.ones(2, 3, device=device)))
        return found

    @is_replayed
    def test_resized_buffer(self, compile, device):
        buffer = torch.ones(4, device=device)

        @compile
        def f(x):
            return x * buffer.sum()

        found = []
        for i in range(16):
            if i == 6:
                buffer.resize_(2)
            if i == 11:
                buffer.resize_(6).fill_(2)
            found.append(f(torch.ones(2, device=device)))
        return found

    @is_replayed
    def test_fill_between_calls(self, compile, device):
        total = torch.zeros(2, device=device)

        @compile
        def f(x):
            total.add_(x)
            return total * 3

        found = []
        for i in range(24):
            if i % 5 == 0 or 10 < i < 16:
                total.zero_()
            found.append(f(torch.full((2,), float(i), device=device)))
        return [*found, total]

    @is_refused("grad_fn")
    def test_graph_from_outside(self, compile, device):
        weight = torch.ones(2, device=device, requires_grad=True)

        @compile
        def f(x):
            return (x * 2).sum()

        found = []
        for _ in range(6):
            weight.grad = None
            f(weight * 3).backward()
            found.append(weight.grad)
        return found

    def test_saved_tensor_is_overwritten(self, device):
        weight = torch.ones(2, device=device, requires_grad=True)

        @torch_xla.compile(replay=True)
        def f():
            with torch.no_grad():
                weight.add_(1)

        for _ in range(6):
            f()
        assert status(f).replayed > 0
        outside = (weight * weight).sum()
        f()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outside.backward()


class TestRandom:
    @is_replayed
    def test_dropout_and_state(self, compile, device):
        model = mlp(device, dropout=0.5)

        @compile
        def f(x):
            return model(x).detach() + torch.randn(2, 3, device=device)

        found = []
        x = torch.ones(2, 6, device=device)
        for i in range(12):
            found.append(f(x))
            if i % 4 == 3:
                found.append(torch.rand(3, device=device))
            found.append(xm.get_rng_state())
        torch_xla.manual_seed(11)
        found += [f(x), f(x)]
        return [*found, torch.rand(2, device=device)]

    def test_second_thread_draws(self, device):
        @torch_xla.compile(replay=True)
        def f():
            return torch.rand(4, device=device)

        for _ in range(6):
            f()
        replayed = status(f).replayed
        assert replayed > 0

        def draw(found):
            found += [torch.rand(4, device=device).cpu() for _ in range(20)]

        theirs, ours = [], []
        thread = threading.Thread(target=draw, args=(theirs,))
        thread.start()
        ours = [f().cpu() for _ in range(20)]
        thread.join(60)
        everything = torch.stack(ours + theirs)
        assert len(torch.unique(everything, dim=0)) == 40  # Each seed was drawn once.

    @is_right
    def test_seed_is_set_inside(self, compile, device):
        @compile
        def f():
            torch_xla.manual_seed(5)
            return torch.rand(3, device=device)

        return [f() for _ in range(15)]

    @is_refused("draws from the generator")
    def test_generator_of_the_user_s(self, compile, device):
        generator = torch.Generator(device=device)
        generator.manual_seed(4)

        @compile
        def f():
            return torch.rand(3, device=device, generator=generator)

        return [f() for _ in range(15)]


class TestModes:
    @is_replayed
    def test_answers_of_the_context_are_guarded(self, compile, device):
        @compile
        def f(x):
            is_exact = torch.get_float32_matmul_precision() == "highest"
            return x * 2 if is_exact else x * 3

        found, x = [], torch.ones(2, device=device)
        try:
            for i in range(20):
                torch.set_float32_matmul_precision("medium" if i // 5 % 2 else "highest")
                found.append(f(x))
        finally:
            torch.set_float32_matmul_precision("highest")
        return found

    @pytest.mark.parametrize(
        "mode", ["train", "autocast", "grad", "dtype", "deterministic", "precision", "inference"]
    )
    @is_replayed
    def test_is_guarded(self, compile, device, mode):
        model = mlp(device, dropout=0.4)

        @compile
        def f(x):
            made = torch.ones(2, device=device)
            return model(x + made.sum().to(x.dtype)).detach(), made

        found = []
        x = torch.ones(2, 6, device=device)
        try:
            for i in range(20):
                on = i // 5 % 2 == 1
                if mode == "train":
                    model.train(not on)
                elif mode == "dtype":
                    torch.set_default_dtype(torch.float64 if on else torch.float32)
                elif mode == "deterministic":
                    torch.use_deterministic_algorithms(on)
                elif mode == "precision":
                    torch_xla.backends.set_mat_mul_precision("highest" if on else "default")
                with (
                    torch.autocast("xla", torch.bfloat16, enabled=mode == "autocast" and on),
                    torch.set_grad_enabled(not (mode == "grad" and on)),
                    torch.inference_mode(mode == "inference" and on),
                ):
                    found.append(f(x))
        finally:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
            torch_xla.backends.set_mat_mul_precision("default")
        return found
