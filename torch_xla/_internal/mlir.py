"""MLIR in its binary form, by jaxlib: the only one who has it here."""

from __future__ import annotations

from typing import Any


def _stablehlo() -> Any:
    try:
        from jaxlib.mlir.dialects import stablehlo
    except ImportError as error:
        raise ImportError(
            "StableHLO's bytecode is read and written by jaxlib, which is not installed: "
            "pip install jaxlib"
        ) from error
    return stablehlo


def bytecode(text: str) -> bytes:
    """Returns a StableHLO module as a portable artifact of StableHLO's current version.

    Raises:
        ImportError: jaxlib is not installed.
    """
    stablehlo = _stablehlo()
    version = stablehlo.get_current_version()
    return bytes(stablehlo.serialize_portable_artifact_str(text, version))


def text(bytecode: bytes) -> str:
    """Returns the text of a portable artifact.

    Raises:
        ImportError: jaxlib is not installed.
    """
    stablehlo = _stablehlo()
    from jaxlib.mlir import ir

    with ir.Context() as context:
        stablehlo.register_dialect(context)
        return str(stablehlo.deserialize_portable_artifact(context, bytecode))
