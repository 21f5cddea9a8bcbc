"""Solvers of other packages wherever the name of one is taken: as objects, and by entry point."""

import json
from functools import partial

import pytest
from click.testing import CliRunner
from diffusers import FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler
from outside_package import install_package

from zeus_trt import calibrate, compare, load_plan
from zeus_trt.calibrating import run_gate
from zeus_trt.calibration.quantize import QuantizeOptions
from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.variants import Grid
from zeus_trt.runtime.scheduler import make_scheduler, name_solver, name_solvers
from zeus_trt.zeus_graph import trace

FEW = {"steps": 8, "num_trajectories": 2, "num_validation": 2, "num_held_out": 2}
OPTIONS = ("--steps", 8, "--num-trajectories", 2, "--num-validation", 2, "--num-held-out", 2)


def shifted(config, shift=2.0):
    return FlowMatchEulerDiscreteScheduler(shift=shift * config.get("shift", 1.0))


def call(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def bundle(export_tiny):
    return export_tiny().path


@pytest.fixture
def package(tmp_path, monkeypatch):
    yield from install_package(tmp_path, monkeypatch)


@pytest.mark.parametrize("given", [shifted, FlowMatchEulerDiscreteScheduler(shift=2.0)], ids=["function", "scheduler"])
def test_a_plan_is_calibrated_for_a_solver_that_is_given(bundle, tmp_path, given):
    calibrate(bundle, nfe=4, solver=given, output=tmp_path / "plan.json", **FEW)
    plan = load_plan(tmp_path / "plan.json")
    program = trace(FlowMatchEulerDiscreteScheduler(shift=2.0), 8)
    assert plan.calibration.solver == name_solver(given)
    assert plan.calibration.fingerprint == program.fingerprint
    assert run_gate(bundle, tmp_path / "plan.json", 0.0, solver=given, **FEW).passes
    with pytest.raises(ZeusError, match="calibrated plan: got"):
        run_gate(bundle, tmp_path / "plan.json", 0.0, **FEW)


def test_a_plan_serves_several_of_them(bundle):
    found = calibrate(bundle, nfe=4, solver=["default", shifted, shifted], **FEW)
    assert list(found.solvers) == ["default", "shifted"]
    assert len({one.fingerprint for one in found.solvers.values()}) == 2


def test_a_comparison_has_rows_of_them_and_measures_what_has_changed(bundle, tmp_path):
    report = tmp_path / "report"

    def run(solver):
        counts = []
        options = {"steps": (6,), "ratios": (2,), "num_images": 1, "rounds": 1, "metrics": ("psnr",)}
        found = compare(bundle, solvers=["default", solver], output=report, **options)
        counts = len(list((report / "cells").glob("*.json")))
        return found, counts

    found, first = run(shifted)
    assert {row.solver for row in found.rows} == {"default", "shifted"}
    assert "--solvers default,shifted" in found.settings["command"]
    assert run(shifted)[1] == first

    def another(config):
        return shifted(config, 3.0)

    another.__name__ = "shifted"
    assert run(another)[1] == first + len([row for row in found.rows if row.solver == "shifted"])


def test_a_comparison_measures_a_rule_that_has_changed(bundle, tmp_path):
    def count(weight):
        def gentle(skip):
            return {skip.t: 1 + weight, skip.previous: -weight}

        options = {"steps": (6,), "ratios": (2,), "num_images": 1, "rounds": 1, "metrics": ("psnr",)}
        compare(bundle, predictors=[gentle], output=tmp_path / "report", **options)
        return len(list((tmp_path / "report" / "cells").glob("*.json")))

    assert [count(0.25), count(0.25), count(0.5)] == [2, 2, 3]


def test_the_command_line_finds_them_by_entry_point(bundle, package, tmp_path):
    plan = tmp_path / "plan.json"
    call("calibrate", bundle, *OPTIONS, "--budget", 4, "--solver", "shifted", "-o", plan)
    assert json.loads(plan.read_text())["solver"] == "shifted"
    call("gate", bundle, *OPTIONS[:2], "--num-held-out", 2, "--plan", plan, "--min-psnr", 0, "--solver", "shifted")
    both = tmp_path / "both.json"
    call("calibrate", bundle, *OPTIONS, "--budget", 4, "--solver", "default", "--solver", "shifted", "-o", both)
    assert list(json.loads(both.read_text())["solvers"]) == ["default", "shifted"]


def test_names_of_solvers():
    assert name_solver("euler") == "euler"
    assert name_solver(lambda config: None) == "lambda"
    assert name_solver(partial(shifted, shift=3.0)) == "partial"
    assert name_solvers("euler") == name_solvers(["euler", "euler"]) == ("euler",)
    assert Grid(solvers=[shifted]).solvers == (QuantizeOptions(solver=shifted).solver,) == ("shifted",)
    given = FlowMatchHeunDiscreteScheduler()
    assert make_scheduler({}, given) is given
    with pytest.raises(ZeusError, match="solver: got several of the name lambda"):
        name_solvers([lambda config: None, lambda config: None])


@pytest.mark.parametrize(
    ("given", "found"), [(3, "int"), (None, "NoneType"), (FlowMatchEulerDiscreteScheduler, "the class FlowMatchEuler")]
)
def test_what_is_no_solver_is_refused(given, found):
    with pytest.raises(ZeusError, match=rf"solver: got {found}\w*; expected a name, a scheduler"):
        name_solver(given)
