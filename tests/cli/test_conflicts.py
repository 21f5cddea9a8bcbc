"""Options that would have no effect are refused, before anything is loaded."""

import json

import diffusers
import pytest
from checkout import MODELS, ROOT
from click.testing import CliRunner
from tiny_subjects import CALIBRATED, write_calibrated

from zeus_trt import ZeusError, accelerate, load_plan
from zeus_trt.cli import main
from zeus_trt.comparing import compare
from zeus_trt.planning import make_plan
from zeus_trt.sampling import run_model
from zeus_trt.zeus_graph import Plan

PICTURE = ROOT / "benchmarks" / "results" / "demo.png"
CLASSES = {
    "image": "StableDiffusionPipeline",
    "flux": "FluxPipeline",
    "labels": "DiTPipeline",
    "video": "WanPipeline",
}


def call(*words, **variables):
    return CliRunner(env=variables).invoke(main, [str(word) for word in words])


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Pipelines that hold nothing but the name of their class, a calibrated plan and a bundle's manifest: each is
    enough to see a conflict, and nothing that could be loaded."""
    for name, cls in CLASSES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").write_text(json.dumps({"_class_name": cls}))
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "manifest.json").write_text("{}")
    write_calibrated(tmp_path / "plan.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(diffusers.DiffusionPipeline, "from_pretrained", lambda *a, **k: pytest.fail("it loaded"))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run bundle --plan FFXF --ratio 2", "--plan and --ratio exclude each other"),
        ("run bundle --plan plan.json --predictor reuse", "predictor: got reuse beside a calibrated plan"),
        ("run image --prompt a --plan plan.json --predictor zeus", "predictor: got zeus beside a calibrated plan"),
        ("run bundle --ratio 0 --predictor reuse", "predictor: got reuse for a run that skips no step"),
        ("run bundle --plan FFF --predictor reuse", "predictor: got reuse for a run that skips no step"),
        ("run bundle --prompt a", "--prompt: got it for a bundle"),
        ("run bundle --negative-prompt a", "--negative-prompt: got it for a bundle"),
        ("run bundle --engine other", "--engine: got it for a bundle"),
        ("run bundle --dtype fp16", "--dtype: got it for a bundle"),
        ("run bundle --device cpu", "--device: got it for a bundle"),
        ("run bundle --size 64x64", "--size: got it for a bundle"),
        ("run bundle --frames 9", "--frames: got it for a bundle"),
        ("run bundle --min-psnr 30 --ratio 2", "--ratio and --min-psnr exclude each other"),
        ("run image --prompt a --min-psnr 30", "min-psnr: got it without an engine"),
        ("run bundle --image a.png", "--image: got it for a bundle"),
        ("run image --prompt a --strength 0.5", "--strength needs --image"),
        ("run image --label 1", "--label: got it for a StableDiffusionPipeline; expected prompts"),
        ("run labels --prompt a", "--prompt: got it for a DiTPipeline; expected labels"),
        ("run labels --label 1 --negative-prompt a", "--negative-prompt: got it for a DiTPipeline"),
        ("run labels --label 1 --size 64x64", "--size: got it for a DiTPipeline"),
        ("run image --prompt a --frames 9", "--frames: got it for a StableDiffusionPipeline"),
        ("run image --prompt a --negative-prompt b --guidance-scale 1", "without guidance (guidance_scale is 1)"),
        ("run flux --prompt a --negative-prompt b", "without guidance (true_cfg_scale is 1)"),
        ("run flux --prompt a --negative-prompt b --guidance-scale 5", "without guidance (true_cfg_scale is 1)"),
        ("run image --prompt a --mode program", "mode: got program for a pipeline"),
        ("run video --prompt a --mode step", "mode: got step for a pipeline"),
        ("run image --prompt a --backend onnxruntime", "backend: got onnxruntime for a pipeline alone"),
        ("run image --prompt a --backend auto", "backend: got auto for a pipeline alone"),
        ("run image --prompt a --backend eager --engine bundle", "--engine: got it with the backend eager"),
        ("compare image --mode program", "mode: got program for a pipeline"),
        ("compare bundle --plans plan.json --predictors reuse", "predictor: got reuse beside a calibrated plan"),
        ("compare image --label 1", "--labels: got it for a StableDiffusionPipeline"),
        ("compare bundle --prompts prompts.txt", "--prompts: got"),
        ("calibrate image --budget 5 -o o.json --backend onnxruntime", "backend: got onnxruntime for a pipeline alone"),
        (
            "calibrate image --budget 5 -o o.json --backend eager --engine bundle",
            "--engine: got it with the backend eager",
        ),
        ("calibrate bundle --budget 5 -o o.json --engine other", "--engine: got it for a bundle"),
        ("calibrate bundle --check plan.json --trajectories t.npz", "--check and --trajectories exclude each other"),
        ("calibrate bundle --check plan.json --max-calls 9", "--check and --max-calls exclude each other"),
        ("calibrate bundle --pareto -o curve.json", "output: got curve.json"),
        ("plan --plan FFXF --ratio 2", "--plan and --ratio exclude each other"),
        ("plan --plan FFXF --nfe 2", "--plan and --nfe exclude each other"),
        ("plan --plan FFXF --window flow", "--plan and --window exclude each other"),
        ("plan --nfe 9 --ratio 2", "--nfe and --ratio exclude each other"),
        ("plan --nfe 9 --window flow", "--nfe and --window exclude each other"),
        ("plan --plan FFXF --steps 9", "plan: got 4 steps; expected 9"),
        ("export image --null-label 3", "--null-label: got 3 for a pipeline"),
        ("export bundle --keep-fp32 a", "--keep-fp32: got it for an export in fp32"),
        ("export bundle --backend tensorrt-rtx --batch 2 --range batch=4", "batch has two ranges"),
        ("build bundle --backend tensorrt-rtx --model image", "--model has no effect for tensorrt-rtx"),
    ],
)
def test_an_option_without_effect_is_refused(place, words, said):
    words = words.split()
    words += ["-o", "out.png"] if words[0] in ("run", "export") else []
    before = sorted(place.rglob("*"))
    done = call(*words)
    assert done.exit_code in (1, 2), done.output
    assert isinstance(done.exception, SystemExit)
    assert said in done.stderr
    assert done.stdout == ""
    assert sorted(place.rglob("*")) == before


def test_a_calibrated_plan_on_a_solver_has_its_predictor(place):
    words = ("plan", "--plan", "plan.json", "--scheduler", MODELS / "digits-unet-v" / "scheduler", "--steps", 8)
    assert call(*words).exit_code == 0
    assert "beside a calibrated plan" in call(*words, "--predictor", "reuse").stderr


def test_a_variable_yields_to_the_command_line(monkeypatch):
    made = call("plan", "--plan", "FFXF", ZEUS_TRT_PLAN_RATIO="2", ZEUS_TRT_PLAN_JSON="1")
    assert json.loads(made.stdout)["steps"] == "FFXF"
    assert "ZEUS_TRT_PLAN_RATIO is left out: --plan was given" in made.stderr
    both = call("plan", ZEUS_TRT_PLAN_RATIO="2", ZEUS_TRT_PLAN_NFE="20")
    assert (both.exit_code, "--nfe and --ratio exclude each other" in both.stderr) == (2, True)


def test_every_option_has_a_variable():
    for name, command in main.commands.items():
        for option in command.params:
            if option.param_type_name == "option":
                assert option.envvar.startswith("ZEUS_TRT_"), (name, option.name)
    assert json.loads(call("plan", "--json", ZEUS_TRT_PLAN_STEPS="20").stdout)["nfe"] == 10
    several = main.commands["run"].params[1]
    assert several.opts == ["--prompt"]
    assert several.type.split_envvar_value("a cat\na dog") == ["a cat", "a dog"]


def test_python_refuses_the_same(place):
    plan = load_plan("plan.json")
    for refused in (
        lambda: accelerate(object(), 2, plan=plan),
        lambda: run_model("bundle", place / "o.png", plan=plan, ratio=2),
        lambda: run_model("bundle", place / "o.png", plan=plan, predictor="reuse"),
        lambda: compare("bundle", plans=[plan], predictors=["reuse"]),
        lambda: make_plan(text="FFXF", nfe=2),
    ):
        with pytest.raises(ZeusError):
            refused()
    assert plan == Plan(CALIBRATED, plan.predictor)
