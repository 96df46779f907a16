"""What the conformance suite excuses, by operator and with the reason: one table for all of it.

An ``Excuse`` with tolerances widens them; one without lets the check fail. ``make conformance``
fails when nothing needed an entry, so that none outlives its reason: but for those of some CPUs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Excuse:
    """Which checks of an operator are excused; no names means all of them."""

    reason: str
    checks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    rtol: float = 0.0
    atol: float = 0.0
    # The result in double precision decides instead of the CPU's kernel, whose error may be
    # doubled: for formulas that cancel, where neither rounding is more right than the other.
    precise: bool = False
    # What the failure's message must contain to be excused.
    match: str = ""
    # The CPU's kernel is off, or XLA has no such dtype: the operator counts as passed.
    neutral: bool = False
    # Not every model of CPU shows it: that nothing needed it on one says nothing.
    some_cpus: bool = False

    @property
    def widens(self) -> bool:
        return bool(self.rtol or self.atol or self.precise)

    def covers(self, check: str, dtype: str, message: str) -> bool:
        return (
            (not self.checks or check in self.checks)
            and (not self.dtypes or dtype in self.dtypes)
            and self.match in message
        )


# Operator (of op_db) -> what is excused.
SPARSE = "the device has no sparse tensors"
STRIDED_OUT = "the CPU's kernel does not write to a strided out="
UNREAD = "indices and probabilities are not read back to be checked, as on other accelerators"
FIXED_POINT = "the CPU interpolates bytes in fixed point, rounded and clamped between its passes"
HALF = ("bfloat16", "float16")
CPU_NAN = "the CPU's complex64 is NaN; its complex128 and finite differences agree with xla"
NO_RESIZE = "the CPU does not resize an empty out= here, as it does for other operators"
NO_SAMPLES = "the CPU does not write the mean loss of no samples: it is what the memory held"
HALF_STEP = "the CPU rounds the step to half precision: twice as far from the exact numbers"
COMPLEX_HALF = "XLA has no complex numbers of half precision"
CHUNKED = "PyTorch accumulates in float32 on cpu and cuda alone"
TIES = "of equal elements any may be chosen, or come first"
ORDER = "sums of many numbers, in another order"
LOGITS = "logits of thousands: how they are rounded decides the softmax"
CHAINS = "gradients summed over chains of matrix products: as close to double precision"
CANCELS = "the formula cancels: CPU and XLA (which fuses multiply and add) round differently"
POLES = "at its poles the CPU's trigamma is a large number of no meaning"
ONE_DOT = "the CPU computes this one product of bools, and refuses all others"
INTEGER_HISTC = "integers are refused on the CPU alone; mixtures of experts count tokens by it"

EXCEPTIONS: dict[str, list[Excuse]] = {
    "__rpow__": [Excuse(CANCELS, dtypes=("complex64",), rtol=1e-5)],
    "_upsample_bilinear2d_aa": [Excuse(FIXED_POINT, dtypes=("uint8",), neutral=True)],
    "asin": [Excuse(CANCELS, ("grad",), precise=True)],
    "atanh": [Excuse(CANCELS, ("grad",), precise=True)],
    "chalf": [Excuse(COMPLEX_HALF, neutral=True)],
    "complex": [Excuse(COMPLEX_HALF, dtypes=("float16",), neutral=True)],
    "cov": [Excuse(CANCELS, ("grad",), precise=True)],
    "digamma": [Excuse(CANCELS, ("grad",), precise=True)],
    "erfinv": [
        Excuse("exp(erfinv(x)^2) multiplies an error by 2 erfinv(x)^2", ("grad",), rtol=2e-5)
    ],
    "fft.hfft2": [Excuse(CANCELS, precise=True)],
    "grid_sampler_2d": [Excuse(ORDER, ("grad",), precise=True)],
    "grid_sampler_3d": [Excuse(ORDER, ("grad",), rtol=1e-4, atol=5e-4)],
    "histc": [Excuse(INTEGER_HISTC, ("dtype",), match="histogram_cpu", neutral=True)],
    "kron": [Excuse(CANCELS, ("grad",), precise=True)],
    "linalg.householder_product": [Excuse(ORDER, ("grad",), precise=True)],
    "linalg.lstsq": [Excuse(ORDER, ("grad",), ("complex64",), precise=True)],
    "linalg.lstsq.grad_oriented": [Excuse(ORDER, ("grad",), ("complex64",), precise=True)],
    "linalg.multi_dot": [
        Excuse(ORDER, ("grad",), ("complex64", "float32"), precise=True, some_cpus=True)
    ],
    "linspace": [Excuse(HALF_STEP, ("forward",), HALF, rtol=0.01, atol=0.02)],
    "linspace.tensor_overload": [Excuse(HALF_STEP, ("forward",), HALF, rtol=0.01, atol=0.02)],
    "max_pool2d_with_indices_backward": [
        Excuse("the forward takes integers, and no gradient of them is asked for", ("dtype",))
    ],
    "msort": [Excuse(TIES, ("grad",), HALF, neutral=True)],
    "multinomial": [Excuse(UNREAD, ("error",), match="probab")],
    "narrow_copy": [Excuse(STRIDED_OUT, ("out",), neutral=True)],
    "native_layer_norm": [
        # PyTorch's Meta kernel and CUDA have them in float32, too; of one number they are exact.
        Excuse("the CPU rounds the statistics", ("forward", "dtype"), HALF, neutral=True)
    ],
    "nn.functional.avg_pool3d": [Excuse(STRIDED_OUT, ("out",), neutral=True)],
    "nn.functional.conv_transpose3d": [Excuse(ORDER, ("grad",), rtol=5e-4, atol=5e-4)],
    "nn.functional.ctc_loss": [Excuse(ORDER, ("grad",), rtol=1e-4, atol=1e-4)],
    "nn.functional.embedding": [Excuse(f"sparse=True: {SPARSE}", ("grad",))],
    "nn.functional.embedding_bag": [Excuse(f"sparse=True: {SPARSE}", ("grad",))],
    "nn.functional.gelu": [Excuse(STRIDED_OUT, ("out",), neutral=True)],
    "nn.functional.interpolate.bicubic": [Excuse(FIXED_POINT, dtypes=("uint8",), neutral=True)],
    "nn.functional.interpolate.bilinear": [Excuse(FIXED_POINT, dtypes=("uint8",), neutral=True)],
    "nn.functional.layer_norm": [Excuse(CANCELS, ("grad",), precise=True)],
    "nn.functional.linear": [Excuse(STRIDED_OUT, ("out",), match="must match", neutral=True)],
    "nn.functional.linear_cross_entropy.chunked": [
        Excuse(CHUNKED, ("forward", "grad"), HALF, rtol=0.05, atol=0.06)
    ],
    "nn.functional.linear_cross_entropy.chunked_none": [
        Excuse(CHUNKED, ("forward", "grad"), HALF, rtol=0.05, atol=0.06)
    ],
    "nn.functional.max_pool1d": [
        Excuse(
            "the CPU's max_pool2d, which this is made of, takes integers, its max_pool1d not",
            ("dtype",),
            match="max_pool1d_impl",
            neutral=True,
        )
    ],
    "nn.functional.multi_head_attention_forward": [
        Excuse(
            LOGITS, ("forward", "noncontiguous", "grad"), ("float32",), precise=True, some_cpus=True
        ),
        Excuse(LOGITS, ("forward", "noncontiguous"), ("float32",), rtol=1e-4, some_cpus=True),
        Excuse(LOGITS, ("forward", "grad"), HALF),
    ],
    "nn.functional.multilabel_margin_loss": [Excuse(NO_SAMPLES, ("empty",), neutral=True)],
    "nn.functional.multilabel_soft_margin_loss": [
        Excuse(CANCELS, ("forward",), ("float16",), rtol=3e-3)
    ],
    "nn.functional.pixel_unshuffle": [
        Excuse("the CPU returns an empty input in its old shape", ("empty",), neutral=True)
    ],
    "nn.functional.poisson_nll_loss": [Excuse(CANCELS, ("forward",), ("bfloat16",), rtol=0.03)],
    "nn.functional.rrelu": [
        Excuse("random operators are not tried; this one draws halves", ("dtype",), ("float16",))
    ],
    "nn.functional.upsample_bilinear": [Excuse(FIXED_POINT, dtypes=("uint8",), neutral=True)],
    "normal": [Excuse(NO_RESIZE, ("out",), neutral=True)],
    "normal.number_mean": [Excuse(NO_RESIZE, ("out",), neutral=True)],
    "polygamma.polygamma_n_0": [
        Excuse(CANCELS, precise=True),
        Excuse(POLES, ("dtype",), match="inf", neutral=True),
    ],
    **{
        f"polygamma.polygamma_n_{n}": [Excuse(POLES, ("dtype",), match="inf", neutral=True)]
        for n in range(1, 5)
    },
    "renorm": [
        Excuse(CPU_NAN, ("grad",), ("complex64",), match="nan", neutral=True, some_cpus=True)
    ],
    "sort": [Excuse(TIES, ("grad",), HALF, neutral=True)],
    "sparse.mm.reduce": [Excuse(SPARSE)],
    "sparse.sampled_addmm": [Excuse(SPARSE)],
    "special.i0e": [Excuse(CANCELS, ("grad",), HALF, rtol=0.2)],
    "special.polygamma.special_polygamma_n_0": [
        Excuse(CANCELS, precise=True),
        Excuse(POLES, ("dtype",), match="inf", neutral=True),
    ],
    "stft": [Excuse(CANCELS, ("grad",), precise=True)],
    "tensordot": [Excuse(ONE_DOT, ("dtype",), match="'Bool'", neutral=True)],
    "to_sparse": [Excuse(SPARSE)],
    "torch._scaled_mm": [
        Excuse("the CPU writes a float8 product to integers", ("out",), neutral=True)
    ],
    "view_as_complex": [Excuse(COMPLEX_HALF, dtypes=("float16", "bfloat16"), neutral=True)],
}

# Why an aten operator runs on the CPU. One without a line here fails the suite.
_SHAPE = "the shape of the result depends on the data, which the host has to see"
FALLBACK_REASONS: dict[str, str] = {
    "_segment_reduce_backward": "the segments' lengths are data, and loop bounds",
    "_to_sparse": SPARSE,
    "_unique": _SHAPE,
    "_unique2": _SHAPE,
    "bincount": _SHAPE,
    "hash_tensor": "a checksum of the bits, for debugging",
    "linalg_lstsq": "LAPACK's least squares of matrices that may lack full rank",
    "nonzero": _SHAPE,
    "repeat_interleave": _SHAPE,
    "segment_reduce": "the segments' lengths are data, and loop bounds",
    "unique_consecutive": _SHAPE,
    "unique_dim": _SHAPE,
}

# Results that nobody wrote: shape and dtype are compared.
UNINITIALIZED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}

# Cutting the samples of these gives arguments that crash PyTorch's own CPU kernel.
NO_EMPTY = {"lu_unpack"}

# What these do is said in strides, or they ask for memory in a certain order: there is no
# non-contiguous xla tensor to give them.
LAYOUT = {
    "as_strided",
    "as_strided.partial_views",
    "as_strided_copy",
    "as_strided_scatter",
    "native_group_norm",
    "torch._scaled_mm_v2",
    "view_as_complex",
}

# Results drawn from a generator: shape, dtype and moments are compared.
RANDOM = {
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "nn.functional.alpha_dropout",
    "nn.functional.dropout",
    "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout.with_train",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu",
    "normal",
    "normal.in_place",
    "normal.number_mean",
    "pca_lowrank",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "svd_lowrank",
    "uniform",
}

# Operators of which some samples are random -> what the text of such a one contains.
SOMETIMES_RANDOM = {
    "nn.functional.multi_head_attention_forward": ("False, 0.5,", "True, 0.5,"),
    "nn.functional.scaled_dot_product_attention": ("dropout_p=0.5",),
}


def _chosen(result: Any, input: Any, k: int, dim: int = -1, *args: Any, **kwargs: Any) -> Any:
    """Of equal elements any may be chosen: the indices must lead to the values, in any order
    where no order is promised."""
    values, indices = result
    if indices.dim() < input.dim():
        at = input.gather(dim, indices.unsqueeze(dim)).squeeze(dim)
    else:
        at = input.gather(dim, indices)
    if args[1:] == (False,) or kwargs.get("sorted") is False:
        values, at = (x.sort(dim).values for x in (values, at))
    return [values, at.to(values.dtype)]


def _sorted(result: Any, input: Any, dim: int = -1, *args: Any, **kwargs: Any) -> Any:
    """The elements that the indices lead to."""
    if isinstance(result, tuple):
        return [result[0], input.gather(dim, result[1]).to(result[0].dtype)]
    return input.gather(dim, result)


# Operators whose result is one of several right ones -> what of it is unique, from the result
# and the arguments.
CANONICAL: dict[str, Callable[..., Any]] = {
    "argsort": _sorted,
    "kthvalue": _chosen,
    "sort": _sorted,
    "topk": _chosen,
}

# Module -> (rtol, atol, reason).
MODULE_TOLERANCES: dict[str, tuple[float, float, str]] = {
    "nn.Conv3d": (1e-4, 5e-5, ORDER),
    "nn.ConvTranspose3d": (1e-4, 5e-5, ORDER),
    "nn.LazyConv3d": (1e-4, 5e-5, ORDER),
    "nn.LazyConvTranspose3d": (1e-4, 5e-5, ORDER),
    "nn.MultiheadAttention": (1e-4, 5e-5, CHAINS),
    "nn.Transformer": (1e-4, 5e-5, CHAINS),
    "nn.TransformerDecoderLayer": (1e-4, 5e-5, CHAINS),
    "nn.TransformerEncoder": (1e-4, 5e-5, CHAINS),
    "nn.TransformerEncoderLayer": (1e-4, 5e-5, CHAINS),
}
