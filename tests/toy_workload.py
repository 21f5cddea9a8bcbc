"""A workload of toy denoisers: everything that calibration asks of a model, in microseconds."""

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from zeus_trt.evaluation.workload import Sample, Setting
from zeus_trt.runtime import Report, draw_noise, run_steps
from zeus_trt.zeus_graph import trace

SHAPE = (1, 8, 8)


def curved(sample, timestep, guidance):
    """Smooth, nonlinear in the sample, and curved over the steps; guidance bends it."""
    t = (timestep / 1000)[:, None, None, None]
    return torch.tanh(sample * (0.5 + guidance * t)) + 0.3 * guidance * torch.sin(5 * t + sample)


class ToyWorkload:
    """Counts its calls; ``make_scheduler`` makes the solver."""

    def __init__(self, denoiser=curved, make_scheduler=FlowMatchEulerDiscreteScheduler, guidance=1.0, seed=0):
        self.denoiser, self.make_scheduler, self.guidance, self.seed = denoiser, make_scheduler, guidance, seed
        self.calls = 0

    def describe(self):
        return {"model": "toy", "weights_sha256": "ab" * 32, "guidance_scale": self.guidance, "seed": self.seed}

    def program(self, num_steps, solver="default"):
        return trace(self.make_scheduler(), num_steps)

    def count_evaluations(self, num_steps, solver="default"):
        return self.program(num_steps).num_evaluations

    def make_engine(self):
        return self.count(self.denoiser)

    def count(self, denoiser):
        def call(sample, timestep):
            self.calls += len(sample)
            return denoiser(sample, timestep, self.guidance)

        return call

    def run(self, setting: Setting, numbers, on_step=None):
        noise = draw_noise((len(numbers), *SHAPE), [self.seed + number for number in numbers])
        for step in run_steps(self.make_engine(), self.make_scheduler(), noise, setting.plan, setting.num_steps):
            latents = step.latents
            if on_step:
                on_step(step)
        plan = setting.plan
        report = Report("toy", "step", "toy", str(plan), str(setting.predictor), plan.nfe, 0.0, 0.0, plan.speedup_bound)
        return Sample(latents, latents.clamp(-1, 1), report)
