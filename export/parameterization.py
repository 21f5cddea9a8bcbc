"""What a denoiser that others exported reads and returns, beside what its solver passes and reads."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zeus_trt.errors import ZeusError
from zeus_trt.export.onnx_nodes import Nodes
from zeus_trt.runtime.bundle.border import DISCRETE, EDM, FLOW, READS, Border

_PREDICTIONS = {  # by kind of schedule: what diffusers calls what its solver reads, by what the denoiser returns
    EDM: {"edm": "epsilon", "sample": "epsilon", "v": "v_prediction"},
    FLOW: {"flow": "flow_prediction", "sample": "flow_prediction"},
    DISCRETE: {"epsilon": "epsilon", "v": "v_prediction", "sample": "sample"},
}


@dataclass(frozen=True)
class Parameterization(Border):
    """The border between a solver and a denoiser, as the formulas in float64, and as nodes of a graph."""

    @classmethod
    def of(cls, scheduler: Any, returns: str | None, reads: str) -> "Parameterization":
        """That of a denoiser for a diffusers scheduler.

        Args:
            scheduler: The scheduler.
            returns: What the denoiser returns; by default what the scheduler reads.
            reads: What the denoiser reads as its time.

        Raises:
            ZeusError: A word that is unknown, or an output that the scheduler has no use for.
        """
        config, name = scheduler.config, type(scheduler).__name__
        schedule = find_schedule(name, config)
        known = _PREDICTIONS[schedule]
        if returns is None:
            asked = config.get("prediction_type", "flow_prediction")
            returns = next((kind for kind, prediction in known.items() if prediction == asked), None)
        if reads not in READS:
            raise ZeusError(f"timestep_is: got {reads!r}; expected one of {', '.join(READS)}. Choose one of these.")
        if returns not in known:
            hint = " What diffusers calls epsilon there is edm." if schedule == EDM and returns == "epsilon" else ""
            raise ZeusError(
                f"parameterization: got {returns} with {name}; expected {', '.join(known)}, which it reads. Choose one "
                f"of these, or another scheduler.{hint}"
            )
        sigmas: tuple[float, ...] = ()
        if schedule == DISCRETE and reads != "timestep":
            sigmas = _read_sigmas(scheduler)
        return cls(
            schedule, returns, reads, float(config.get("sigma_data", 0.5)), config.get("num_train_timesteps", 1000),
            sigmas,
        )  # fmt: skip

    @property
    def border(self) -> Border:
        """As a bundle has it."""
        return Border(**asdict(self))

    @property
    def prediction_type(self) -> str:
        """What the solver reads, in diffusers' words."""
        return _PREDICTIONS[self.schedule][self.returns]

    @property
    def timestep_scale(self) -> float:
        """What the graph multiplies the timestep with, where it does no more than that."""
        return 1 / self.num_train if self.schedule == FLOW and self.reads == "sigma" else 1.0

    def read_time(self, timestep: np.ndarray) -> np.ndarray:
        """What the denoiser reads at the solver's timesteps, float64: the reference for ``enter``."""
        if self.reads == "timestep":
            return timestep
        sigma = self.find_sigma(timestep)
        return sigma if self.reads == "sigma" else np.log(sigma)

    def find_sigma(self, timestep: np.ndarray) -> np.ndarray:
        """Sigma at the solver's timesteps, float64."""
        if self.schedule == EDM:
            return np.exp(4 * timestep)
        if self.schedule == FLOW:
            return timestep / self.num_train
        return np.exp(np.interp(timestep, np.arange(len(self.sigmas)), np.log(self.sigmas)))

    def scale_input(self, latents: np.ndarray, timestep: np.ndarray) -> np.ndarray:
        """The denoiser's latents for the solver's, float64; the timesteps broadcast to them."""
        if self.schedule == EDM and self.returns == "sample":
            return latents * np.sqrt(self.find_sigma(timestep) ** 2 + self.sigma_data**2)
        return latents

    def read_output(self, output: np.ndarray, latents: np.ndarray, timestep: np.ndarray) -> np.ndarray:
        """What the solver reads for the denoiser's output, float64; latents are the solver's."""
        if self.returns != "sample" or self.schedule == DISCRETE:
            return output
        sigma, data = self.find_sigma(timestep), self.sigma_data
        if self.schedule == FLOW:
            return (latents - output) / sigma
        noisy = self.scale_input(latents, timestep)
        c_skip = data**2 / (sigma**2 + data**2)
        return (output - c_skip * noisy) * np.sqrt(sigma**2 + data**2) / (sigma * data)

    def enter(self, nodes: Nodes, latents: str, timestep: str, rank: int) -> tuple[str, str]:
        """Writes what comes before the denoiser; returns the names of its latents and of its time, a row per image."""
        time = timestep
        if self.reads != "timestep":
            time = self._write_sigma(nodes, timestep, is_log=self.reads == "log-sigma")
        if self.schedule == EDM and self.returns == "sample":
            return nodes.add("Mul", latents, self._write_spread(nodes, self._write_rows(nodes, timestep, rank))), time
        return latents, time

    def leave(self, nodes: Nodes, output: str, latents: str, timestep: str, rank: int) -> str:
        """Writes what comes after the denoiser; returns the name of what the solver reads."""
        if self.returns != "sample" or self.schedule == DISCRETE:
            return output
        sigma = self._write_rows(nodes, timestep, rank)
        if self.schedule == FLOW:
            return nodes.add("Div", nodes.add("Sub", latents, output), sigma)
        spread = self._write_spread(nodes, sigma)  # c_skip x = data^2 / spread^2 * spread * latents
        kept = nodes.add("Div", nodes.add("Mul", latents, np.float32(self.sigma_data**2)), spread)
        c_out = nodes.add("Div", nodes.add("Mul", sigma, np.float32(self.sigma_data)), spread)
        return nodes.add("Div", nodes.add("Sub", output, kept), c_out)

    def _write_rows(self, nodes: Nodes, timestep: str, rank: int) -> str:
        """Sigma with as many axes as the latents."""
        return nodes.add("Reshape", self._write_sigma(nodes, timestep), np.array([-1] + [1] * (rank - 1)))

    def _write_spread(self, nodes: Nodes, sigma: str) -> str:
        """``1 / c_in``: the standard deviation of noisy data."""
        return nodes.add("Sqrt", nodes.add("Add", nodes.add("Mul", sigma, sigma), np.float32(self.sigma_data**2)))

    def _write_sigma(self, nodes: Nodes, timestep: str, is_log: bool = False) -> str:
        if self.schedule == FLOW:
            sigma = nodes.add("Div", timestep, np.float32(self.num_train))
            return nodes.add("Log", sigma) if is_log else sigma
        if self.schedule == EDM:
            log = nodes.add("Mul", timestep, np.float32(4))
        else:
            log = _write_interpolation(nodes, timestep, np.log(np.array(self.sigmas)))
        return log if is_log else nodes.add("Exp", log)


