"""An engine, and the sizes of the batches that it takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.batch_size import takes_batch
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.serving.waiting_call import Part


@dataclass(frozen=True, eq=False)
class Lane:
    """The engine of one letter of plans.

    Args:
        engine: Called with gathered rows.
        sizes: The numbers of rows that a call may have, ascending. Fewer rows are padded with copies of the last one.
        close: Closes the engine.
    """

    engine: Denoiser
    sizes: tuple[int, ...]
    close: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, engine: Denoiser, manifest: Manifest, max_rows: int, batch_sizes: Sequence[int] | None) -> "Lane":
        """The lane of a bundle's engine.

        Args:
            engine: The engine; the shapes that it was built for are looked at.
            manifest: That of its bundle.
            max_rows: The most rows of a call.
            batch_sizes: The only sizes of calls, up to ``max_rows``; by default every size that the engine takes.

        Raises:
            ZeusError: The engine takes none of these sizes.
        """
        asked = sorted({*(batch_sizes or range(1, max_rows + 1))})
        profile = getattr(getattr(engine, "info", None), "profile", None)
        limits = profile[manifest.latents.name] if profile else None
        sizes = tuple(size for size in asked if size <= max_rows and takes_batch(engine, manifest, size))
        if not sizes:
            raise ZeusError(
                f"max_rows: got batches of {asked[0]} to {max_rows} rows; expected a size that the engine takes"
                f"{f', {limits.min[0]} to {limits.max[0]}' if limits else ''}. Change max_rows, or batch_sizes."
            )
        return cls(SizeRules.of(manifest).guard(engine), sizes, getattr(engine, "close", cls.close))

    @property
    def most(self) -> int:
        """The most rows of a call."""
        return self.sizes[-1]

    def pad(self, rows: int) -> int:
        """How many rows are added to these."""
        return next(size for size in self.sizes if size >= rows) - rows

    @torch.no_grad()
    def run(self, parts: Sequence[Part]) -> torch.Tensor:
        """Calls the engine once.

        Args:
            parts: Rows of calls with the same key, at most ``most`` in all.

        Returns:
            The output, (rows, ...); padding is cut off.

        Raises:
            ZeusError: The engine gave something else than a tensor with a row per row of its input.
        """
        rows = sum(part.rows for part in parts)
        size = rows + self.pad(rows)
        is_alone = len(parts) == 1 and size == parts[0].call.rows
        inputs = parts[0].call.inputs if is_alone else _gather(parts, size - rows)
        output = self.engine(**inputs)
        if not isinstance(output, torch.Tensor) or not output.ndim or len(output) != size:
            got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
            raise ZeusError(f"denoiser: got {got} for {size} rows; expected a tensor with as many. Fix the engine.")
        return output[:rows]


def _gather(parts: Sequence[Part], padding: int) -> dict[str, torch.Tensor]:
    first = parts[0].call
    gathered = dict(first.inputs)
    for name in first.by_row:
        rows = [part.cut(part.call.inputs[name]) for part in parts]
        if padding:
            rows.append(rows[-1][-1:].expand(padding, *rows[-1].shape[1:]))
        gathered[name] = torch.cat(rows)
    return gathered
