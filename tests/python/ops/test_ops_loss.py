"""Softmax and losses, forward and backward, against CPU PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from testing.ops import BF16, C64, F16, F32, F64, I64, INF, NAN, check, check_many, rand

import torch_xla
import torch_xla.debug.metrics as met

aten = torch.ops.aten

HALF = {"rtol": 1e-2, "atol": 1e-2}
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
REDUCTIONS = ("none", "mean", "sum")


def classes(*shape, n=5, ignored=None):
    """Targets from 0 to n - 1, one of them `ignored`."""
    target = torch.randint(0, n, shape, generator=torch.Generator().manual_seed(len(shape)))
    if ignored is not None and target.numel():
        target.view(-1)[0] = ignored
    return target


# ---- Softmax


@pytest.mark.parametrize("fn", [F.softmax, F.log_softmax, F.softmin])
def test_softmax(fn):
    x = rand(3, 4, 5) * 20
    check_many([(fn, (x, d)) for d in (0, 1, -1)], grad=True, rtol=1e-5, atol=1e-5)
    check_many([(fn, (rand(), d)) for d in (0, -1)] + [(fn, (rand(1), 0))], grad=True)
    check_many([(fn, (rand(2, 0, 3), d)) for d in (0, 1, 2)], grad=True)


def test_softmax_of_infinities():
    x = torch.tensor([[INF, 1, 2], [-INF, 1, 2], [-INF, -INF, -INF], [NAN, 1, 2], [1e30, 1e30, 0]])
    check_many([(fn, (x, d)) for fn in (F.softmax, F.log_softmax) for d in (0, 1)])


@pytest.mark.parametrize("dtype", [F64, F16, BF16], ids=str)
def test_softmax_dtypes(dtype):
    x = rand(3, 40, dtype=dtype)
    tolerance = {} if dtype == F64 else HALF
    check_many([(fn, (x, 1)) for fn in (F.softmax, F.log_softmax)], grad=True, **tolerance)
    cases = [(fn, (x, 1), {"dtype": F32}) for fn in (F.softmax, F.log_softmax)]
    check_many(cases, grad=True, **(CLOSE if dtype == F64 else HALF))


# ---- Losses of two tensors

ELEMENTWISE = [
    (F.mse_loss, {}),
    (F.l1_loss, {}),
    (F.smooth_l1_loss, {}),
    (F.smooth_l1_loss, {"beta": 0.3}),
    (F.smooth_l1_loss, {"beta": 0.0}),
    (F.huber_loss, {}),
    (F.huber_loss, {"delta": 0.4}),
    (F.kl_div, {}),
]


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_elementwise_losses(reduction):
    x, y = rand(3, 4), rand(3, 4, seed=1).abs() + 0.1
    cases = [(fn, (x, y), {"reduction": reduction, **kw}) for fn, kw in ELEMENTWISE]
    check_many(cases, grad=True, **CLOSE)


def test_elementwise_losses_on_boundaries():
    x = torch.tensor([0.0, 1, -1, 0.5, -0.5, 2, NAN, INF])
    y, grad = torch.zeros(8), torch.ones(8)
    check_many(
        [
            (F.smooth_l1_loss, (x, y), {"reduction": "none"}),
            (F.huber_loss, (x, y), {"reduction": "none"}),
            (aten.smooth_l1_loss_backward, (grad, x, y, 0, 1.0)),
            (aten.smooth_l1_loss_backward, (grad, x, y, 0, 0.0)),
            (aten.huber_loss_backward, (grad, x, y, 0, 1.0)),
            (aten.mse_loss_backward, (grad, x, y, 0)),
        ]
    )


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_losses_broadcast_and_shapes():
    cases = [(F.mse_loss, (rand(3, 4), rand(4))), (F.huber_loss, (rand(3, 1), rand(3, 4)))]
    cases += [(F.mse_loss, (rand(), rand(seed=1)), {"reduction": r}) for r in REDUCTIONS]
    check_many(cases, grad=True)
    check_many([(F.mse_loss, (rand(0, 3), rand(0, 3)), {"reduction": r}) for r in REDUCTIONS])
    check_many([(F.mse_loss, (rand(9).half(), rand(9, seed=1).half()))], grad=True, **HALF)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy(reduction):
    x, y = torch.sigmoid(rand(3, 4)), torch.sigmoid(rand(3, 4, seed=1))
    certain = torch.tensor([0.0, 1, 0, 1]), torch.tensor([0.0, 0, 1, 1])
    weight, kw = rand(3, 4, seed=2).abs(), {"reduction": reduction}

    def weighted(x, y, w, reduction):  # PyTorch has no gradient of the weight
        return F.binary_cross_entropy(x, y, w.detach(), reduction=reduction)

    check_many(
        [
            (F.binary_cross_entropy, (x, y), kw),
            (weighted, (x, y, weight), kw),
            (F.binary_cross_entropy_with_logits, (rand(3, 4), y), kw),
        ],
        grad=True,
        rtol=1e-5,
        atol=1e-5,
    )
    logits = rand(3, 4), y, weight
    cases = [(F.binary_cross_entropy_with_logits, logits, {"pos_weight": weight[0], **kw})]
    check_many([*cases, (F.binary_cross_entropy, certain, kw)], **CLOSE)
    grad = torch.ones(4) if reduction == "none" else torch.tensor(1.0)
    number = REDUCTIONS.index(reduction)
    check(aten.binary_cross_entropy_backward, grad, *certain, None, number)


# ---- Losses of classes


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_loss(reduction):
    weight, kw = rand(5).abs() + 0.1, {"reduction": reduction}
    cases = []
    for shape in ((4, 5), (5,), (2, 5, 3), (2, 5, 3, 2), (2, 5, 2, 1, 2)):
        x = rand(*shape)
        target = classes(*shape[:1], *shape[2:]) if len(shape) > 1 else classes()
        skipped = target.clone()
        skipped.view(-1)[:1] = -100 if target.dim() else target
        named = classes(*target.shape, ignored=2)
        cases += [
            (F.nll_loss, (x, target), kw),
            (F.nll_loss, (x, target, weight), kw),
            (F.nll_loss, (x, skipped), kw),
            (F.cross_entropy, (x, named), {"ignore_index": 2, **kw}),
            (F.cross_entropy, (x, named, weight), {"ignore_index": 2, **kw}),
        ]
    check_many(cases, **CLOSE)
    # PyTorch has no gradient of the class weights.
    plain = [case for case in cases if len(case[1]) == 2 and case[1][0].dim() in (1, 2, 4)]
    check_many(plain, grad=True, **CLOSE)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_nll_loss_operators(reduction):
    x, target, weight = rand(4, 5), classes(4, ignored=-100), rand(5).abs()
    grad = rand(4) if reduction == 0 else torch.tensor(0.7)
    total = torch.tensor(2.5)
    image, pixels = rand(2, 5, 3, 2), classes(2, 3, 2, ignored=1)
    pixel_grad = rand(2, 3, 2) if reduction == 0 else torch.tensor(0.7)
    cases = []
    for w in (None, weight):
        cases += [
            (aten.nll_loss_forward, (x, target, w, reduction, -100)),
            (aten.nll_loss_backward, (grad, x, target, w, reduction, -100, total)),
            (aten.nll_loss2d_forward, (image, pixels, w, reduction, 1)),
            (aten.nll_loss2d_backward, (pixel_grad, image, pixels, w, reduction, 1, total)),
            (aten.nll_loss_forward, (x[0], target[1], w, reduction, -100)),
        ]
    cases += [(aten.nll_loss_forward, (x, torch.full((4,), -100), None, reduction, -100))]
    cases += [(aten.nll_loss_forward, (x[:0], target[:0], None, reduction, -100))]
    check_many(cases, **CLOSE)


@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 2, 1, 0, 3])], ids=["", "weights"])
@pytest.mark.parametrize("dims", [(6,), (1, 2, 3)], ids=["rows", "pixels"])
def test_the_gradient_of_cross_entropy_sums_over_no_class(dims, weight):
    """What is summed there is zero but at the target, and would be made for it."""
    target = torch.tensor([0, 4, -100, 2, 3, 4]).view(dims)
    for reduction in REDUCTIONS:
        grads = []
        for device in ("cpu", "xla"):
            x = rand(dims[0], 5, *dims[1:]).to(device).requires_grad_()
            there = None if weight is None else weight.to(device)
            loss = F.cross_entropy(x, target.to(device), there, reduction=reduction)
            loss.square().sum().backward()
            grads.append(x.grad)
        text = torch_xla._XLAC._get_xla_tensors_hlo(grads[1:])
        sums = [line for line in text.splitlines() if "across dimensions = [1]" in line]
        assert len(sums) == 2, sums  # the maximum and the sum of the forward
        torch.testing.assert_close(grads[1].cpu(), grads[0], **CLOSE)


def test_cross_entropy_options():
    x, target = rand(4, 5), classes(4)
    probabilities = torch.softmax(rand(4, 5, seed=1), 1)
    check_many(
        [
            (F.cross_entropy, (x, target), {"label_smoothing": 0.1}),
            (F.cross_entropy, (x, probabilities)),
            (F.cross_entropy, (x, probabilities), {"label_smoothing": 0.2, "reduction": "sum"}),
            (F.cross_entropy, (x.double(), target)),
        ],
        grad=True,
        rtol=1e-5,
        atol=1e-5,
    )
    check_many([(F.cross_entropy, (x.half(), target)), (F.cross_entropy, (x.bfloat16(), target))],
               grad=True, **HALF)  # fmt: skip


def test_class_out_of_range_does_not_crash():
    loss = F.nll_loss(torch.zeros(2, 3, device="xla"), torch.tensor([7, 0], device="xla") * 1)
    assert loss.cpu().shape == ()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margin_losses(reduction):
    x, target = rand(4, 5), classes(4)
    labels = torch.tensor([[0, 3, -1, 2, 1], [-1, 0, 0, 0, 0], [4, 3, 2, 1, 0], [2, -1, 2, 2, 2]])
    kw = {"reduction": reduction}
    cases = [
        (F.multi_margin_loss, (x, target), {"p": p, "margin": margin, **kw})
        for p in (1, 2)
        for margin in (1.0, 0.3)
    ]
    cases += [
        (
            lambda x, t, w: F.multi_margin_loss(x, t, weight=w.detach(), **kw),
            (x, target, rand(5).abs()),
        ),
        (F.multilabel_margin_loss, (x, labels), kw),
        (F.multilabel_margin_loss, (x.double(), labels), kw),
        (lambda x, t: F.multilabel_soft_margin_loss(x, (t > 0).float(), **kw), (x, labels)),
        (lambda x: F.soft_margin_loss(x, x.detach().sign(), **kw), (x,)),
        (lambda x: F.hinge_embedding_loss(x, x.detach().sign(), **kw), (x,)),
        (
            lambda x, y: F.margin_ranking_loss(x, y, x.detach().sign(), margin=0.2, **kw),
            (x, rand(4, 5, seed=1)),
        ),
        (F.cosine_embedding_loss, (x, rand(4, 5, seed=1), torch.tensor([1, -1, 1, -1])), kw),
        (F.triplet_margin_loss, (x, rand(4, 5, seed=1), rand(4, 5, seed=2)), kw),
    ]
    check_many([c for c in cases if c[0] is not F.multi_margin_loss], grad=True, **CLOSE)
    check_many([c for c in cases if c[0] is F.multi_margin_loss], grad=True, **CLOSE)
    check(F.multilabel_margin_loss, x[0], labels[0], kwargs=kw, grad=True, **CLOSE)
    check(F.multi_margin_loss, x[0], target[0], kwargs=kw, grad=True, **CLOSE)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_of_nothing(loss, reduction):
    check_many([(loss, (rand(0, 3), rand(0, 3)), {"reduction": reduction})], grad=True)


CTC_LENGTHS = {
    "all": ([12, 12, 12], [4, 4, 4]),
    "some": ([12, 9, 5], [4, 2, 3]),
    "no labels": ([12, 3, 12], [0, 0, 1]),
}


@pytest.mark.parametrize("lengths", CTC_LENGTHS)
@pytest.mark.parametrize("concatenated", [False, True])
def test_ctc_loss(lengths, concatenated):
    inputs, labels = CTC_LENGTHS[lengths]
    targets = torch.tensor([[1, 2, 2, 3], [5, 5, 1, 2], [4, 3, 4, 1]])
    if concatenated:
        targets = torch.cat([row[:n] for row, n in zip(targets, labels, strict=True)])
    x = rand(12, 3, 6)

    def loss(x, targets, inputs=tuple(inputs), labels=tuple(labels), **kwargs):
        return F.ctc_loss(x.log_softmax(-1), targets, inputs, labels, **kwargs)

    cases = [(loss, (x, targets), {"reduction": reduction}) for reduction in REDUCTIONS]
    cases.append((loss, (x.double(), targets.int())))
    check_many(cases, grad=True, rtol=1e-4, atol=1e-5)


def test_ctc_loss_of_the_impossible():
    x, targets = rand(3, 2, 5), torch.tensor([[1, 1, 1], [2, 3, 4]])

    def loss(x, targets, inputs, **kwargs):
        return F.ctc_loss(x.log_softmax(-1), targets, inputs, torch.tensor([3, 3]), **kwargs)

    inputs = torch.tensor([3, 3])
    check_many([(loss, (x, targets, inputs), {"reduction": "none"})], **CLOSE)
    check_many(
        [(loss, (x, targets, inputs), {"zero_infinity": True, "blank": b}) for b in (0,)],
        grad=True,
        rtol=1e-4,
        atol=1e-5,
    )
    with pytest.raises(RuntimeError, match="blank"):
        F.ctc_loss(x.to("xla"), targets.to("xla"), (3, 3), (3, 3), blank=9)


def test_ctc_lengths_are_no_part_of_the_program():
    x, targets = rand(8, 2, 5).to("xla"), torch.tensor([[1, 2, 3], [2, 3, 4]]).to("xla")
    before = None
    for inputs in ((8, 8), (6, 7), (8, 5)):
        F.ctc_loss(x.log_softmax(-1), targets, inputs, (3, 2)).cpu()
        after = met.counter_value("UncachedCompile")
        assert before in (None, after)
        before = after


@pytest.mark.parametrize("dtype", [torch.bool, C64, I64, F32])
def test_softmax_of_nothing(dtype: torch.dtype) -> None:
    cases = [
        (fn, (torch.zeros(shape, dtype=dtype), dim))
        for fn in (torch.softmax, torch.log_softmax)
        for shape, dim in (((0, 0, 0), 0), ((0, 3), 1), ((3, 0), 1))
    ]
    check_many(cases)


def test_margin_losses_of_nan() -> None:
    x = torch.tensor([[1.0, 2.0, NAN], [0.5, 1.0, 0.0]])
    single, several = torch.tensor([2, 0]), torch.tensor([[2, -1, 0], [0, 1, -1]])
    losses = ((F.multi_margin_loss, single), (F.multilabel_margin_loss, several))
    check_many([(loss, (x, target), {"reduction": "none"}) for loss, target in losses])
