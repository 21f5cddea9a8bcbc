"""Memory, reuse, cancellation and errors of the C++ stepper; mutated files under the sanitizers."""

import re

import numpy as np
import pytest
from checkout import ROOT
from cpp_driver import COMPILERS, compile_source, run_program, run_trajectories
from diffusers import FlowMatchEulerDiscreteScheduler
from golden_files import GOLDEN
from tiny_subjects import write_calibrated

from zeus_trt.zeus_graph import Plan, fold, load_plan, trace

PROGRAM, MANIFEST = GOLDEN / "sampling_program.json", GOLDEN / "bundle" / "manifest.json"


@pytest.mark.parametrize("kind", ["plain", pytest.param("address", marks=pytest.mark.slow)])
def test_what_needs_no_python(kind):
    done = run_program(compile_source("checks.cpp", kind=kind), PROGRAM)
    assert done.stdout.splitlines()[-1] == "0 failures"


@pytest.mark.extra
def test_the_program_of_the_documentation_runs(tmp_path):
    (code,) = re.findall(r"^```cpp\n(.*?)^```", (ROOT / "docs" / "cpp.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "user.cpp").write_text(code)
    done = run_program(compile_source(tmp_path / "user.cpp"), PROGRAM)
    assert done.stdout.startswith("3 calls, first number ")


@pytest.mark.parametrize(
    "rounds", [pytest.param(600, marks=pytest.mark.extra), pytest.param(100_000, marks=pytest.mark.slow)]
)
def test_a_mutated_file_is_refused_in_one_sentence(tmp_path, rounds):
    write_calibrated(tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    fold(trace(FlowMatchEulerDiscreteScheduler(), len(plan)), plan).save(tmp_path / "program.json")
    mutate = compile_source("mutate.cpp", kind="address")
    for seed, program in enumerate((PROGRAM, tmp_path / "program.json")):
        done = run_program(mutate, program, MANIFEST, rounds // 2, seed)
        mutations, valid = (int(word) for word in done.stdout.split() if word.isdigit())
        assert mutations == rounds // 2
        assert 0 < valid < mutations / 4


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("kind", ["address", "thread"])
def test_threads_under_the_sanitizers(tmp_path, compiler, kind):
    fold(trace(FlowMatchEulerDiscreteScheduler(), 12), Plan.uniform(12, 3)).save(tmp_path / "program.json")
    driver = compile_source("driver.cpp", compiler, kind)
    noise = np.linspace(-1, 1, 2000, dtype=np.float32).reshape(2, 1000)
    made = run_trajectories(
        driver, tmp_path / "program.json", noise, lambda number, latents, timesteps: np.tanh(latents),
        guidance_scale=2.0, trajectories=2,
    )  # fmt: skip
    assert np.array_equal(made[0], made[1])
    assert np.isfinite(made[0]).all()
