"""The backend ``xla`` of torch.compile: PyTorch's own ``openxla`` by another name."""

from __future__ import annotations

from typing import Any


def xla(graph: Any, example_inputs: Any, **kwargs: Any) -> Any:
    """Compiles a graph of dynamo.

    Args:
        graph: The graph.
        example_inputs: Its inputs.
        **kwargs: ``options`` and ``mode`` of torch.compile. ``options`` are those of XLA's
            compiler: see :func:`torch_xla.set_custom_compile_options`.
    """
    from torch._dynamo.backends.torchxla import openxla

    kwargs.pop("mode", None)
    options = kwargs.pop("options", None)
    if not options:
        return openxla(graph, example_inputs, **kwargs)
    from torch_xla import _XLAC
    from torch_xla._internal.compile.traced_region import as_options

    settings = _XLAC._xla_compile_settings(as_options(options), "")
    compiled = openxla(graph, example_inputs, **kwargs)

    def run(*args: Any) -> Any:
        before = _XLAC._xla_set_thread_settings(settings)
        try:
            return compiled(*args)
        finally:
            _XLAC._xla_set_thread_settings(before)

    return run
