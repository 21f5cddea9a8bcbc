"""Predictors, policies, metrics and solvers of other packages: as objects, and by entry points."""

import pytest
import torch
from checkout import ROOT
from outside_package import install_package, read_blocks
from toy_bundle import make_session

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.quality import measure_quality
from zeus_trt.runtime import ProgramStepper, draw_noise
from zeus_trt.runtime import run as run_program
from zeus_trt.runtime.scheduler import make_scheduler
from zeus_trt.zeus_graph import OpenPolicy, Plan, Predictor, SamplingProgram, StaticPolicy, fold
from zeus_trt.zeus_graph.policy_choice import read_policy


@pytest.fixture(scope="module")
def code():
    """The blocks of the page, run one after the other."""
    names = {}
    for block in read_blocks():
        exec(compile(block, "docs/rules.md", "exec"), names)
    return names


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with the page's entry points."""
    yield from install_package(tmp_path, monkeypatch)


def test_the_page_says_what_the_blocks_print(code):
    plan = Plan.uniform(20, ratio=3)
    assert plan.with_predictor(code["gentle"]).rule.rows(plan)[5] == {4: 1.25, 3: -0.25}
    assert code["EverySecond"](Plan("FFFF")).plan == Plan("FFFF", "reuse")


def test_a_rule_folds_steps_and_is_written_as_rows(code):
    session, noise = make_session(), draw_noise((2, 4, 8, 8), seed=[1, 2])
    plan = Plan.uniform(20, 3).with_predictor(code["gentle"])
    program = fold(session.solver.program(20), plan)
    again = SamplingProgram.from_json(program.to_json())
    assert again.predictor["name"] == "table"
    results = [
        session.generate(num_steps=20, noise=noise, plan=Plan.uniform(20, 3), predictor=rule, mode=mode).latents
        for rule in (code["gentle"], Predictor.parse(code["gentle"]))
        for mode in ("program", "step")
    ]
    for result in results:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-5)
    assert not torch.equal(results[0], session.generate(num_steps=20, noise=noise, ratio=3).latents)
    assert isinstance(ProgramStepper(again, noise), ProgramStepper)
    assert run_program(lambda sample, timestep: -sample, ProgramStepper(again, noise)).shape == noise.shape
    assert {StaticPolicy(plan).plan, OpenPolicy(plan).plan} == {plan}


def test_entry_points_are_found_by_name(package):
    assert Predictor.parse("gentle").rows(Plan("FFXF"))[2] == {1: 1.25, 0: -0.25}
    assert str(Predictor.parse("gentle")) == "gentle"
    plan = Plan("FFXF", "gentle")
    assert Plan.from_json(plan.to_json()) == plan
    policy = read_policy("every-second,cap=1")(Plan("F" * 6), None)
    assert type(policy).__name__ == "EverySecond"
    made = make_scheduler({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 1.5}, "shifted")
    assert made.config.shift == 3.0
    images = torch.zeros(2, 1, 16, 16)
    options = MeasureOptions(metrics=("psnr", "largest"))
    assert measure_quality(images, images, images + 0.5, images, options.metrics).others == {"largest": 0.5}


def test_the_command_line_finds_them(package):
    from click.testing import CliRunner

    from zeus_trt.cli import main

    scheduler = ROOT / "examples" / "models" / "digits-unet-flow" / "scheduler"
    asked = ["--steps", "20", "--nfe", "8", "--predictor", "gentle", "--scheduler", str(scheduler), "--json"]
    done = CliRunner().invoke(main, ["plan", *asked])
    assert done.exit_code == 0, done.output
    assert '"name": "gentle"' in done.output


@pytest.mark.parametrize(("name", "words"), [("broken", "got a int from"), ("missing", "AttributeError")])
def test_entry_points_that_do_not_load_are_refused(package, name, words):
    with pytest.raises(ZeusError, match=rf"predictor {name}: got .*; expected a function or a class") as caught:
        Predictor.parse(name)
    assert words in str(caught.value)


def test_without_the_package_its_names_are_refused():
    for refuse in (lambda: Predictor.parse("gentle"), lambda: read_policy("every-second"),
                   lambda: MeasureOptions(metrics=("largest",)), lambda: make_scheduler({}, "shifted")):  # fmt: skip
        with pytest.raises(ZeusError, match="expected"):
            refuse()


@pytest.mark.parametrize("row", [{9: 1.0}, {1: float("nan")}, [1.0], None])
def test_a_rule_that_makes_no_row_is_refused(row):
    with pytest.raises(ZeusError, match="predictor table: got"):
        Predictor.parse(lambda skip: row).rows(Plan("FFXF"))
