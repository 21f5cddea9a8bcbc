"""The noise at every step: what rules over samples measure in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose, sqrt
from typing import TYPE_CHECKING, Any

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.sigmas import read_sigmas
from zeus_trt.zeus_graph.trace import read_scales

if TYPE_CHECKING:
    from zeus_trt.zeus_graph.predictor import Predictor
    from zeus_trt.zeus_graph.solver_program import SolverProgram


@dataclass(frozen=True)
class Noise:
    """A step of a schedule, x the sample before it and psi the output at it.

    Args:
        sigma: Noise level: the scheduler's sigma.
        scale: The model input is ``scale * x``.
        clean: a and b of x0 = a x + b psi, the clean sample that the output stands for.
        is_slope: Whether the output is dx / dsigma, as for a flow.
    """

    sigma: float
    scale: float
    clean: tuple[float, float]
    is_slope: bool


def measure_program(rule: "Predictor", solver: "SolverProgram") -> Sequence[Any] | None:
    """The abscissa of every evaluation of a traced solver, as ``rule`` measures it; None if the solver lacks it.

    Raises:
        ZeusError: A rule over samples, and a solver whose noise is not known.
    """
    if rule.abscissa != "noise":
        return solver.sigmas if rule.abscissa == "sigma" else solver.timesteps
    scales = [float(row[0]) for row in solver.input_rows]
    if any(row[1:].any() for row in solver.input_rows):
        raise _refuse(rule, "a model input that is no multiple of the sample")
    return _list_noise(rule, solver.sigmas, scales, solver.config)


def measure_scheduler(
    rule: "Predictor", scheduler: Any, timesteps: Sequence[float], begin: int = 0
) -> Sequence[Any] | None:
    """As ``measure_program``, of a diffusers scheduler whose schedule is set, from evaluation ``begin`` on."""
    if rule.abscissa not in ("sigma", "noise"):
        return timesteps
    sigmas = read_sigmas(scheduler, timesteps, begin)
    if rule.abscissa == "sigma":
        return sigmas
    return _list_noise(rule, sigmas, read_scales(scheduler, begin)[: len(timesteps)], scheduler.config)


def _list_noise(
    rule: "Predictor", sigmas: Sequence[float] | None, scales: Sequence[float], config: Mapping[str, Any]
) -> list[Noise]:
    prediction = config.get("prediction_type") or ("flow_prediction" if "shift" in config else None)
    if sigmas is None or "sigma_data" in config:
        raise _refuse(rule, "a schedule whose noise is not known")
    read = _READOUTS.get(prediction or "")
    if read is None:
        raise _refuse(rule, f"the prediction type {prediction}")
    noises = []
    for sigma, scale in zip(sigmas, scales, strict=True):
        signal = 1 / sqrt(1 + sigma**2)
        of_input, of_output = read(sigma, signal)
        is_spread = isclose(scale, signal, rel_tol=1e-5)  # x = x0 + sigma noise
        is_slope = isclose(scale, 1.0) if prediction == "flow_prediction" else prediction == "epsilon" and is_spread
        noises.append(Noise(sigma, scale, (of_input * scale, of_output), is_slope))
    return noises


# Weights of x0 on the model input m and on the output; m = signal (x0 + sigma noise), of a flow
# m = (1 - sigma) x0 + sigma noise.
def _epsilon(sigma: float, signal: float) -> tuple[float, float]:
    return 1 / signal, -sigma


def _velocity(sigma: float, signal: float) -> tuple[float, float]:
    return signal, -sigma * signal


def _flow(sigma: float, signal: float) -> tuple[float, float]:
    return 1.0, -sigma


def _sample(sigma: float, signal: float) -> tuple[float, float]:
    return 0.0, 1.0


_READOUTS = {"epsilon": _epsilon, "v_prediction": _velocity, "flow_prediction": _flow, "sample": _sample}


def _refuse(rule: "Predictor", found: str) -> ZeusError:
    return ZeusError(
        f"predictor {rule}: got {found}; expected a solver of a flow, of epsilon or of v whose sigmas are known. "
        "Choose a predictor that reads outputs only, such as zeus."
    )
