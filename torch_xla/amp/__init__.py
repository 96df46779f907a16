"""Mixed precision on the ``xla`` device.

``torch.autocast("xla")`` and ``torch.amp.GradScaler("xla")`` work as on every other device; the
names here are for scripts that use them from this package.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from torch_xla.amp import syncfree

__all__ = ["GradScaler", "autocast", "syncfree"]


class autocast(torch.amp.autocast):  # noqa: N801
    """Runs the operators within in the precision that suits each: ``torch.autocast("xla")``.

    Args:
        device: An XLA device, or its name; all of the process are meant.
        enabled: False makes it do nothing.
        dtype: ``torch.bfloat16`` (the default) or ``torch.float16``.
        cache_enabled: Whether a parameter that is used twice is converted once.

    Raises:
        ValueError: ``device`` is not an XLA device.
    """

    def __init__(
        self,
        device: torch.device | str = "xla",
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = None,
    ) -> None:
        if torch.device(device).type != "xla":
            raise ValueError(f"torch_xla.amp.autocast(): expected an XLA device, got {device}")
        super().__init__("xla", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """Scales the loss so that float16 gradients do not vanish: ``torch.amp.GradScaler("xla")``.

    ``step()`` reads whether a gradient overflowed, which waits for the step; the optimizers of
    :mod:`torch_xla.amp.syncfree`, and PyTorch's own with ``fused=True``, look on the device.

    Args:
        init_scale: The first factor.
        growth_factor: What it is multiplied by after ``growth_interval`` steps without overflow.
        backoff_factor: What it is multiplied by after an overflow.
        growth_interval: In steps.
        enabled: False makes all its methods do nothing.
        use_zero_grad: Whether any optimizer steps without a read: after an overflow with gradients
            of 0, which its state and a weight decay do notice.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        use_zero_grad: bool = False,
    ) -> None:
        super().__init__("xla", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._use_zero_grad = use_zero_grad

    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> float | None:
        if not self._use_zero_grad:
            return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)
        overflowed = sum(optimizer_state["found_inf_per_device"].values()) > 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.masked_fill_(overflowed.to(parameter.grad.device), 0)
        return cast(float | None, optimizer.step(*args, **kwargs))
