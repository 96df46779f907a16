"""What knows the shapes of results: rules/shape_inference.h."""

from testing.processes import python_output


def test_inference_imports_no_compiler_of_pytorch():
    """Python's Meta kernels would, for over a second and 80 MB, at the first addition."""
    output = python_output("""
        import sys
        import torch
        from torch import nn
        import torch_xla

        device = torch.device("xla")
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        words = nn.Sequential(nn.Embedding(10, 8), layer, nn.Linear(8, 10)).eval().to(device)
        image = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4), nn.Hardswish(),
            nn.MaxPool2d(2), nn.ConvTranspose2d(4, 4, 2), nn.ReflectionPad2d(1), nn.PReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LogSigmoid(),
        ).eval().to(device)
        with torch.no_grad():
            x = words(torch.ones(2, 3, dtype=torch.int64, device=device))
            y = image(torch.ones(2, 3, 8, 8, device=device))
            z = torch.where(x > 0, 1 - x, x.abs() // 2).masked_fill(x.isnan(), 0).logsumexp(-1)
            w = torch.fft.rfft(x.flip(0).roll(1)).angle().repeat(2, 1, 1).std() % 3
            half = torch.ones(2, 3, 4, 8).half().to(device)  # not the flash kernel's
            nn.functional.scaled_dot_product_attention(half, half, half)
        x[0, 0] = 0.0
        print(x.sum().item() + y.mean().item() + z.var().item() + w.item() != 0)
        print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
        """)
    assert output.split("\n") == ["True", "[]"]


def test_gradients_import_no_compiler_of_pytorch_either():
    """Nor call Python's Meta kernels, which take milliseconds for each new size."""
    output = python_output("""
        import copy
        import sys
        import torch
        from torch import nn
        import torch_xla

        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        words = nn.Sequential(
            nn.Embedding(10, 8), layer, nn.LayerNorm(8, elementwise_affine=False),
            nn.Linear(8, 10), nn.GLU(), nn.LayerNorm(5, bias=False),
        )
        image = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4, affine=False),
            nn.Hardswish(), nn.BatchNorm2d(4, affine=False), nn.GroupNorm(2, 4), nn.Hardtanh(),
            nn.PReLU(), nn.Flatten(), nn.LogSigmoid(), nn.Linear(144, 1), nn.Sigmoid(),
        )
        x, y = torch.arange(6).view(2, 3), torch.linspace(-1, 1, 384).view(2, 3, 8, 8)

        def grads(models, device):
            inputs = y.to(device).detach().clone().requires_grad_()
            (words, image) = (model.to(device) for model in models)
            labels = torch.ones(2, 1, device=device)
            loss = nn.functional.binary_cross_entropy(image(inputs), labels)
            (loss + (words(x.to(device)) ** 2).mean()).backward()
            return [inputs.grad, *(p.grad for m in (words, image) for p in m.parameters())]

        want = grads(copy.deepcopy((words, image)), "cpu")
        got = grads((words, image), "xla")
        print(sorted({name for name in ("torch._dynamo", "sympy") if name in sys.modules}))
        print(all(g.dtype == w.dtype and g.shape == w.shape for g, w in zip(got, want)))
        print(all(torch.allclose(g.cpu(), w, 1e-3, 1e-5) for g, w in zip(got, want)))
        """)
    assert output.split("\n") == ["[]", "True", "True"]
