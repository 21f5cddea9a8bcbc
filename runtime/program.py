"""The solver loop in program mode: a skipped step costs nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.zeus_graph.sampling_program import SamplingProgram

_Terms = tuple[tuple[int, float], ...]  # source row -> weight


class ProgramLoop:
    """A sampling program laid out on a device: a few additions per full step, nothing per skipped one.

    The loop owns all memory that it needs, twice ``num_latents`` latents and two more, and
    allocates nothing while it runs, so that it can be captured in a CUDA graph
    together with the denoiser. It holds the state of one trajectory at a time.

    The products of matrix and state are written as sums of scaled latents: in full float32
    whatever the TF32 settings are, and without the thread pool of a matrix library beside
    that of the engine.

    Args:
        program: The folded program.
        noise: Standard normal noise (batch, ...), which tells shape, device and dtype of the
            state (float32; float64 for tests).
    """

    def __init__(self, program: SamplingProgram, noise: torch.Tensor):
        self.program = program
        self._updates = [_Update.read(matrix) for matrix in program.matrices]
        timesteps = torch.tensor(program.timesteps, dtype=torch.float32, device=noise.device)
        self._timesteps = list(timesteps[:, None].expand(-1, len(noise)))
        # The state, twice; the model input where it is not the sample itself; the output where it has another dtype.
        self._buffers = noise.new_zeros(2, program.num_latents, *noise.shape)
        self._input, self._output = torch.empty_like(noise), torch.empty_like(noise)

    def run(
        self,
        denoiser: Denoiser,
        noise: torch.Tensor,
        conditioning: Mapping[str, torch.Tensor] | None = None,
        latents_name: str = "sample",
        on_full: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """Runs a trajectory.

        Args:
            denoiser: Called once per full step, as in step mode. The latents that it is given
                are overwritten by later steps.
            noise: Standard normal noise of the shape the loop was made for.
            conditioning: Constant inputs of the denoiser, each (batch, ...).
            latents_name: The denoiser's name for the noisy latents.
            on_full: Told the index of each full step before its call.

        Returns:
            The final latents, a view of the loop's memory: the next run overwrites it.
        """
        now, then = (list(buffer) for buffer in self._buffers)
        conditioning = conditioning or {}
        torch.mul(noise, self.program.init_noise_sigma, out=now[0])
        model_input = torch.mul(now[0], self.program.first_input, out=self._input)
        for step, timestep, update in zip(self.program.steps, self._timesteps, self._updates, strict=True):
            if on_full:
                on_full(step)
            output = denoiser(**{latents_name: model_input, "timestep": timestep}, **conditioning)
            if output.dtype != noise.dtype:
                output = self._output.copy_(output)
            now.append(output)
            for target, terms in zip(then, update.state, strict=False):
                _combine(now, terms, target)
            if update.input:
                model_input = _combine(now, update.input, self._input)
            elif update.scale == 1.0:
                model_input = then[0]
            else:
                model_input = torch.mul(then[0], update.scale, out=self._input)
            now.pop()
            now, then = then, now
        return now[0]


@dataclass(frozen=True)
class _Update:
    """A full step as sums: the new state, and the next model input, a sum too or a multiple of the new sample."""

    state: tuple[_Terms, ...]
    input: _Terms | None
    scale: float

    @classmethod
    def read(cls, matrix: np.ndarray) -> "_Update":
        if len(matrix) == 1:
            return cls((_read_terms(matrix[0]),), None, 1.0)
        sample, model_input = matrix[0], matrix[-1]
        scale = float(model_input @ sample / (sample @ sample))
        is_multiple = np.allclose(model_input, scale * sample, rtol=1e-12, atol=0)
        state = tuple(_read_terms(row) for row in matrix[:-1])
        return cls(state, None if is_multiple else _read_terms(model_input), scale)


def _read_terms(row: np.ndarray) -> _Terms:
    return tuple((int(k) if k < len(row) - 1 else -1, float(row[k])) for k in np.flatnonzero(row))


def _combine(sources: list[torch.Tensor], terms: _Terms, out: torch.Tensor) -> torch.Tensor:
    (first, weight), *others = terms
    if weight != 1.0 or not others:
        torch.mul(sources[first], weight, out=out)
    else:
        (second, weight), *others = others
        torch.add(sources[first], sources[second], alpha=weight, out=out)
    for source, weight in others:
        out.add_(sources[source], alpha=weight)
    return out
