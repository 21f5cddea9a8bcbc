"""Numbers that no machine can serve, and names that are mistyped: one sentence at once, and nothing is allocated."""

import math
import sys

import diffusers
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from toy_bundle import denoise, make_session

from zeus_trt.calibration.goals import Goal
from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.export.loading import is_pipeline
from zeus_trt.runtime import Bundle, Session, draw_noise
from zeus_trt.runtime.noise import check_memory
from zeus_trt.zeus_graph import Plan, Predictor, UntraceableError, fold, trace
from zeus_trt.zeus_graph.calibrated_plan import load_plan

HUGE = [10**7, 10**9, 2**63, 10**15, 10**30, 10**5000]
PLAN = Plan("FFXF")


def refuse(action, words=""):
    with pytest.raises(ZeusError) as caught:
        action()
    text = str(caught.value)
    assert words in text
    assert "; expected" in text
    assert len(text) < 500


@pytest.mark.parametrize("number", HUGE, ids=lambda number: f"{number.bit_length()} bits")
def test_huge_numbers(number):
    session = make_session()
    refuse(lambda: session.plan(number, 3), "num_steps: got")
    refuse(lambda: session.begin(number, 0.5), "num_steps: got")
    refuse(lambda: session.generate(plan=PLAN, batch=number), "batch: got")
    refuse(lambda: next(session.sample(plan=PLAN, num_steps=number)), "num_steps: got")
    refuse(lambda: session.generate(plan=PLAN, seed=range(number)), "seed: got more than 65536")
    refuse(lambda: Plan.uniform(number, 3), "length: got")
    refuse(lambda: Plan.spread(number, 10), "length: got")
    refuse(lambda: Plan.spread(50, number), "nfe: got")
    refuse(lambda: Plan.from_full_steps(number, [0, 1]), "length: got")
    refuse(lambda: Plan.from_full_steps(50, range(number)), "full_steps: got 50")
    refuse(lambda: trace(diffusers.EulerDiscreteScheduler(), number), "num_steps: got")
    refuse(lambda: trace(diffusers.EulerDiscreteScheduler(), 10, begin=number), "begin: got")
    refuse(lambda: draw_noise((number, 4, 64, 64), 0), "noise: got")


def test_memory_is_estimated_before_it_is_taken():
    refuse(lambda: draw_noise((60_000, 16, 512, 512), 0), "MiB that are free")
    refuse(lambda: check_memory("pictures", (8, 10**9, 3, 512, 512)), "pictures: got")
    refuse(lambda: check_memory("pictures", (8, 3, 10**6, 10**6)), "pictures: got")
    check_memory("pictures", (8, 3, 512, 512))


SEEDS = [2**64, -(2**63) - 1, 10**5000, 1.5, math.nan, None, True, "1", b"1", [2**64], [[1]], {}]


@pytest.mark.parametrize("seed", SEEDS, ids=range(len(SEEDS)))
def test_seeds_that_are_none(seed):
    refuse(lambda: draw_noise((1, 4), seed), "seed: got")


def test_seeds_of_numpy():
    for seed in (np.int64(3), np.array(3)):
        assert torch.equal(draw_noise((2, 4), seed), draw_noise((2, 4), 3))
    for seeds in (np.array([1, 2]), (1, 2), range(1, 3)):
        assert torch.equal(draw_noise((2, 4), seeds), draw_noise((2, 4), [1, 2]))


@pytest.mark.parametrize(
    "words",
    [
        ("run", "MODEL", "--num-images", 10**15), ("run", "MODEL", "--steps", 10**9), ("run", "MODEL", "--seed", 2**64),
        ("run", "MODEL", "--num-images", 2, "--seed", 2**64 - 1), ("compare", "MODEL", "--num-images", 10**15),
        ("compare", "MODEL", "--steps", f"10,{10**9}"), ("calibrate", "MODEL", "--num-trajectories", 10**12),
        ("calibrate", "MODEL", "--steps", 10**9), ("plan", "--steps", 10**9), ("plan", "--nfe", 10**12),
    ],
    ids=lambda words: " ".join(map(str, words)),
)  # fmt: skip
def test_the_command_line(words, tmp_path):
    ends = {"run": ["-o", tmp_path / "out.png"], "calibrate": ["--budget", 5, "-o", tmp_path / "plan.json"]}
    words = [tmp_path if word == "MODEL" else word for word in words] + ends.get(words[0], [])
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == 1, done.output
    assert "; expected" in done.stderr
    assert done.stderr.count("Error") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("plan", [None, 3, [], ["F"], b"FF", b"", {}, PLAN, "F" * 10**7, "", " ", "FFZF", "x" * 1000])
def test_plans_of_other_types(plan):
    refuse(lambda: Plan(plan), "plan: got")


@pytest.mark.parametrize("source", [None, 3, 1.5, [], ["F"], b"FF", {"steps": "FF"}, True, "", "p.json", "a\0.json"])
def test_sources_of_no_plan(source):
    refuse(lambda: load_plan(source), "plan: got")


def test_a_plan_is_a_source_of_itself():
    assert load_plan(PLAN) == PLAN
    refuse(lambda: load_plan(PLAN, 50), "plan: got 4 steps")


@pytest.mark.parametrize("value", ["5", b"x", [], {}, True, 1j, 10**400, math.nan, math.inf, object])
def test_goals_that_are_no_numbers(value):
    refuse(lambda: Goal(speedup=value), "speedup: got")
    refuse(lambda: Goal(min_psnr=value), "min_psnr: got")
    if value != 10**400:
        refuse(lambda: Goal(nfe=value), "nfe: got")


