"""How far a quantized graph is from the float graph, and whether that is near enough."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import torch

from zeus_trt.calibration.recording import Recording
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.quality import measure_psnr
from zeus_trt.runtime.denoiser import Denoiser

_ADVICE = (
    "The bundle is as it was. Keep the blocks in float that cost most (sensitivity), record more samples, or accept it."
)


@dataclass(frozen=True)
class GraphError:
    """Errors of a graph on recorded inputs.

    Args:
        steps: ``|output - recorded| / |recorded|`` over all calls of a step, Euclidean norms, by step.
        relative: The same over all calls.
        largest: The largest absolute difference of an element.
        shape: Shape of the outputs.
    """

    steps: Mapping[int, float]
    relative: float
    largest: float
    shape: tuple[int, ...]


def measure_errors(engine: Denoiser, recording: Recording) -> GraphError:
    """Runs an engine on recorded inputs, and compares its outputs with the recorded ones."""
    away: dict[int, float] = defaultdict(float)
    size: dict[int, float] = defaultdict(float)
    largest, shape = 0.0, ()
    for call, inputs, output in recording.read():
        expected = torch.from_numpy(output).double()
        got = engine(**{name: torch.from_numpy(value) for name, value in inputs.items()}).double().cpu()
        away[call.step] += float((got - expected).square().sum())
        size[call.step] += float(expected.square().sum())
        largest, shape = max(largest, float((got - expected).abs().max())), tuple(output.shape)
    steps = {step: _relate(away[step], size[step]) for step in away}
    return GraphError(steps, _relate(sum(away.values()), sum(size.values())), largest, shape)


def _relate(away: float, size: float) -> float:
    return sqrt(away / size) if size else (inf if away else 0.0)


def check_errors(errors: GraphError, max_error: float) -> None:
    """Raises ZeusError where the error of a step is above ``max_error``, or no number."""
    wrong = [step for step, error in errors.steps.items() if not error <= max_error]
    if wrong:
        worst = max(wrong, key=lambda step: errors.steps[step] if isfinite(errors.steps[step]) else inf)
        raise ZeusError(
            f"quantized graph: got a relative error of {errors.steps[worst]:.2g} to the float graph at step {worst}; "
            f"expected at most {max_error:g}. {_ADVICE}"
        )


def check_samples(images: torch.Tensor, reference: torch.Tensor, min_psnr: float) -> float:
    """Mean PSNR in dB of samples to those of the float graph, without equal ones; infinity if all are equal.

    Raises:
        ZeusError: It is below ``min_psnr``.
    """
    psnr = _mean_psnr(images, reference)
    if not psnr >= min_psnr:
        raise ZeusError(
            f"quantized graph: got samples with {psnr:.1f} dB to those of the float graph; expected at least "
            f"{min_psnr:g} dB. {_ADVICE}"
        )
    return psnr


def _mean_psnr(images: torch.Tensor, reference: torch.Tensor) -> float:
    """Of a video its frames are the pictures."""
    frames, others = ((one if one.ndim == 5 else one[:, None]) for one in (images.float(), reference.float()))
    values = [measure_psnr(one, other) for one, other in zip(frames, others, strict=True)]
    found = [value for value in values if isfinite(value)]
    return sum(found) / len(found) if found else inf
