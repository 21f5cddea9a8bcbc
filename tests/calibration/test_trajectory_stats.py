"""Recording: what is kept, that it predicts, and that it can be interrupted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler
from toy_workload import ToyWorkload

from zeus_trt.calibration import record as recording
from zeus_trt.calibration.prediction import predict_errors
from zeus_trt.calibration.record import record
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.workload import Setting, make_full_setting
from zeus_trt.zeus_graph import Plan, Predictor
from zeus_trt.zeus_graph.surrogate import list_rows, weigh_error

SOLVERS = [FlowMatchEulerDiscreteScheduler, EulerDiscreteScheduler, DPMSolverMultistepScheduler]
PLAN = Plan.spread(20, 9)


def make(workload, numbers, num_steps, **options):
    return record(workload, make_full_setting(workload, num_steps), numbers, **options)


def measure_errors(workload, plan, numbers):
    full = workload.run(Setting(plan, len(plan)).full, numbers).latents
    skipped = workload.run(Setting(plan, len(plan)), numbers).latents
    return (skipped - full).double().square().flatten(1).mean(1).numpy()


def test_products_are_those_of_the_outputs():
    workload, outputs = ToyWorkload(), []
    stats = make(workload, range(3), 12, batch=2)
    workload.run(Setting(Plan("F" * 12), 12), range(3), lambda step: outputs.append(step.output.flatten(1).clone()))
    expected = torch.einsum("ibp,jbp->bij", torch.stack(outputs).double(), torch.stack(outputs).double()) / 64
    np.testing.assert_allclose(stats.products, expected.numpy(), rtol=1e-6, atol=1e-9)
    assert stats.products.dtype == np.float64


def test_blocks_of_columns_change_nothing(monkeypatch):
    whole = make(ToyWorkload(), range(2), 8)
    monkeypatch.setattr(recording, "_COLUMNS", 7)
    np.testing.assert_allclose(make(ToyWorkload(), range(2), 8).products, whole.products, rtol=1e-12)


@pytest.mark.parametrize("make_scheduler", SOLVERS)
@pytest.mark.parametrize("predictor", ["zeus", "reuse", "lagrange-3"])
def test_without_feedback_the_prediction_is_exact(make_scheduler, predictor):
    """An output that depends on the sample's own noise and the timestep only: first order is all there is."""

    def outside(sample, timestep, guidance):
        generator = torch.Generator().manual_seed(5)
        noise = torch.randn(2, *sample.shape[1:], generator=generator)
        t = (timestep / 1000)[:, None, None, None]
        return noise[0] * torch.sin(4 * t) + noise[1] * t**2

    workload = ToyWorkload(outside, make_scheduler)
    stats = make(workload, range(2), 20)
    assert np.abs(stats.feedback).max() < 1e-4
    plan = replace(PLAN, predictor=Predictor.parse(predictor))
    expected = measure_errors(workload, plan, range(2))
    predicted = predict_errors(workload.program(20), stats, plan)
    np.testing.assert_allclose(predicted, expected, rtol=2e-3)


@pytest.mark.parametrize("make_scheduler", SOLVERS)
def test_linear_feedback_is_found_and_the_prediction_is_exact(make_scheduler):
    def linear(sample, timestep, guidance):
        return sample * (1.0 - 3.0 * timestep / 1000)[:, None, None, None]

    workload = ToyWorkload(linear, make_scheduler)
    stats, program = make(workload, range(3), 20), workload.program(20)
    told = ~np.isnan(stats.responses).all(axis=(0, 1))
    assert told.sum() > 8
    slopes = 1.0 - 3.0 * np.array(program.timesteps) / 1000
    np.testing.assert_allclose(stats.feedback[told], slopes[told], atol=2e-3)
    exact = TrajectoryStats(
        stats.products, np.broadcast_to(slopes, stats.responses.shape), stats.numbers, stats.tag, stats.calls
    )
    expected = measure_errors(workload, PLAN, range(3))
    np.testing.assert_allclose(predict_errors(program, exact, PLAN), expected, rtol=5e-3)
    blind = weigh_error(program, list_rows(program, PLAN), np.zeros(20))
    assert np.abs(np.einsum("i,tij,j->t", blind, stats.products, blind) / expected - 1).min() > 0.02


def test_without_feedback_the_weights_are_w_p_minus_w():
    program, rows = ToyWorkload().program(10), Predictor().rows(Plan.spread(10, 5))
    weights = np.eye(10)[::-1].copy()  # w by pushing unit vectors through the solver
    for k, unit in enumerate(np.eye(10)):
        state = np.zeros(1)
        for matrix, output in zip(program.matrices, unit, strict=True):
            state = matrix @ np.append(state, output)
        weights[:, k] = state[0]
    matrix = np.eye(10)
    for step, row in enumerate(rows):
        if row is not None:
            matrix[step] = sum(weight * matrix[source] for source, weight in row.items())
    expected = weights[0] @ matrix - weights[0]
    np.testing.assert_allclose(weigh_error(program, rows, np.zeros(10)), expected, atol=1e-12)


def test_an_interrupted_recording_goes_on(tmp_path):
    class Stop(Exception):
        pass

    def stop(calls):
        raise Stop

    path = tmp_path / "new folder" / "gram.npz"
    with pytest.raises(Stop):
        make(ToyWorkload(), range(5), 8, batch=2, path=path, on_calls=stop)
    workload = ToyWorkload()
    resumed = make(workload, range(5), 8, batch=2, path=path)
    whole = make(ToyWorkload(), range(5), 8, batch=2)
    assert workload.calls == whole.calls * 3 / 5
    assert resumed.numbers == whole.numbers == (0, 1, 2, 3, 4)
    np.testing.assert_array_equal(resumed.products, whole.products)
    np.testing.assert_array_equal(resumed.responses, whole.responses)
    again = ToyWorkload()
    make(again, range(3), 8, path=path)
    assert again.calls == 0


def test_trajectories_of_something_else_are_refused(tmp_path):
    path = tmp_path / "gram.npz"
    make(ToyWorkload(), range(1), 8, path=path)
    for other, steps in ((ToyWorkload(guidance=2.0), 8), (ToyWorkload(), 9)):
        with pytest.raises(ZeusError, match="recorded with another"):
            make(other, range(1), steps, path=path)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "gram.npz"
    make(ToyWorkload(), range(1), 8, path=path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ZeusError, match="cannot be read"):
        TrajectoryStats.load(path)
    path.write_text("text")
    with pytest.raises(ZeusError, match="cannot be read"):
        make(ToyWorkload(), range(1), 8, path=path)


def test_outputs_that_are_not_finite_are_refused():
    def broken(sample, timestep, guidance):
        return sample * torch.where(timestep < 500, torch.nan, 1.0)[:, None, None, None]

    with pytest.raises(ZeusError, match="got NaN or infinity"):
        make(ToyWorkload(broken), range(1), 8)
    with pytest.raises(ZeusError, match="got 0"):
        make(ToyWorkload(), [], 8)
