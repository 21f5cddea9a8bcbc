"""The state machine of step mode."""

import pytest
import torch

from zeus_trt.zeus_graph import Plan, StepController


def run(controller, outputs):
    """Feeds ``outputs`` (one per step) to the full steps; returns what every step used, and the most that was kept."""
    used, most = [], 0
    for step, output in enumerate(outputs):
        if controller.is_full(step):
            controller.take(step, output)
            used.append(output.clone())
        else:
            used.append(controller.predict(step))
        most = max(most, controller.num_kept)
    return used, most


def test_zeus_by_hand():
    outputs = [torch.tensor([float(i**2)]) for i in range(8)]
    used, _ = run(StepController(Plan("FFXRFXRF")), outputs)
    assert [float(output) for output in used] == [0, 1, 2, 1, 16, 31, 16, 49]


def test_it_owns_copies():
    controller = StepController(Plan("FFXRF"))
    buffer = torch.ones(3)  # an engine that writes every output to the same place
    controller.take(0, buffer)
    controller.take(1, buffer.fill_(2.0))
    buffer.fill_(torch.nan)
    controller.predict(2).fill_(torch.nan)
    controller_output = controller.predict(3)
    assert torch.equal(controller_output, torch.full((3,), 2.0))


@pytest.mark.parametrize("predictor", ["zeus", "zeus-paper", "zeus-previous-full", "reuse", "extrapolate"])
@pytest.mark.parametrize("ratio", [1, 2, 3, 4])
def test_memory_does_not_grow_with_steps(predictor, ratio):
    kept = {run(StepController(Plan.uniform(n, ratio), predictor), [torch.zeros(1)] * n)[1] for n in (20, 50, 200)}
    assert len(kept) == 1
    assert kept.pop() <= 3


def test_nothing_is_kept_when_every_step_is_full():
    assert run(StepController(Plan.uniform(20, 0)), [torch.zeros(1)] * 20)[1] == 0


def test_nothing_is_kept_at_the_end():
    controller = StepController(Plan.uniform(20, 3), "zeus-paper")
    run(controller, [torch.zeros(1)] * 20)
    assert controller.num_kept == 0


def test_steps_come_in_order():
    controller = StepController(Plan("FFXF"))
    with pytest.raises(ValueError, match="out of turn"):
        controller.take(1, torch.zeros(1))
    controller.take(0, torch.zeros(1))
    with pytest.raises(ValueError, match="out of turn"):
        controller.predict(1)
