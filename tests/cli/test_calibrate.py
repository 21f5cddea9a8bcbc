"""The command calibrate, and run with what it writes."""

import json
import shutil

import pytest
from checkout import edit_json
from click.testing import CliRunner

from zeus_trt.cli import main
from zeus_trt.runtime import Session

OPTIONS = ("--steps", 10, "--num-trajectories", 2, "--num-validation", 2, "--num-held-out", 2)


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def bundle(export_tiny):
    return export_tiny().path


@pytest.fixture(scope="module")
def plan(bundle, tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "fast.json"
    done = call("calibrate", bundle, *OPTIONS, "--budget", 5, "-o", path, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1]) == json.loads(path.read_text())
    assert "held-out samples" in done.stderr
    return path


def test_trajectories_are_kept_in_the_bundle_and_found_again(bundle, plan, tmp_path):
    (kept,) = (bundle / "calibration").iterdir()
    before = kept.stat().st_mtime_ns
    done = call("calibrate", bundle, *OPTIONS, "--speedup", 2, "-o", tmp_path / "same.json")
    assert done.exit_code == 0, done.output
    assert kept.stat().st_mtime_ns == before
    assert (tmp_path / "same.json").read_text() != ""
    assert json.loads((tmp_path / "same.json").read_text())["plan"] == json.loads(plan.read_text())["plan"]


def test_run_takes_the_file(bundle, plan, tmp_path):
    options = ("--steps", 10, "--num-images", 1, "--backend", "onnxruntime")
    done = call("run", bundle, *options, "--plan", plan, "-o", tmp_path / "out.png", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.splitlines()[-1])
    data = json.loads(plan.read_text())
    assert (report["plan"], report["predictor"]) == (data["plan"], data["predictor"]["name"])
    assert report["nfe"] == 5
    assert "warning" not in done.stderr


def test_run_warns_of_another_guidance_and_refuses_another_solver(bundle, plan, tmp_path):
    picture = tmp_path / "out.png"
    common = (bundle, "--num-images", 1, "--backend", "onnxruntime", "--plan", plan, "-o", picture)
    done = call("run", *common, "--steps", 10, "--guidance-scale", 4)
    assert done.exit_code == 0, done.output
    assert "warning: " in done.stderr
    assert "guidance_scale 2.0, and runs with 4.0" in done.stderr
    picture.unlink()
    refused = call("run", *common, "--steps", 12)
    assert refused.exit_code == 1
    assert "num_steps 10; expected 12" in refused.stderr
    assert not picture.exists()


