"""A range of guidance scales: which sample takes which, what is refused, and where a plan made over it belongs."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_subjects import make_calibrated

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.guidance_range import read_scale, take_scale
from zeus_trt.runtime.menu import _is_near


@pytest.mark.parametrize("numbers", [range(16), range(16, 32), range(0, 48, 2), range(1, 48, 3)])
def test_samples_are_spread_evenly_also_every_second_or_third(numbers):
    scales = np.sort([take_scale((1.5, 5.0), [number]) for number in numbers])
    assert scales[0] >= 1.5
    assert scales[-1] < 5.0
    assert np.diff([1.5, *scales, 5.0]).max() < 2.7 * 3.5 / len(numbers)


def test_a_single_scale_is_that_of_all():
    assert take_scale(2.0, range(8)) == 2.0
    assert take_scale(None, range(8)) is None


@pytest.mark.parametrize("wrong", [(5, 1.5), (2, 2), (1, 2, 3), (1.5,), ("a", "b"), (1, float("nan"))])
def test_what_is_no_range_is_refused(wrong):
    with pytest.raises(ZeusError, match=r"guidance_scale: got the range .* expected two numbers that rise"):
        read_scale(wrong)


def test_samples_of_a_range_run_alone():
    with pytest.raises(ZeusError, match=r"got the range 1.5:5 for 2 samples at once; expected one sample"):
        take_scale((1.5, 5.0), [0, 1])


@pytest.mark.parametrize(("scale", "is_within"), [(1.5, True), (2, True), (5.0, True), (6.0, False), (1.0, False)])
def test_a_plan_of_a_range_is_for_all_within_it(scale, is_within):
    made = make_calibrated()
    made = replace(made, workload={**made.workload, "guidance_scale": [1.5, 5.0]})
    assert _is_near(made, scale) == is_within
    told = made.list_differences({**made.workload, "guidance_scale": scale}, made.backend)
    assert (told == []) == is_within
    assert made.list_differences(made.workload, made.backend) == []
