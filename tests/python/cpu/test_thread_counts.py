"""Results of the CPU's calls do not depend on how many threads the program runs on."""

from testing.kernels import needs_calls
from testing.processes import python_output

CASES = """
import hashlib
import torch
import torch.nn.functional as F
import torch_xla

torch.manual_seed(0)
bf16 = torch.bfloat16

def rand(*sizes, dtype=torch.float32):
    return torch.randn(*sizes).to(dtype)

def grad(function, *inputs):
    def gradients(*leaves):
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        y = function(*leaves)
        weights = torch.arange(y.numel(), device=y.device).remainder(7).sub(3)
        return torch.autograd.grad(y, leaves, weights.to(y.dtype).view_as(y))
    return gradients, inputs

def convolution(x, w, **options):
    return grad(lambda x, w: F.conv2d(x, w, **options), rand(*x), rand(*w))

def recurrent(kind, times, samples, width, state):
    layer = kind(width, state).to("xla")
    parameters = list(layer.parameters())
    return lambda x: torch.autograd.grad(layer(x)[0].sum(), parameters), [
        rand(times, samples, width)
    ]

def norm(function, x, parameters, dtype=torch.float32):
    return grad(function, *(rand(*sizes, dtype=dtype) for sizes in (x, parameters, parameters)))

images = (17, 63, 31, 33)
cases = {
    "dot": (torch.dot, [rand(1000001), rand(1000001)]),
    "sum": (torch.sum, [rand(1000, 1001)]),
    "sum of bfloat16": (torch.sum, [rand(1000, 1001, dtype=bf16)]),
    "sums of rows": (lambda x: x.sum(-1), [rand(5, 300100, dtype=bf16)]),
    "sums of columns": (lambda x: x.sum(0), [rand(30001, 17)]),
    "product": (torch.prod, [rand(1000003).mul(0.001).exp()]),
    "norm": (torch.norm, [rand(1000003)]),
    "norms": (lambda *x: torch._foreach_norm(x), [rand(30011) for _ in range(9)]),
    "cross entropy": grad(
        lambda x: F.cross_entropy(x, torch.arange(len(x), device=x.device) % x.shape[1]),
        rand(512, 257),
    ),
    "layer norm": norm(lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), (1025, 767), (767,)),
    "layer norm of bfloat16": norm(
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), (1025, 767), (767,), bf16
    ),
    "group norm": norm(lambda x, w, b: F.group_norm(x, 8, w, b), (9, 64, 33, 31), (64,)),
    "batch norm": norm(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), images, (63,)
    ),
    "tiles": convolution((16, 64, 16, 16), (64, 64, 3, 3), padding=1),
    "few tiles": convolution((16, 256, 4, 4), (256, 256, 3, 3), padding=1),
    "few pixels": convolution((16, 128, 2, 2), (128, 128, 3, 3), padding=1),
    "one tap": convolution((40, 256, 2, 2), (1024, 256, 1, 1)),
    "large kernel": convolution((16, 3, 64, 64), (64, 3, 7, 7), stride=2, padding=3),
    "two images": convolution((2, 128, 33, 33), (131, 128, 3, 3), padding=1),
    "three images": convolution((3, 32, 40, 40), (33, 32, 5, 5), padding=2),
    "many images": convolution((64, 8, 9, 9), (16, 8, 3, 3)),
    "depthwise": convolution((8, 96, 28, 28), (96, 1, 3, 3), padding=1, groups=96),
    "two groups": convolution((8, 128, 14, 14), (128, 64, 3, 3), padding=1, groups=2),
    "bfloat16": grad(
        lambda x, w: F.conv2d(x, w, padding=1),
        rand(16, 64, 16, 16, dtype=bf16),
        rand(64, 64, 3, 3, dtype=bf16),
    ),
    "three dimensions": grad(
        lambda x, w: F.conv3d(x, w, padding=1), rand(2, 32, 5, 8, 9), rand(48, 32, 3, 3, 3)
    ),
    "attention": grad(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *(rand(3, 5, 256, 64) for _ in range(3)),
    ),
    "lstm": recurrent(torch.nn.LSTM, 4, 66, 64, 128),
    "gru": recurrent(torch.nn.GRU, 4, 18, 64, 128),
    "bags": grad(
        lambda w: F.embedding_bag(torch.arange(1024, device=w.device).view(-1, 4) * 7 % 999, w),
        rand(1000, 32),
    ),
    "pooling": grad(lambda x: F.max_pool2d(x, 3, 2), rand(8, 64, 33, 33)),
}
for name, (function, inputs) in cases.items():
    made = function(*(x.to("xla") for x in inputs))
    digests = []
    for y in [made] if isinstance(made, torch.Tensor) else made:
        data = y.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        digests.append(hashlib.sha1(data).hexdigest())
    print(name, *digests)
"""


@needs_calls
def test_bits_do_not_depend_on_threads() -> None:
    one, *others = (
        python_output(CASES, NPROC=threads, XLA_PERSISTENT_CACHE_PATH="").splitlines()
        for threads in ("1", "2", "5")
    )
    assert len(one) == 30
    for other in others:
        assert not set(one) ^ set(other)
