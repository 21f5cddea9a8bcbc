import ast
import copy
import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from solver_loops import SOLVERS

import zeus_trt.zeus_graph
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import Plan, Predictor, json_file
from zeus_trt.zeus_graph.fold import fold
from zeus_trt.zeus_graph.sampling_program import SamplingProgram
from zeus_trt.zeus_graph.solver_program import SolverProgram
from zeus_trt.zeus_graph.trace import trace

PLAN = Plan("FFFXRFXRFF")


@pytest.fixture(scope="module")
def scheduler():
    return SOLVERS["dpmsolver++ 2 midpoint multistep"][0]()


@pytest.fixture(scope="module")
def solver(scheduler):
    return trace(scheduler, 10)


@pytest.fixture(scope="module")
def sampling(solver):
    return fold(solver, PLAN.with_predictor("lagrange-3@sigma"))


def test_solver_round_trip_is_exact(solver, tmp_path):
    path = tmp_path / "solver.json"
    solver.save(path)
    again = SolverProgram.load(path)
    assert again.to_json() == solver.to_json()
    for name in ("matrices", "input_rows"):
        for left, right in zip(getattr(solver, name), getattr(again, name), strict=True):
            assert left.dtype == right.dtype == np.float64
            assert np.array_equal(left, right)
    assert again.fingerprint == solver.fingerprint
    assert fold(again, PLAN).fingerprint == fold(solver, PLAN).fingerprint


@pytest.mark.parametrize(
    "predictor", ["zeus", "linear-grid@sigma", Predictor.from_table({i: {1: 0.1, 2: 0.9} for i in (3, 4, 6, 7)})]
)
def test_sampling_round_trip_is_exact(solver, predictor, tmp_path):
    program = fold(solver, PLAN.with_predictor(predictor))
    program.save(tmp_path / "program.json")
    again = SamplingProgram.load(tmp_path / "program.json")
    assert again.to_json() == program.to_json()
    assert all(np.array_equal(a, b) for a, b in zip(again.matrices, program.matrices, strict=True))
    assert again.fingerprint == program.fingerprint
    assert Predictor.from_json(again.predictor) == Predictor.parse(predictor)
    assert (again.nfe, again.plan, again.solver) == (6, str(PLAN), solver.fingerprint)


def test_files_are_strict_json(solver, tmp_path):
    """The config of DPM-Solver holds an infinity, which JSON has not."""
    solver.save(tmp_path / "solver.json")

    def refuse(name):
        raise AssertionError(name)

    data = json.loads((tmp_path / "solver.json").read_text(), parse_constant=refuse)
    assert data["config"]["lambda_min_clipped"] == "-inf"
    assert not [key for key in data["config"] if key.startswith("_")]


def test_fingerprints_tell_programs_apart(solver):
    make = SOLVERS["Euler"][0]
    programs = [trace(make(), 10), trace(make(), 11), trace(make(), 10, begin=2), solver]
    programs += [trace(make(timestep_spacing="trailing"), 10), trace(make(), 10, timesteps=list(range(990, 0, -99)))]
    assert len({program.fingerprint for program in programs}) == len(programs)
    folded = [fold(solver, PLAN), fold(solver, PLAN.with_predictor("reuse")), fold(solver, Plan("F" * 10))]
    assert len({program.fingerprint for program in folded}) == 3
    assert trace(make(), 10).fingerprint == programs[0].fingerprint


def test_a_fingerprint_covers_every_field(solver):
    """Also the matrices, by their last bit."""
    nudged = [np.nextafter(array, 2) for array in solver.matrices]
    changes = (
        {"matrices": tuple(nudged)}, {"input_rows": tuple(2 * row for row in solver.input_rows)}, {"sigmas": None},
        {"num_steps": 11}, {"begin": 1}, {"init_noise_sigma": 2.0}, {"prediction_type": "sample"}, {"scheduler": "A"},
        {"timesteps": tuple(t + 1 for t in solver.timesteps)}, {"config": {}},
    )  # fmt: skip
    found = {dataclasses.replace(solver, **change).fingerprint for change in changes}
    assert len(found | {solver.fingerprint}) == len(changes) + 1


def test_check_accepts_its_own_scheduler(solver, scheduler):
    name = type(scheduler).__name__
    scheduler.set_timesteps(10)
    assert solver.check(name, scheduler.config, 10, timesteps=scheduler.timesteps.tolist()) is solver
    assert solver.check(name, json.loads(scheduler.to_json_string()), 10) is solver