def test_sessions_of_other_types():
    bundle = make_session().bundle
    for path in (None, 3, b"x", [], 10**400):
        refuse(lambda path=path: Bundle.open(path), "bundle: got")
    for scheduler in (0, "", "euler", {}, diffusers):
        refuse(lambda scheduler=scheduler: Session(bundle, engine=denoise, scheduler=scheduler), "scheduler: got")
    for device in ("", -1, [], 2**63, 10**400, "gpu"):
        refuse(lambda device=device: Session(bundle, device=device), "device: got")


@pytest.mark.parametrize(
    "window", [None, 3, "default", "0.2", b"ab", [], (0.1,), (0.1, 0.1, 0.1), (math.nan, 0), (None, 0), {}]
)
def test_windows_of_other_types(window):
    refuse(lambda: Plan.uniform(10, 2, window), "window: got")


@pytest.mark.parametrize("steps", [None, 3, "01", [1.5], [None], [-1], [10], [True], [[0]], math.nan])
def test_full_steps_of_other_types(steps):
    refuse(lambda: Plan.from_full_steps(10, steps), "full_steps: got")


@pytest.mark.parametrize(
    "name", [None, 3, [], {}, b"zeus", "", "ZEUS", "zeus@sigma", "lagrange-7", True, ("zeus",), PLAN]
)
def test_predictors_of_other_types(name):
    refuse(lambda: Predictor.parse(name), "predictor: got")
    refuse(lambda: Predictor(name), "predictor: got")


@pytest.mark.parametrize(
    "table",
    [
        3, [], "x", {2: None}, {2: [1.0]}, {"2": {1: 1.0}}, {2: {"1": 1.0}}, {2: {1: math.nan}}, {2: {1: -math.inf}},
        {2: {1: "1"}}, {2: {1: None}}, {2: {1: True}}, {2: {1: 1j}}, {2: {1: 10**400}}, {2: {2: 1.0}}, {2: {3: 1.0}},
        {2: {-1: 1.0}}, {-1: {}}, {10**5000: {1: 1.0}}, {2: {10**5000: 1.0}}, {2.0: {1: 1.0}}, {True: {0: 1.0}},
    ],
    ids=range(22),
)  # fmt: skip
def test_tables_that_are_none(table):
    refuse(lambda: Predictor.from_table(table), "predictor table: got")


def test_a_table_belongs_to_the_predictor_of_that_name():
    refuse(lambda: Predictor("table"), "no table")
    refuse(lambda: Predictor("zeus", table={}), "a table")
    refuse(lambda: Predictor("lagrange-2", "time"), "abscissa: got 'time'")


def test_a_table_is_copied():
    table = {2: {0: np.float32(-1.0), np.int64(1): 2}}
    predictor = Predictor.from_table(table)
    table[2][0] = math.nan
    assert predictor.rows(PLAN)[2] == {0: -1.0, 1: 2.0}


def test_a_long_schedule_goes_step_by_step():
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    with pytest.raises(UntraceableError, match="got a schedule of 20000 evaluations; expected 5000 at most"):
        trace(scheduler, 20_000)
    session = make_session(scheduler=scheduler)
    plan = session.plan(20_000, 3)
    assert len(Predictor().rows(plan)) == 20_000
    program, reason = session.solver.choose("auto", plan, 20_000)
    assert program is None
    assert "to trace it" in reason
    steps = session.sample(plan=plan, num_steps=20_000, noise=draw_noise((2, 4, 8, 8), 0))
    assert [next(steps).index for _ in range(3)] == [0, 1, 2]


def test_a_scheduler_that_keeps_ever_more_is_bounded(monkeypatch):
    monkeypatch.setattr(sys.modules[trace.__module__], "_WIDTHS", (8, 16))
    with pytest.raises(UntraceableError, match="more than 14 tensors that it keeps"):
        trace(diffusers.IPNDMScheduler(), 40)
    assert trace(diffusers.EulerDiscreteScheduler(), 40).num_evaluations == 40


def test_a_table_that_reads_very_many_outputs_is_not_folded():
    count = 100
    plan = Plan("F" * count + "RF")
    table = Predictor.from_table({count: dict.fromkeys(range(count), 1 / count)})
    with pytest.raises(UntraceableError, match="got rows that read 65 outputs"):
        fold(trace(diffusers.EulerDiscreteScheduler(), count + 2), plan.with_predictor(table))


def test_mistyped_folders_are_no_ids_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "bundle").mkdir(parents=True)
    refuse(lambda: is_pipeline("out/bundel"), "model: got out/bundel; expected a folder that exists in out")
    refuse(lambda: is_pipeline("x" * 300 + "/y"), "File name too long")
    for name in ("out/bundle", "./bundel", "../bundel", "/somewhere/else", "a/b/c", "out", "out/", "", "~/bundle"):
        assert not is_pipeline(name)
    assert is_pipeline("some-org/some-model-1.5")
    (tmp_path / "out" / "bundle" / "model_index.json").write_text("{}")
    assert is_pipeline("out/bundle")
    for words in (("run", "out/bundel", "-o", "a.png"), ("compare", "out/bundel"), ("export", "out/bundel", "-o", "b")):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 1
        assert "a folder that exists in out" in done.stderr
