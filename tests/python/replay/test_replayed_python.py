"""Known traps of replay, in Python: each is right, or refused with words; none is silent."""

import pytest
import torch
from testing.replay import both, is_refused, is_replayed, is_right, status

import torch_xla
import torch_xla.core.xla_model as xm


class Counter:
    def __init__(self):
        self.calls = 0


class TestNumbers:
    @is_replayed
    def test_in_a_closure(self, compile, device):
        scale = 1.0

        @compile
        def f(x):
            return x * scale

        found = []
        for i in range(15):
            scale = 1.0 + i // 5
            found.append(f(torch.ones(3, device=device)))
        return found

    @is_refused("f's scale is 1.857")
    def test_that_changes_each_time(self, compile, device):
        scale = 0.0

        @compile
        def f(x):
            return x * scale

        found = []
        for i in range(15):
            scale = i / 7
            found.append(f(torch.ones(3, device=device)))
        return found

    @is_refused("counter['calls'] is 13 and was 12")
    def test_that_counts_inside(self, compile, device):
        counter = Counter()

        @compile
        def f(x):
            counter.calls += 1
            return x * counter.calls

        return [f(torch.ones(3, device=device)) for _ in range(15)]

    @is_replayed
    def test_as_an_argument(self, compile, device):
        @compile
        def f(x, by, *, plus=0):
            return x * by + plus

        x = torch.ones(3, device=device)
        return [f(x, 2.0 if i < 6 else 3.0, plus=i // 10) for i in range(16)]

    @is_refused("an object of type count")
    def test_of_an_iterator(self, compile, device):
        import itertools

        numbers = itertools.count()

        @compile
        def f(x):
            return x if next(numbers) < 8 else -x

        return [f(torch.ones(3, device=device)) for _ in range(15)]

    def test_of_a_generator_function(self, device):
        def program(compile, device):
            def count():
                n = 0
                while True:
                    yield n
                    n += 1

            numbers = count()

            @compile
            def f(x):
                return x if next(numbers) < 8 else -x

            return [f(torch.ones(3, device=device)) for _ in range(15)]

        found = both(program, device)
        assert found.replayed == 0 and found.reason


class TestPython:
    @is_refused("f's counter")
    def test_attribute_set_inside(self, compile, device):
        counter = Counter()

        @compile
        def f(x):
            counter.last = x + 1
            return x * 2

        found = []
        for i in range(15):
            found.append(f(torch.full((2,), float(i), device=device)))
            found.append(counter.last)
        return found

    @is_refused("f's kept has other entries")
    def test_list_of_the_user_s(self, compile, device):
        kept = []

        @compile
        def f(x):
            kept.append(x + 1)

        for i in range(15):
            f(torch.full((2,), float(i), device=device))
        return kept

    def test_print(self, device, capsys):
        @torch_xla.compile(replay=True)
        def f(x):
            print("here")
            return x + 1

        for _ in range(15):
            f(torch.ones(2, device=device))
        assert capsys.readouterr().out == "here\n" * 15
        assert "calls print() at" in status(f).reason and __file__ in status(f).reason

    def test_method_of_another_instance(self, device):
        class Scale:
            def __init__(self, by):
                self.by = by

            @torch_xla.compile(replay=True)
            def __call__(self, x):
                return x * self.by

        one, two = Scale(2.0), Scale(3.0)
        x = torch.ones(2, device=device)
        for _ in range(8):
            assert one(x).tolist() == [2, 2]
            assert two(x).tolist() == [3, 3]
        assert status(Scale.__call__).replayed > 0

    def test_method_of_a_class_is_replaced(self, device):
        class Scale:
            def by(self):
                return 2.0

        scale = Scale()

        @torch_xla.compile(replay=True)
        def f(x):
            return x * scale.by()

        x = torch.ones(2, device=device)
        assert [f(x).tolist() for _ in range(6)] == [[2, 2]] * 6
        assert status(f).replayed > 0
        Scale.by = lambda self: 5.0
        assert [f(x).tolist() for _ in range(6)] == [[5, 5]] * 6
        scale.by = lambda: 7.0
        assert [f(x).tolist() for _ in range(6)] == [[7, 7]] * 6

    def test_step_closure(self, device):
        seen = []

        @torch_xla.compile(replay=True)
        def f(x):
            xm.add_step_closure(lambda value: seen.append(value.item()), args=(x.sum(),))
            return x + 1

        for i in range(15):
            f(torch.full((1,), float(i), device=device))
        assert seen == [float(i) for i in range(15)]
        assert "step closure" in status(f).reason

    def test_error_inside(self, device):
        @torch_xla.compile(replay=True)
        def f(x, fail):
            if fail:
                raise KeyError("no")
            return x + 1

        x = torch.ones(2, device=device)
        for _ in range(5):
            f(x, False)
            with pytest.raises(KeyError):
                f(x, True)
        assert f(x, False).tolist() == [2, 2]


class TestReads:
    @pytest.mark.parametrize("read", ["item", "branch", "tolist", "cpu", "sync", "argument"])
    @is_refused("it asks for")
    def test_is_refused(self, compile, device, read):
        @compile
        def f(x):
            y = x * 2
            if read == "item":
                return x * y.sum().item()
            if read == "branch":
                return y if y.sum() > 20 else -y
            if read == "tolist":
                return x + y.tolist()[0]
            if read == "cpu":
                return x + y.cpu().sum().item()
            if read == "argument":
                return y * x.sum().item()
            torch_xla.sync()
            return y

        return [f(torch.full((2,), float(i), device=device)) for i in range(15)]

    def test_names_the_line(self, device):
        @torch_xla.compile(replay=True)
        def f(x):
            return x * x.sum().item()  # This line.

        for _ in range(4):
            f(torch.ones(2, device=device))
        assert "test_replayed_python.py:" in status(f).reason

    @is_replayed
    def test_cpu_tensor_from_outside(self, compile, device):
        weight = torch.ones(2)

        @compile
        def f(x):
            return x * weight.to(device)

        found = []
        for i in range(18):
            if i % 6 == 5:
                weight.mul_(2)
            found.append(f(torch.ones(2, device=device)))
        return found

    @is_refused("tensor on cpu")
    def test_cpu_argument(self, compile, device):
        @compile
        def f(x):
            return x.to(device) * 2

        return [f(torch.full((2,), float(i))) for i in range(15)]

    @is_right
    def test_tensor_that_nothing_leads_to(self, compile, device):
        hidden = {}

        class Meta(type):
            def __getattr__(cls, name):
                return hidden[name]

        class Hidden(metaclass=Meta):
            pass

        hidden["x"] = torch.ones(2, device=device)

        @compile
        def f(y):
            return y + Hidden.x

        found = []
        for i in range(15):
            if i == 8:
                hidden["x"] = torch.full((2,), 5.0, device=device)
            found.append(f(torch.ones(2, device=device)))
        return found
