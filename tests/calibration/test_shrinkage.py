"""A few recorded trajectories that are completed by the prior."""

from dataclasses import replace

import numpy as np
import pytest
from diffusers import EDMEulerScheduler, FlowMatchEulerDiscreteScheduler
from toy_workload import ToyWorkload

from zeus_trt.calibration.calibrate import Samples, Task, screen
from zeus_trt.calibration.prediction import predict_errors
from zeus_trt.calibration.record import record
from zeus_trt.calibration.shrinkage import PRIOR_TRAJECTORIES, is_known, shrink
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.workload import make_full_setting
from zeus_trt.zeus_graph import Plan, Predictor
from zeus_trt.zeus_graph.prior import load_kernels

STEPS, NFE = 12, 6


@pytest.fixture(scope="module")
def recorded():
    workload = ToyWorkload(make_scheduler=FlowMatchEulerDiscreteScheduler)
    stats = record(workload, make_full_setting(workload, STEPS), range(4))
    return workload.program(STEPS), stats


def test_the_prior_counts_as_so_many_trajectories_and_keeps_the_error_of_each(recorded):
    program, stats = recorded
    line = replace(Plan.spread(STEPS, NFE), predictor=Predictor.parse("lagrange-2"))
    feedback = np.mean([kernel.lay_on(program).feedback for kernel in load_kernels()], axis=0)
    for count in (1, 4):
        own = stats.select(range(count))
        shrunk = shrink(program, replace(own, responses=own.responses[:, :0]), NFE, load_kernels())
        assert shrunk.feedback == pytest.approx(feedback)
        known = shrunk.products - (1 - PRIOR_TRAJECTORIES / count) * own.products
        assert np.linalg.eigvalsh(known).min() > -1e-9
        assert 0 < np.trace(known[0]) / np.trace(own.products[0]) < 10 * PRIOR_TRAJECTORIES / count
        same = replace(own, responses=shrunk.responses)
        assert predict_errors(program, shrunk, line) == pytest.approx(predict_errors(program, same, line))


def test_probes_need_no_prior(recorded):
    program, stats = recorded
    assert shrink(program, stats, NFE, load_kernels()) is stats


def test_a_solver_that_the_prior_does_not_know_leaves_the_trajectories_as_they_are(recorded):
    program, stats = recorded
    bare, unknown = replace(stats, responses=stats.responses[:, :0]), replace(program, sigmas=None)
    assert is_known(program, load_kernels())
    assert not is_known(unknown, load_kernels())
    assert shrink(unknown, bare, NFE, load_kernels()) is bare
    assert shrink(program, bare, NFE, ()) is bare


@pytest.mark.parametrize(
    ("make_scheduler", "probes", "calls"),
    [
        (FlowMatchEulerDiscreteScheduler, False, 2 * STEPS),
        (FlowMatchEulerDiscreteScheduler, True, 2 * (STEPS + 5 + 4)),
        (EDMEulerScheduler, False, 2 * (STEPS + 5 + 4)),  # the prior says nothing of it
    ],
)
def test_probes_are_recorded_where_asked_for_or_where_the_prior_does_not_know(make_scheduler, probes, calls):
    workload = ToyWorkload(make_scheduler=make_scheduler)
    task = Task(workload, make_full_setting(workload, STEPS), Samples(2, 1, 1), probes=probes)
    (stats,) = task.record()
    assert stats.calls == workload.calls == calls


def test_a_file_without_probes_serves_no_calibration_with_them(tmp_path):
    workload, file = ToyWorkload(), tmp_path / "recorded.npz"
    setting = make_full_setting(workload, STEPS)
    Task(workload, setting, Samples(1, 1, 1), trajectories=file, probes=False).record()
    (more,) = Task(workload, setting, Samples(2, 1, 1), trajectories=file, probes=False).record()
    assert more.responses.shape == (2, 0, STEPS)
    with pytest.raises(ZeusError, match="probes"):
        Task(workload, setting, Samples(1, 1, 1), trajectories=file).record()


class Scripted:
    """Measures a plan by its number of full steps; counts the runs."""

    def __init__(self):
        self.known = set()

    def measure(self, plan, numbers):
        self.known |= {(plan, number) for number in numbers}
        return plan.nfe


def test_few_of_the_candidates_run_on_all_samples():
    bench = Scripted()
    plans = [Plan.spread(20, nfe) for nfe in range(4, 16)]
    left = screen(bench, plans, range(16))
    assert left == [plans[-1], plans[-2]]
    assert len(bench.known) == 12 * 4 + 6 * 4 + 2 * 8
    assert screen(Scripted(), plans[:1], range(3)) == plans[:1]
