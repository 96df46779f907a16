"""What the sweep of bounds.py excuses, with the reason."""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Excuse:
    """Which failures are excused: patterns of the operator, the kind, the sample and the text."""

    reason: str
    ops: str = ".*"
    kinds: tuple[str, ...] = ()
    sample: str = ""
    text: str = ""

    def covers(self, op: str, kind: str, sample: str, text: str) -> bool:
        return bool(
            re.fullmatch(self.ops, op)
            and (not self.kinds or kind in self.kinds)
            and re.search(self.sample, sample)
            and re.search(self.text, text)
        )


HUGE = r"=-?(9223372036854775807|9223372036854775808)\b"

EXCUSES: tuple[Excuse, ...] = (
    Excuse(
        "the CPU multiplies step and stride without a look and reads one element",
        "unfold",
        ("raised",),
        HUGE,
        "overflows",
    ),
    Excuse(
        "the CPU takes a kernel below 1, or larger than the map, and gives what is no maximum",
        r"nn\.functional\.fractional_max_pool[23]d",
        ("raised",),
        text="expected a kernel size from 1|sizes >= 0",
    ),
    Excuse("the device has no sparse tensors", r"sparse\..*"),
    Excuse(
        "the CPU's arithmetic on the window's sizes overflows, and what it reads is no window",
        r"nn\.functional\.(conv[123]d|conv_transpose[123]d|unfold|fold)",
        ("raised", "accepted"),
        text="too large|overflow|sizes >= 0|negative dimension|start <= limit|x -2147483647",
    ),
    Excuse(
        "the order is an int to the CPU's kernel, and overflows",
        r"(special\.)?polygamma.*",
        ("wrong",),
        "0=2147483648",
    ),
    Excuse(
        "a floating number that is none of int64's becomes one by chance on the CPU",
        r"logspace.*|nn\.functional\.pad\.constant",
        ("wrong",),
        r"^int64 \w+=(9223372036854775807|18446744073709551616|2147483648|nan|inf|1e\+30):",
    ),
    Excuse(
        "the CPU's circular padding that cuts more away than there is leaves memory as it was",
        r"nn\.functional\.pad\.circular",
        ("wrong",),
        r"=-4:",
    ),
    Excuse(
        "the CPU's 1d kernel takes a stride that its 2d and 3d kernels refuse",
        r"nn\.functional\.max_pool1d",
        ("raised",),
        "stride.*=2147483648",
    ),
    Excuse(
        "the CPU interpolates bytes in fixed point, rounded and clamped between its passes",
        r"nn\.functional\.(interpolate.*|upsample.*)|_upsample.*",
        ("wrong",),
        "^uint8",
    ),
    Excuse("-alpha overflows on the CPU", "r?sub", ("wrong",), r"alpha=-9223372036854775808"),
    Excuse(
        "an infinite factor meets sums of 0, or of both signs, at another place of the formula",
        r"add(mm|mv|r|bmm).*|baddbmm|.*rms_norm|.*multi_margin_loss",
        ("wrong",),
        r"=(inf|nan|1e\+30)\b",
        "nan",
    ),
    Excuse(
        "of modes that are none the CPU's kernels write nothing, or take another's rules",
        r"grid_sampler_[23]d",
        ("raised",),
        text="expected interpolation_mode and padding_mode",
    ),
    Excuse(
        "PyTorch's own loop, over the powers of 2 in -n, does not end on the CPU either",
        r"linalg\.matrix_power",
        ("hang", "crash"),
        r"=-9223372036854775808\b",
    ),
    Excuse(
        "of a 0-d tensor with a dim the CPU looks at a size that is not there, and takes the power "
        "and the root of one element, which overflow, where |x| is what it gives without the dim",
        r"norm|nn\.functional\.normalize|masked\.normalize",
        ("wrong",),
        r"\(\w+\[\], ",
    ),
    Excuse(
        "XLA lays out arrays without elements dimension by dimension, in bytes of 63 bits",
        r"nonzero_static|eye|repeat|tile|nn\.functional\.pixel_shuffle",
        ("raised",),
        r"=(2147483648|9223372036854775807)\b",
        r"[<x]0x.* is too large",
    ),
    Excuse(
        "sizes that contradict the (empty) input are not looked at by the CPU",
        r"native_group_norm|nn\.functional\.pad\..*",
        ("raised",),
        r"\[0, |\(float32\[0,",
    ),
)
