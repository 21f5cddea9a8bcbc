"""The two ways to run a plan, on a toy denoiser: the scheduler's own loop, and a sampling program."""

import copy
from collections.abc import Callable
from functools import partial

import diffusers.schedulers as ds
import torch

from zeus_trt.zeus_graph import Plan, Predictor, StaticPolicy
from zeus_trt.zeus_graph.sampling_program import SamplingProgram

Denoiser = Callable[[torch.Tensor, float], torch.Tensor]


def toy_denoiser(channels: int = 8, seed: int = 0) -> Denoiser:
    """tanh of a random mixing of channels, plus a term in the timestep: nonlinear, smooth, float64."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(channels, channels, generator=generator, dtype=torch.float64) / channels**0.5

    def denoise(sample: torch.Tensor, timestep: float) -> torch.Tensor:
        return torch.tanh(torch.einsum("dc,bchw->bdhw", mixing, sample)) + 0.3 * torch.cos(
            torch.tensor(timestep / 300.0, dtype=torch.float64)
        )

    return denoise


def noise(channels: int = 8, seed: int = 1) -> torch.Tensor:
    """A standard normal sample of shape (1, channels, 3, 2), float64."""
    return torch.randn(1, channels, 3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run_steps(
    scheduler,
    num_steps: int,
    denoise: Denoiser,
    sample: torch.Tensor,
    plan: Plan,
    predictor: str | Predictor = "zeus",
    grid=None,
    begin: int = 0,
    **schedule,
) -> torch.Tensor:
    """Step mode: the scheduler's own ``step``, fed by the denoiser or by a ``StaticPolicy``."""
    scheduler = copy.deepcopy(scheduler)
    custom = {"sigmas", "timesteps"} & set(schedule)
    scheduler.set_timesteps(**schedule if custom else {"num_inference_steps": num_steps, **schedule})
    if hasattr(scheduler, "set_begin_index"):  # without it a schedule whose first timestep repeats starts at the second
        scheduler.set_begin_index(begin)
    policy = StaticPolicy(plan.with_predictor(predictor), grid)
    for i, t in enumerate(scheduler.timesteps[begin:]):
        model_input = scheduler.scale_model_input(sample, t) if hasattr(scheduler, "scale_model_input") else sample
        policy.see(i, sample)
        if policy.is_full(i):
            output = denoise(model_input, float(t))
            policy.take(i, output)
        else:
            output = policy.predict(i)
        sample = scheduler.step(output, t, sample, return_dict=False)[0]
    return sample


def run_program(program: SamplingProgram, denoise: Denoiser, sample: torch.Tensor) -> torch.Tensor:
    """Program mode: one small matrix per full step; float64."""
    state, model_input = sample[None], program.first_input * sample
    for t, matrix in zip(program.timesteps, program.matrices, strict=True):
        columns = torch.cat([state, denoise(model_input, t)[None]])
        rows = torch.tensordot(torch.from_numpy(matrix.copy()), columns, 1)
        state, model_input = rows[:-1], rows[-1]
    return model_input  # the last matrix has one row, the final sample


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest difference over the largest magnitude of the reference."""
    return float((value - reference).abs().max() / reference.abs().max())


SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}

EXACT, FLOAT32 = 1e-12, 1e-6
"""Relative errors allowed on float64 samples: the solver stays in float64, or casts to float32 inside."""


def _solvers() -> dict[str, tuple[Callable, float]]:
    table: dict[str, tuple[Callable, float]] = {
        "Euler": (partial(ds.EulerDiscreteScheduler, **SD), FLOAT32),
        "DDIM": (partial(ds.DDIMScheduler, **SD, clip_sample=False), EXACT),
        "DDIM inverse": (partial(ds.DDIMInverseScheduler, **SD, clip_sample=False), EXACT),
        "CogVideoX DDIM": (partial(ds.CogVideoXDDIMScheduler, **SD), EXACT),
        "LMS": (partial(ds.LMSDiscreteScheduler, **SD), EXACT),
        "PNDM": (partial(ds.PNDMScheduler, **SD), EXACT),
        "PNDM without prk": (partial(ds.PNDMScheduler, **SD, skip_prk_steps=True), EXACT),
        "IPNDM": (ds.IPNDMScheduler, EXACT),
        "Heun": (partial(ds.HeunDiscreteScheduler, **SD), EXACT),
        "KDPM2": (partial(ds.KDPM2DiscreteScheduler, **SD), EXACT),
        "EDM Euler": (ds.EDMEulerScheduler, FLOAT32),
        "FlowMatch Euler": (ds.FlowMatchEulerDiscreteScheduler, FLOAT32),
        "FlowMatch Heun": (ds.FlowMatchHeunDiscreteScheduler, FLOAT32),
        "FlowMap Euler": (ds.FlowMapEulerDiscreteScheduler, EXACT),
    }
    for order in (1, 2, 3):
        table[f"DEIS {order}"] = (partial(ds.DEISMultistepScheduler, **SD, solver_order=order), EXACT)
        for kind in ("bh1", "bh2"):
            # bh1 ends in NaN where the last sigma is zero, in diffusers' own loop too.
            make = partial(ds.UniPCMultistepScheduler, **SD, solver_order=order, solver_type=kind)
            table[f"UniPC {kind} {order}"] = (partial(make, final_sigmas_type="sigma_min"), EXACT)
        table[f"UniPC to zero {order}"] = (partial(ds.UniPCMultistepScheduler, **SD, solver_order=order), EXACT)
        for algorithm in ("dpmsolver", "dpmsolver++"):
            last = {"final_sigmas_type": "sigma_min"} if algorithm == "dpmsolver" else {}
            for kind in ("midpoint", "heun"):
                options = {**SD, "algorithm_type": algorithm, "solver_order": order, "solver_type": kind}
                name = f"{algorithm} {order} {kind}"
                table[f"{name} multistep"] = (partial(ds.DPMSolverMultistepScheduler, **options, **last), FLOAT32)
                table[f"{name} singlestep"] = (partial(ds.DPMSolverSinglestepScheduler, **options, **last), EXACT)
                table[f"{name} inverse"] = (partial(ds.DPMSolverMultistepInverseScheduler, **options), EXACT)
        if order > 1:
            for kind in ("midpoint", "heun"):
                make = partial(ds.EDMDPMSolverMultistepScheduler, solver_order=order, solver_type=kind)
                table[f"EDM DPM++ {order} {kind}"] = (make, EXACT)
    return table


SOLVERS = _solvers()
"""Name -> how to make the scheduler, and the relative error to which program mode must equal its own loop."""