def test_run_refuses_the_plan_of_another_model(bundle, plan, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(bundle, other)
    edit_json(other / "manifest.json", weights_sha256="0" * 64)
    done = call("run", other, "--steps", 10, "--plan", plan, "-o", tmp_path / "out.png")
    assert done.exit_code == 1
    assert "model weights" in done.stderr


def test_run_refuses_a_damaged_plan(bundle, plan, tmp_path):
    damaged = tmp_path / "damaged.json"
    shutil.copy(plan, damaged)
    edit_json(damaged, num_steps=11)
    done = call("run", bundle, "--steps", 11, "--plan", damaged, "-o", tmp_path / "out.png")
    assert done.exit_code == 1
    assert "damaged" in done.stderr


def test_check_measures_anew(bundle, plan):
    done = call("calibrate", bundle, "--steps", 10, "--num-held-out", 2, "--check", plan, "--json")
    assert done.exit_code == 0, done.output
    checked, made = json.loads(done.stdout.splitlines()[-1]), json.loads(plan.read_text())
    assert checked["plan"] == made["plan"]
    assert checked["numbers"]["held_out"] == [6, 2]
    assert checked["psnr_db"] != made["psnr_db"]


def test_check_measures_at_several_guidance_scales(bundle, plan, tmp_path):
    words = ("--steps", 10, "--num-held-out", 2, "--check", plan, "--json")
    scales = ("--check-guidance", 1, "--check-guidance", 4)
    done = call("calibrate", bundle, *words, *scales, "-o", tmp_path / "transfer.json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads((tmp_path / "transfer.json").read_text())
    assert [row["guidance_scale"] for row in found["rows"]] == [1, 4]
    for row in found["rows"]:
        alone = call("calibrate", bundle, *words, "--guidance-scale", row["guidance_scale"])
        assert json.loads(alone.stdout.splitlines()[-1])["psnr_db"] == row["psnr_db"]
    assert call("calibrate", bundle, *OPTIONS, *scales, "--budget", 5, "-o", tmp_path / "no.json").exit_code == 2


def test_a_range_of_guidance_scales(bundle, tmp_path):
    path, scale = tmp_path / "range.json", ("--guidance-scale", "1.5:5")
    done = call("calibrate", bundle, *OPTIONS, *scale, "--budget", 5, "-o", path)
    assert done.exit_code == 0, done.output
    assert "guidance       calibrated over 1.5 to 5\n" in done.stdout
    assert json.loads(path.read_text())["workload"]["guidance_scale"] == [1.5, 5.0]
    for words, warns in ((("--guidance-scale", 3), False), (("--guidance-scale", 6), True)):
        options = ("--steps", 10, "--num-images", 1, "--plan", path, "-o", tmp_path / "out.png")
        done = call("run", bundle, *options, *words)
        assert done.exit_code == 0, done.output
        assert ("its quality there is not known" in done.stderr) == warns
    check = ("--steps", 10, "--num-held-out", 2, "--check", path)
    for words in (scale, ("--guidance-scale", 3), ("--check-guidance", 3)):
        assert call("calibrate", bundle, *check, *words).exit_code == 0
    assert call("calibrate", bundle, *OPTIONS, "--guidance-scale", "5:2", "--budget", 5, "-o", path).exit_code == 2


def test_one_plan_for_several_solvers_by_the_worst_tenth(bundle, tmp_path):
    path, words = tmp_path / "both.json", ("--solver", "default", "--solver", "dpmpp-2m", "--objective", "worst-decile")
    done = call("calibrate", bundle, *OPTIONS, *words, "--budget", 5, "-o", path)
    assert done.exit_code == 0, done.output
    assert "on the worst tenth" in done.stdout
    made = json.loads(path.read_text())
    assert (list(made["solvers"]), made["objective"]) == (["default", "dpmpp-2m"], "worst-decile")
    for solver in made["solvers"]:
        check = ("--steps", 10, "--num-held-out", 1, "--check", path, "--solver", solver)
        assert call("calibrate", bundle, *check).exit_code == 0
    refused = call("calibrate", bundle, *OPTIONS, *words[:2], "--solver", "heun", "--budget", 5, "-o", path)
    assert refused.exit_code == 1
    assert "--solver: got default with 10 evaluations, heun with 19 evaluations" in refused.stderr


def test_pareto(bundle, tmp_path):
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    for _ in range(2):  # the second menu takes the place of the first
        done = call("calibrate", folder, *OPTIONS, "--pareto", "-o", tmp_path / "curve.png", "--json")
        assert done.exit_code == 0, done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "curve.csv", "curve.png"]
    points = json.loads(done.stdout.splitlines()[-1])["points"]
    assert len(points) >= 4
    with Session(folder) as session:
        plans = [name for name in session.bundle.manifest.files if name.startswith("plans/")]
        assert len(plans) == sum(point["plan_nfe"] == point["nfe"] for point in points)
        scale = json.loads((folder / plans[0]).read_text())["workload"]["guidance_scale"]
        for point in points:
            settings = {"num_steps": 10, "guidance_scale": scale or 1.0, "min_psnr": point["calibrated_db"]}
            report = session.generate(session.label_images([1], 1), **settings).report
            assert report.plan == point["plan"], report.reason


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("--budget", 2), "budget: got 2 full steps; expected 3..10", 1),
        (("--budget", 11), "budget: got 11 full steps", 1),
        (("--speedup", 9), "speedup: got 9", 1),
        (("--budget", 5, "--speedup", 2), "--budget and --speedup exclude each other", 2),
        ((), "a goal is needed: --budget, --speedup, --min-psnr, or --pareto", 2),
        (("--budget", 5, "--max-calls", 7), "--max-calls: got 7", 1),
        (("--budget", 5, "--prompts", "some.txt"), "--prompts: got it for a bundle; expected a pipeline", 1),
        (("--budget", 5, "--engine", "some"), "--engine: got it for a bundle; expected a pipeline", 1),
        (("--min-psnr", "nan"), "nan is not a finite number", 2),
        (("--pareto", "--budget", 5), "--pareto and --budget exclude each other", 2),
        (("--check", "plan.json", "--pareto"), "--check and --pareto exclude each other", 2),
        (("--budget", 5, "--steps", 0), "0 is not in the range", 2),
        (("--min-psnr", 900), "which no plan reached", 1),
        (("--budget", 5, "--num-trajectories", 0), "Invalid value", 2),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(bundle, tmp_path, words, said, code):
    done = call("calibrate", bundle, *OPTIONS, *words, "-o", tmp_path / "plan.json")
    assert done.exit_code == code, done.output
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("plan.txt", ("--budget", 5), "got plan.txt; expected a plan's name such as plan.json"),
        ("folder.json", ("--budget", 5), "folder.json, which cannot be written (Is a directory)"),
        ("curve", ("--pareto",), "curve.csv, which cannot be written (Is a directory)"),
    ],
)
def test_an_output_that_cannot_be_written_is_said_before_the_work(bundle, tmp_path, monkeypatch, name, words, said):
    monkeypatch.setattr("zeus_trt.calibrating.open_task", lambda *args, **options: pytest.fail("it began"))
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "curve.csv").mkdir()
    done = call("calibrate", bundle, *words, "-o", tmp_path / name)
    assert done.exit_code == 1
    assert said in done.stderr


def test_plan_describes_the_file(plan):
    done = call("plan", "--plan", plan, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["steps"] == json.loads(plan.read_text())["plan"]


def test_the_output_is_asked_for(bundle):
    assert call("calibrate", bundle, "--budget", 5).exit_code == 2


@pytest.mark.slow
def test_a_pipeline_is_calibrated_and_run(tmp_path, tiny_pipeline):
    pipeline, prompts, plan = tiny_pipeline, tmp_path / "prompts.txt", tmp_path / "plans" / "fast.json"
    prompts.write_text("a cat\n\na dog\n")
    done = call(
        "calibrate", pipeline, *OPTIONS, "--prompts", prompts, "--guidance-scale", "1.5:5", "--budget", 5, "-o", plan
    )
    assert done.exit_code == 0, done.output
    made = json.loads(plan.read_text())["workload"]
    assert (made["prompts"], made["guidance_scale"]) == (["a cat", "a dog"], [1.5, 5.0])
    options = ("--steps", 10, "--prompt", "a bird", "--plan", plan)
    done = call("run", pipeline, *options, "-o", tmp_path / "out.png", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["nfe"] == 5
