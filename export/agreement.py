"""Comparing an exported capture with the eager model, at sizes that the exporter saw and at others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.capture import Capture
from zeus_trt.export.imitation import Imitation
from zeus_trt.export.runs import Settings, record_run
from zeus_trt.export.twin import make_twin
from zeus_trt.export.verify import TOLERANCE
from zeus_trt.runtime.denoiser import Denoiser

BATCHES = (1, 2, 3)


@dataclass(frozen=True)
class Agreement:
    """One comparison.

    Args:
        setting: What the pipeline was run with, where it differs from the base run.
        shape: Shape of the latents.
        max_error: Largest absolute difference of an element.
        relative_error: ``|engine - eager| / |eager|``, Euclidean norms.
    """

    setting: Mapping[str, Any]
    shape: tuple[int, ...]
    max_error: float
    relative_error: float


def verify_capture(
    captured: Capture,
    pipeline: Any,
    engine: Denoiser,
    settings: Settings,
    unseen: Sequence[Mapping[str, Any]] = (),
    batches: Sequence[int] = BATCHES,
    tolerance: float = TOLERANCE,
) -> tuple[Agreement, ...]:
    """Runs engine and eager model on what the pipeline passes at the base setting and at unseen ones.

    At each setting: the pipeline's own call, exactly as it was made; then every batch of ``batches``, with another
    timestep in each row.

    Args:
        captured: What was exported.
        pipeline: The pipeline that it was captured from.
        engine: What was exported, as a function of the flat inputs by name.
        settings: Those of the capture.
        unseen: Changes of ``settings.base``, to sizes that the capture never saw.
        batches: Batches of the denoiser; not used if its batch is fixed.
        tolerance: Largest relative error that is accepted.

    Raises:
        ZeusError: An output is not finite, or the error is above ``tolerance``.
    """
    eager, imitation, records = make_twin(captured.denoiser).eval(), Imitation(captured.denoiser), []
    for change in ({}, *unseen):
        arguments = record_run(pipeline, captured.component, settings, change, imitation).arguments
        inputs = captured.flatten(arguments)
        cases = [(arguments.nest(arguments.leaves), inputs)]
        for batch in batches if isinstance(captured.inputs[0].axes[0], str) else ():
            rows = take_rows(captured, inputs, batch)
            values = [int(rows[spec.name]) if spec.value else rows[spec.name] for spec in captured.inputs]
            cases.append((captured.nest(values), rows))
        for nested, flat in cases:
            with torch.inference_mode():
                expected = eager(**nested)[0].float()
            shape = tuple(flat[captured.inputs[0].name].shape)
            records.append(_compare(dict(change), shape, expected, engine(**flat).float(), tolerance))
    return tuple(records)


def take_rows(captured: Capture, inputs: Mapping[str, torch.Tensor], batch: int) -> dict[str, torch.Tensor]:
    """The same inputs with ``batch`` rows, repeated where there are fewer, each at another timestep."""
    symbol = captured.inputs[0].axes[0]
    taken = dict(inputs)
    for spec in captured.inputs:
        for axis, name in enumerate(spec.axes):
            if name == symbol:
                rows = torch.arange(batch) % inputs[spec.name].shape[axis]
                taken[spec.name] = taken[spec.name].index_select(axis, rows)
    timestep = captured.inputs[1].name
    fractions = torch.linspace(1, 0.5, batch).view(-1, *(1,) * (taken[timestep].ndim - 1))
    return taken | {timestep: taken[timestep] * fractions}


def _compare(
    setting: Mapping[str, Any], shape: tuple[int, ...], expected: torch.Tensor, got: torch.Tensor, tolerance: float
) -> Agreement:
    for name, output in (("eager model", expected), ("engine", got)):
        if not torch.isfinite(output).all():
            raise ZeusError(
                f"verification: got non-finite values from the {name} at latents {shape}; expected finite ones. "
                "Check the weights."
            )
    difference = got - expected
    relative = float(difference.norm() / expected.norm().clamp_min(1e-12))
    if relative > tolerance:
        raise ZeusError(
            f"verification: got a relative error of {relative:.2e} to the eager model at latents {shape}; expected at "
            f"most {tolerance:.0e}. Report the model, or raise the tolerance if you accept it."
        )
    return Agreement(setting, shape, float(difference.abs().max()), relative)
