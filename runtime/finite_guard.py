"""Stopping where numbers end."""

import math

import torch

from zeus_trt.errors import ZeusError

_NEVER = 2**31 - 1


class FiniteGuard:
    """Finds the first full step of a trajectory whose output is not finite.

    Args:
        device: Where the outputs are. On the CPU each is checked at once; elsewhere the device remembers the first bad
            step, and nothing waits for it before ``finish``.
    """

    def __init__(self, device: torch.device):
        self._first = None if device.type == "cpu" else torch.full((), _NEVER, dtype=torch.int32, device=device)

    def check(self, step: int, output: torch.Tensor) -> None:
        """Looks at the output of a full step.

        Raises:
            ZeusError: On the CPU: it is not finite.
        """
        if self._first is not None:
            self._first = torch.where(output.isfinite().all(), self._first, self._first.clamp(max=step))
        elif not math.isfinite(output.sum()) and not output.isfinite().all():  # the sum of large numbers is infinite
            raise _refuse("model_output", f"full step {step}")

    def finish(self, latents: torch.Tensor) -> None:
        """Looks at the end of the trajectory, and waits for the device.

        Raises:
            ZeusError: An output was not finite, or the final latents are not.
        """
        first = _NEVER if self._first is None else int(self._first)
        if first != _NEVER:
            raise _refuse("model_output", f"full step {first}")
        if not latents.isfinite().all():
            raise _refuse("latents", "the last step")


def _refuse(name: str, place: str) -> ZeusError:
    return ZeusError(
        f"{name}: got NaN or infinity at {place}; expected numbers. If it runs in fp16, export it in bf16 or "
        "keep some modules in fp32; else look for them in the conditioning."
    )
