"""What the conformance suite excuses, by operator and with the reason: one table for all of it.

An ``Excuse`` with tolerances widens them; one without lets the check fail. ``make conformance``
fails when nothing needed an entry, so that none outlives its reason.
"""

from __future__ import annotations

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
OVERLAP = Excuse(
    "a tensor is a value and no memory: a write that overlaps itself or an input is well defined",
    ("error",),
    match="unsupported operation",
)
UNREAD = "indices and probabilities are not read back to be checked, as on other accelerators"
CANCELS = "the formula cancels: CPU and XLA (which fuses multiply and add) round differently"

EXCEPTIONS: dict[str, list[Excuse]] = {
    "asin": [Excuse(CANCELS, ("grad",), precise=True)],
    "atanh": [Excuse(CANCELS, ("grad",), precise=True)],
    "bernoulli": [OVERLAP],
    "cat": [OVERLAP],
    "chalf": [Excuse("XLA has no complex numbers of half precision")],
    "cov": [Excuse(CANCELS, ("grad",), precise=True)],
    "erfinv": [Excuse(CANCELS, ("grad",), precise=True)],
    "gather": [OVERLAP, Excuse(UNREAD, ("error",), match="out of bounds")],
    "index_select": [OVERLAP],
    "kron": [Excuse(CANCELS, ("grad",), precise=True)],
    "kthvalue": [OVERLAP],
    "masked_select": [OVERLAP],
    "multinomial": [
        Excuse(UNREAD, ("error",), match="probab"),
        Excuse(UNREAD, ("error",), match="2^24"),
    ],
    "nn.functional.conv_transpose3d": [Excuse(CANCELS, ("grad",), precise=True)],
    "nn.functional.embedding": [Excuse(f"sparse=True: {SPARSE}", ("grad",))],
    "nn.functional.embedding_bag": [Excuse(f"sparse=True: {SPARSE}", ("grad",))],
    "nn.functional.layer_norm": [Excuse(CANCELS, ("grad",), precise=True)],
    "scatter": [Excuse(UNREAD, ("error",), match="out of bounds")],
    "scatter_add": [Excuse(UNREAD, ("error",), match="out of bounds")],
    "sparse.mm.reduce": [Excuse(SPARSE)],
    "sparse.sampled_addmm": [Excuse(SPARSE)],
    "stft": [Excuse(CANCELS, ("grad",), precise=True)],
    "take": [OVERLAP],
    "to_sparse": [Excuse(SPARSE)],
}

# Why an aten operator runs on the CPU. One without a line here fails the suite.
FALLBACK_REASONS: dict[str, str] = {}

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

# Operators whose result is one of several right ones -> what of it is unique.
CANONICAL: dict[str, Callable[[Any, Any], Any]] = {}

# Module -> (rtol, atol, reason).
MODULE_TOLERANCES: dict[str, tuple[float, float, str]] = {
    "nn.MultiheadAttention": (1e-4, 5e-5, "gradients summed over chains of matrix products"),
}
