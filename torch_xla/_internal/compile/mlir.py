"""MLIR bytecode, which only jaxlib can read and write here."""

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

    Operations of CHLO (``erf``, ``top_k``), which plugins take and portable artifacts have none of,
    become StableHLO's.

    Raises:
        ImportError: jaxlib is not installed.
    """
    stablehlo = _stablehlo()
    version = stablehlo.get_current_version()
    if "chlo." not in text:
        return bytes(stablehlo.serialize_portable_artifact_str(text, version))
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo

    stablehlo.register_stablehlo_passes()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    with ir.Context() as context:
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        stablehlo.register_dialect(context)
        chlo.register_dialect(context)
        module = ir.Module.parse(text)
        legalize = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
        passmanager.PassManager.parse(legalize).run(module.operation)
        return bytes(stablehlo.serialize_portable_artifact(module, version))


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