def test_check_names_what_differs(solver):
    name, config = solver.scheduler, dict(solver.config)
    with pytest.raises(ZeusError, match="got scheduler 'DPMSolverMultistepScheduler'; expected 'Other'"):
        solver.check("Other", config, 10)
    with pytest.raises(ZeusError, match=r"got config.beta_end 0.012; expected 0.02"):
        solver.check(name, {**config, "beta_end": 0.02}, 10)
    with pytest.raises(ZeusError, match=r"got config.new 'nothing'; expected 1"):
        solver.check(name, {**config, "new": 1}, 10)
    with pytest.raises(ZeusError, match="got num_steps 10; expected 11"):
        solver.check(name, config, 11)
    with pytest.raises(ZeusError, match="got begin 0; expected 3"):
        solver.check(name, config, 10, begin=3)
    with pytest.raises(ZeusError, match="got number of timesteps 10; expected 2"):
        solver.check(name, config, 10, timesteps=[1, 2])
    with pytest.raises(ZeusError, match=r"got timestep 4 .*; expected 1\.5"):
        solver.check(name, config, 10, timesteps=[*solver.timesteps[:4], 1.5, *solver.timesteps[5:]])


def spoil(data, *path, value=None):
    """A copy of ``data`` without the entry at ``path``, or with ``value`` there."""
    data = copy.deepcopy(data)
    *way, last = path
    target = data
    for key in way:
        target = target[key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return data


@pytest.mark.parametrize("kind", [SolverProgram, SamplingProgram])
def test_malformed_content_is_refused(kind, solver, sampling):
    data = (solver if kind is SolverProgram else sampling).to_json()
    bad = [spoil(data, key) for key in data if key != "format"]
    bad += [spoil(data, key, value="text") for key in data if key not in ("format", "scheduler", "prediction_type")]
    bad += [spoil(data, "matrices", i) for i in (0, 2)]
    bad += [spoil(data, "matrices", 2, 0), spoil(data, "matrices", 2, 0, 1), spoil(data, "timesteps", 0)]
    bad += [spoil(data, "matrices", 2, 0, 1, value=v) for v in (math.nan, math.inf, "x", [1])]
    bad += [spoil(data, "timesteps", 0, value=math.nan), spoil(data, "timesteps", 0, value=3.25)]
    for content in bad:
        with pytest.raises(ZeusError, match=r"malformed content|does not fit|predictor|plan"):
            kind.from_json(content)


@pytest.mark.parametrize("kind", [SolverProgram, SamplingProgram])
@pytest.mark.parametrize("data", [{"format": 2}, {}, [], None, "text"])
def test_unknown_formats_are_refused(kind, data):
    with pytest.raises(ZeusError, match=r"program: got format .*; expected 1\. Update zeus-trt"):
        kind.from_json(data)


def test_programs_cannot_be_changed(solver, sampling):
    with pytest.raises(ValueError, match="read-only"):
        solver.matrices[0][0, 0] = 2.0
    with pytest.raises(ValueError, match="read-only"):
        sampling.matrices[0][0, 0] = 2.0


def test_a_failed_save_leaves_the_old_file_and_nothing_else(sampling, solver, tmp_path, monkeypatch):
    path = tmp_path / "program.json"
    sampling.save(path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ZeusError, match="disk full"):
        fold(solver, PLAN).save(path)
    assert os.listdir(tmp_path) == ["program.json"]
    assert path.read_bytes() == before


def test_unreadable_files_and_folders(sampling, tmp_path):
    with pytest.raises(ZeusError, match="No such file"):
        SolverProgram.load(tmp_path / "none.json")
    with pytest.raises(ZeusError, match="No such file"):
        sampling.save(tmp_path / "none" / "program.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ZeusError, match="no strict JSON"):
        SamplingProgram.load(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.array([1, 2]), [1, 2]),
        ((1, 2.5, None, True), [1, 2.5, None, True]),
        (-math.inf, "-inf"),
        ({1: math.nan}, {"1": "nan"}),
        (Path("a"), "a"),
    ],
)
def test_plain(value, expected):
    assert json_file.plain(value) == expected


@pytest.mark.parametrize(
    "module", ["json_file", "solver_program", "sampling_program", "fold", "prune", "plan", "predictor"]
)
def test_programs_and_folding_need_nothing_but_numpy(module):
    tree = ast.parse(Path(zeus_trt.zeus_graph.__file__).with_name(f"{module}.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in names} & {"torch", "diffusers", "scipy"}
