"""Why a pair may be refused: reasons, found by the message of what was raised."""

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
    "PyTorch's compiler": Excuse(
        "does not currently support double backward|compiled with non-empty donated buffers",
        "`torch.compile` of PyTorch has no second derivative, with any backend",
    ),
    "read in an export": Excuse(
        r"exported_program_to_stablehlo\(\).*(graph would be cut|has no value)",
        "a StableHLO program cannot ask the host in its middle: for the number of a mask's "
        "elements, which decides a size, or for a factorization, which runs on the host",
    ),
    "read in a full graph": Excuse(
        "full_graph=True: the graph would be cut here",
        "the step reads a value of the device, as a factorization on the host does; "
        "`full_graph=True` is there to refuse that",
    ),
}


def reason(said: str) -> str:
    """The name of the reason that excuses an error, or ""."""
    return next((name for name, e in EXCUSES.items() if re.search(e.message, said)), "")
