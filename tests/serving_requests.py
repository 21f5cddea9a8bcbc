"""Requests of all kinds on toy engines, for the tests of serving."""

import random
import threading
from dataclasses import dataclass, field
from typing import Any

import diffusers
import torch
from toy_bundle import DIGITS, LABELS, denoise, make_session

from zeus_trt.runtime import EnginePair, Guidance, Start, draw_noise
from zeus_trt.zeus_graph import Plan

SIZES = ((8, 8), (6, 8), (4, 4))
SCHEDULERS = (None, diffusers.DPMSolverMultistepScheduler(), diffusers.EulerAncestralDiscreteScheduler())


def coarse(**inputs):
    """A double of a quantized engine: the toy, rounded."""
    return (denoise(**inputs) * 16).round() / 16


class Gate:
    """A toy engine that waits until it is opened, and remembers the rows of its calls."""

    def __init__(self, is_open=True):
        self.opened, self.entered = threading.Event(), threading.Event()
        self.rows: list[int] = []
        if is_open:
            self.opened.set()

    def __call__(self, **inputs):
        self.rows.append(len(inputs["sample"]))
        self.entered.set()
        assert self.opened.wait(60)
        return denoise(**inputs)


def make_labelled(engine=None):
    """A session of a toy with class labels; by default of a pair of engines."""
    return make_session(LABELS, labels=DIGITS, engine=engine or EnginePair(denoise, coarse))


@dataclass
class Asked:
    """One request."""

    conditioning: dict
    settings: dict[str, Any] = field(default_factory=dict)
    scheduler: Any = None

    def run(self, session):
        """Runs it alone, on a session of its scheduler."""
        if self.scheduler is not None:
            session = type(session)(
                session.bundle, engine=EnginePair(session.engine, session.quantized), scheduler=self.scheduler
            )
        return session.generate(self.conditioning, **self.settings)

    def submit(self, batcher, **more):
        return batcher.submit(self.conditioning, scheduler=self.scheduler, **self.settings, **more)


def draw(number: int, steps=(2, 12), sizes=SIZES) -> Asked:
    """A request of mixed settings; the same for the same number."""
    dice = random.Random(number)
    rows, num_steps = dice.choice((1, 1, 2, 3)), dice.randint(*steps)
    noise = draw_noise((rows, 4, *dice.choice(sizes)), seed=number)
    settings: dict[str, Any] = {"num_steps": num_steps, "noise": noise, "seed": number}
    scheduler = dice.choice(SCHEDULERS)
    if dice.random() < 0.4:
        plan = Plan.uniform(num_steps, dice.randrange(4))
        settings["plan"] = plan.with_quantized([step for step in plan.full_steps if dice.random() < 0.5])
    else:
        settings |= {"ratio": dice.randrange(5), "mode": dice.choice(("auto", "step"))}
    if scheduler is None and dice.random() < 0.2:
        settings["start"] = Start(noise.tanh(), strength=1.0)
    settings["guidance"] = dice.choice(
        (
            Guidance(),
            Guidance(2.0),
            Guidance(3.0, sequential=True),
            Guidance(1.5, interval=(0.3, 0.8), rescale=0.5),
            Guidance(wrap=lambda model: lambda **inputs: 1.25 * model(**inputs)),
        )
    )
    return Asked({"class_labels": torch.tensor([dice.randrange(10) for _ in range(rows)])}, settings, scheduler)
