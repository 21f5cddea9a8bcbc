"""The solver loop in program mode: a skipped step costs nothing."""

from collections.abc import Mapping

import torch

from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.zeus_graph.sampling_program import SamplingProgram


class ProgramLoop:
    """A sampling program laid out on a device: one small matrix product per full step.

    The loop owns all memory that it needs, twice ``num_latents + 2`` latents, and
    allocates nothing while it runs, so that it can be captured in a CUDA graph together
    with the denoiser. It is the state of one trajectory at a time.

    Args:
        program: The folded program.
        noise: Standard normal noise (batch, ...), which tells shape, device and the dtype of
            state and coefficients (float32; float64 for tests).
    """

    def __init__(self, program: SamplingProgram, noise: torch.Tensor):
        self.program = program
        size = program.num_latents + 1  # the model input or the model output, and the state
        coefficients = torch.zeros(program.nfe, size, size, dtype=torch.float64)
        for block, matrix in zip(coefficients, map(torch.tensor, program.matrices), strict=True):
            # The last matrix gives the final sample alone; the others end with the row of the next model input.
            rows = matrix if len(matrix) == 1 else matrix.roll(1, 0)
            target = block[1:2] if len(matrix) == 1 else block[: len(matrix)]
            target[:, : rows.shape[1] - 1], target[:, -1] = rows[:, :-1], rows[:, -1]
        self._matrices = coefficients.to(noise)
        self._timesteps = torch.tensor(program.timesteps, dtype=torch.float32, device=noise.device)
        # Model input, state, model output, twice: a matrix takes [state; output] of one to [input; state] of the other.
        self._buffers = noise.new_zeros(2, size + 1, *noise.shape)

    def run(
        self,
        denoiser: Denoiser,
        noise: torch.Tensor,
        conditioning: Mapping[str, torch.Tensor] | None = None,
        latents_name: str = "sample",
    ) -> torch.Tensor:
        """Runs a trajectory.

        Args:
            denoiser: Called once per full step, as in step mode. The model input that it is
                given is overwritten by the next step.
            noise: Standard normal noise of the shape the loop was made for.
            conditioning: Constant inputs of the denoiser, each (batch, ...).
            latents_name: The denoiser's name for the noisy latents.

        Returns:
            The final latents, a view of the loop's memory: the next run overwrites it.
        """
        now, then = self._buffers
        torch.mul(noise, self.program.init_noise_sigma, out=now[1])
        torch.mul(now[1], self.program.first_input, out=now[0])
        conditioning = conditioning or {}
        for k, matrix in enumerate(self._matrices):
            rows = self._timesteps[k].expand(len(noise))
            now[-1].copy_(denoiser(**{latents_name: now[0], "timestep": rows, **conditioning}))
            _combine(matrix, now[1:].flatten(1), then[:-1].flatten(1))
            now, then = then, now
        return now[1]


def _combine(matrix: torch.Tensor, columns: torch.Tensor, out: torch.Tensor) -> None:
    """``out = matrix @ columns`` in full precision, without allocating."""
    if columns.is_cuda:
        for row, target in zip(matrix, out, strict=True):
            torch.mv(columns.T, row, out=target)  # unlike a matrix product, it never runs in TF32
    else:
        torch.mm(matrix, columns, out=out)