def find_schedule(name: str, config: Mapping[str, Any]) -> str:
    """The kind of schedule of a diffusers scheduler, by its class and its config."""
    if name.startswith("EDM"):
        return EDM
    is_flow = name.startswith("Flow") or config.get("use_flow_sigmas")
    return FLOW if is_flow or config.get("prediction_type") == "flow_prediction" else DISCRETE


def _read_sigmas(scheduler: Any) -> tuple[float, ...]:
    kept = getattr(scheduler, "alphas_cumprod", None)
    if kept is None:
        raise ZeusError(
            f"timestep_is: got sigma with {type(scheduler).__name__}, which has no table of sigmas; expected timestep. "
            "Choose it, or another scheduler."
        )
    sigmas = ((1 - kept.double()) / kept.double()).sqrt()
    if not bool(sigmas.isfinite().all()):
        raise ZeusError(
            f"timestep_is: got sigma with {type(scheduler).__name__}, which ends at an infinite one; expected "
            "timestep. Choose it, or another scheduler."
        )
    return tuple(sigmas.tolist())


def _write_interpolation(nodes: Nodes, place: str, values: np.ndarray) -> str:
    """Values of a table between its rows, as ``np.interp``."""
    last = len(values) - 1
    low = nodes.add("Min", nodes.add("Max", nodes.add("Floor", place), np.float32(0)), np.float32(last - 1))
    share = nodes.add("Min", nodes.add("Max", nodes.add("Sub", place, low), np.float32(0)), np.float32(1))
    first = nodes.add("Gather", values[:-1].astype(np.float32), nodes.cast(low, "int64"))
    rise = nodes.add("Gather", np.diff(values).astype(np.float32), nodes.cast(low, "int64"))
    return nodes.add("Add", first, nodes.add("Mul", share, rise))
