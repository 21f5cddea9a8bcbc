"""The loop of a pipeline's run, while it runs."""

from collections import Counter
from dataclasses import dataclass, field

import torch

from zeus_trt.runtime.pipelines.answers import Answers, widen
from zeus_trt.zeus_graph import Plan, Policy


@dataclass
class Loop:
    """The steps since the schedule was set."""

    plan: Plan | None = None  # known from the first step on
    index: int = 0
    stepped: int = 0  # calls of scheduler.step since the last one of a denoiser: several where there are modalities
    policies: list[Policy] = field(default_factory=list)  # one for each of these calls; they share the plan
    places: Counter[str] = field(default_factory=Counter)  # calls of each denoiser in this step
    before: Counter[str] = field(default_factory=Counter)  # in the step before
    others: Counter[str] = field(default_factory=Counter)  # calls of other modules in this step
    early: Counter[str] = field(default_factory=Counter)  # of other modules in the first step
    answers: Answers = field(default_factory=Answers)
    expert: str = ""  # the denoiser that the step before called first

    @property
    def is_full(self) -> bool:
        return self.plan is None or self.index >= len(self.plan) or self.plan.is_full(self.index)

    def make_full(self, *steps: int) -> None:
        for step in steps:
            if self.plan:
                self.follow(self.plan.with_full(step))

    def follow(self, plan: Plan) -> None:
        self.plan = plan
        for policy in self.policies:
            policy.plan = plan

    def add(self, policy: Policy, sample: torch.Tensor) -> None:
        """Another call of ``scheduler.step`` in every step has a policy too."""
        self.policies.append(policy)
        if decides(policy):
            policy.see(0, widen(sample))
            self.plan = policy.plan

    def decide(self, policy: Policy, latents: torch.Tensor) -> None:
        """A policy decides on the next step; that is full if one of them says so."""
        step = self.index + 1
        if self.plan is None or step >= len(self.plan) or not decides(policy):
            return
        policy.see(step, widen(latents))
        if self.stepped == len(self.policies):
            plans = [other.plan for other in self.policies]
            self.follow(next((plan for plan in plans if plan.is_full(step)), policy.plan))

    def begin_call(self) -> None:
        """A module is called: if the scheduler took a step before, another one begins."""
        if self.stepped:
            self.index, self.stepped = self.index + 1, 0
            self.before, self.places = self.places, Counter()
            self.others.clear()


def decides(policy: Policy) -> bool:
    """Whether a policy decides by the sample, before the step that it is about begins."""
    return getattr(policy, "decides", False)
