"""Running a foreign graph before it is believed: its sizes, its rows, and what it returns."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.foreign_model import BATCH, ForeignModel
from zeus_trt.export.foreign_wiring import Wiring
from zeus_trt.export.parameterization import Parameterization
from zeus_trt.runtime.bundle.border import DISCRETE, EDM
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.bundle.verification import Verification

_PLAIN = Parameterization(DISCRETE, "epsilon")  # nothing is computed around the graph
_TOLERANCE = 1e-2  # of a row alone to the same row among others: halves and other kernels
_AGREEMENT = {Precision.FP32: 1e-3, Precision.FP16: 5e-2, Precision.BF16: 5e-1}  # c_out divides errors of the graph
_IDENTITY = 0.05
_ROWS = 3

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Trial:
    """A foreign denoiser that is run at one size after the other.

    Args:
        model: The denoiser, prepared.
        parameterization: What it reads and returns.
        timesteps: The solver's timesteps, some of which the rows have.
        examples: Conditioning to run it with, each with all of its axes; made where it is not given.
    """

    model: ForeignModel
    parameterization: Parameterization
    timesteps: torch.Tensor
    examples: Mapping[str, torch.Tensor]

    def run(self, wiring: Wiring, inputs: Mapping[str, torch.Tensor], is_plain: bool = True) -> torch.Tensor:
        """The output for inputs; with ``is_plain`` they are the denoiser's own, else those of the bundle's.

        Raises:
            ZeusError: The graph fails, or its output is not finite or has another shape than the latents.
        """
        output = self.model.compute(wiring, _PLAIN if is_plain else self.parameterization, inputs)
        expected = inputs[wiring.latents.name].shape
        if output.shape != expected or not bool(output.isfinite().all()):
            got = f"shape {tuple(output.shape)}" if output.shape != expected else "numbers that are not finite"
            raise ZeusError(
                f"model: got an output {wiring.output} of {got} for latents of {tuple(expected)} at time "
                f"{', '.join(f'{value:.4g}' for value in inputs['timestep'].tolist())}; expected finite numbers of "
                "that shape. Check what its inputs mean."
            )
        return output

    def make_inputs(self, wiring: Wiring, sizes: Sizes, is_plain: bool = True) -> dict[str, torch.Tensor]:
        """Noise, timesteps that differ from row to row, and conditioning."""
        generator = torch.Generator().manual_seed(0)
        shapes = {spec.name: [int(sizes.get(str(axis), axis)) for axis in spec.axes] for spec in wiring.inputs}
        latents = torch.randn(shapes[wiring.latents.name], generator=generator)
        times = self.timesteps[torch.linspace(0, len(self.timesteps) - 1, len(latents) + 2).long()[1:-1]].float()
        if is_plain:
            times = torch.from_numpy(self.parameterization.read_time(times.double().numpy())).float()
        made = {wiring.latents.name: latents, "timestep": times}
        for spec in wiring.conditioning:
            made[spec.name] = self._make_conditioning(spec, shapes[spec.name], generator)
        return made

    def settle(self, wiring: Wiring, sizes: Sizes) -> Wiring:
        """The wiring with which the graph runs: which output, which conditioning has rows, and how rows are called.

        Raises:
            ZeusError: None runs; the message is that of the first.
        """
        failures = []
        for one in dict.fromkeys((wiring, wiring.give_rows())):
            for output in self.model.outputs:
                try:
                    return self._find_rows(replace(one, output=output), sizes)
                except ZeusError as error:
                    failures.append(error)
        raise failures[0]

    def _find_rows(self, wiring: Wiring, sizes: Sizes) -> Wiring:
        """All rows are called at once if each then has what it has alone; else one by one."""
        by_rows = replace(wiring, by_rows=True)
        inputs = self.make_inputs(wiring, {**sizes, BATCH: _ROWS})
        alone = self.run(by_rows, inputs)
        if not wiring.by_rows:
            with suppress(ZeusError):
                if float((self.run(wiring, inputs) - alone).norm()) <= _TOLERANCE * float(alone.norm()):
                    return wiring
        return by_rows

    def find_others(self, wiring: Wiring, sizes: Sizes) -> dict[str, int]:
        """Another size of each named axis that takes one: each is changed alone, then those that failed together.

        It is the double, or half of it where the graph says that it takes no more.
        """
        others: dict[str, int] = {}
        for name in sizes:
            if name != BATCH:
                others |= self._change(wiring, {**sizes, **others}, name)
        left = [name for name in sizes if name != BATCH and name not in others]
        return others | (self._change(wiring, {**sizes, **others}, *left) if len(left) > 1 else {})

    def is_whole(self, wiring: Wiring, sizes: Sizes) -> bool:
        """Whether an EDM graph has its preconditioning inside, by what it does at the smallest sigma.

        There ``c_skip`` is 1 and ``c_out`` is 0 (table 1): a whole denoiser returns its latents, or the nearest of the
        data, which it then returns again. A bare network predicts noise, and does neither.
        """
        if self.parameterization.schedule != EDM:
            return False
        inputs = self.make_inputs(wiring, {**sizes, BATCH: _ROWS})
        least = self.parameterization.read_time(self.timesteps.double().min().numpy())
        inputs |= {"timestep": torch.full((_ROWS,), float(least))}
        first = self.run(wiring, inputs)
        if _is_close(first, inputs[wiring.latents.name]):
            return True
        second = self.run(wiring, {**inputs, wiring.latents.name: first})
        varies = float((first - first.mean(0)).norm()) > _IDENTITY * float(first.norm())
        return varies and _is_close(second, first)

    def verify(self, wiring: Wiring, sizes: Sizes) -> Verification:
        """Compares the graph of the bundle with the foreign one, inside of the formulas in float64.

        Raises:
            ZeusError: They disagree, or as ``run``.
        """
        inputs = self.make_inputs(wiring, sizes, is_plain=False)
        name, ours = wiring.latents.name, self.parameterization
        latents, times = inputs[name].double().numpy(), inputs["timestep"].double().numpy()
        rows = times.reshape(-1, *[1] * (latents.ndim - 1))
        entered = {name: _to_tensor(ours.scale_input(latents, rows)), "timestep": _to_tensor(ours.read_time(times))}
        theirs = self._refer(wiring, {**inputs, **entered}).double().numpy()
        expected = ours.read_output(theirs, latents, rows)
        output = self.run(wiring, inputs, is_plain=False).double().numpy()
        largest, error = float(abs(output - expected).max()), _measure(output, expected)
        if not error <= (most := _AGREEMENT[self.model.precision]):
            raise ZeusError(
                f"verification: got a relative error of {error:.1e} to {self.model.path.name}; expected at most "
                f"{most:.0e}. Report the model."
            )
        setting = {"reference": self.model.path.name}
        return Verification(self.model.backend, tuple(output.shape), "float32", largest, error, setting)

    def _refer(self, wiring: Wiring, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The output of the foreign graph, or of what it was converted from, run by itself."""
        if self.model.original is None:
            return self.run(wiring, inputs)
        rank = len(wiring.timestep.axes)
        specs = (wiring.latents, replace(wiring.timestep, axes=(BATCH,)), *wiring.conditioning)
        values = {**inputs, wiring.timestep.name: inputs["timestep"]}
        rows = [slice(k, k + 1) for k in range(len(inputs["timestep"]))] if wiring.by_rows else [slice(None)]
        outputs = []
        for row in rows:
            own = {spec.name: values[spec.name][row] if wiring.has_rows(spec) else values[spec.name] for spec in specs}
            time = own[wiring.timestep.name].reshape([-1] * (rank > 0) + [1] * (rank - 1))
            own[wiring.timestep.name] = time if "float" in wiring.timestep.dtype else time.round()
            cast = {spec.name: own[spec.name].to(getattr(torch, spec.dtype)) for spec in specs}
            outputs.append(self.model.original(cast)[wiring.output].float())
        return torch.cat(outputs)

    def _change(self, wiring: Wiring, sizes: Sizes, *names: str) -> dict[str, int]:
        """Other sizes for these, if the graph runs with them."""
        for changed in ({name: 2 * sizes[name] for name in names}, {name: sizes[name] // 2 for name in names}):
            if wiring.allows(changed := {**sizes, **changed}):
                with suppress(ZeusError):
                    self.run(wiring, self.make_inputs(wiring, changed))
                    return {name: changed[name] for name in names}
                break
        return {}

    def _make_conditioning(self, spec: TensorSpec, shape: list[Any], generator: torch.Generator) -> torch.Tensor:
        dtype = getattr(torch, spec.dtype)
        if (given := self.examples.get(spec.name)) is not None:
            for axis, size in enumerate(shape):
                given = given.index_select(axis, torch.arange(size) % given.shape[axis])
            return given.to(dtype)
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator)
        return (torch.ones if "mask" in spec.name or dtype == torch.bool else torch.zeros)(shape, dtype=dtype)


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return float((one - other).norm()) <= _IDENTITY * float(other.norm())


def _measure(output: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(output - expected) / max(float(np.linalg.norm(expected)), 1e-12))


def _to_tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).float()
