"""Why a pair may be refused: reasons, found by the message of what was raised."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass
class Excuse:
    """A reason.

    Attributes:
        message: A regular expression that is found in the error's text.
        why: What the page says.
    """

    message: str
    why: str


EXCUSES = {
    "PyTorch's export": Excuse(
        "torch.export refuses it", "`torch.export.export` refuses the program, before it is ours"
    ),
}


def reason(said: str) -> str:
    """The name of the reason that excuses an error, or ""."""
    return next((name for name, e in EXCUSES.items() if re.search(e.message, said)), "")
