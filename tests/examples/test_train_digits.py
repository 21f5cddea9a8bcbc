"""The training script of the digits models: it learns, writes a loadable folder, and fails cleanly."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from diffusers import FlowMatchEulerDiscreteScheduler, UNet2DModel
from diffusers.training_utils import EMAModel
from safetensors.torch import load_file
from torch.nn.functional import mse_loss

SCRIPT = Path(__file__).parents[2] / "examples/train_digits.py"
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        return importlib.import_module("train_digits")


def run(script, *options, model="digits-unet-flow", output):
    return CliRunner().invoke(script.main, ["--model", model, "--device", "cpu", *map(str, options), "-o", str(output)])


def read_result(stdout: str) -> dict:
    return json.loads(stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder and result of one short training, run the way a user runs it."""
    output = tmp_path_factory.mktemp("models") / "new" / "digits"
    options = ["--model", "digits-unet-flow", "--steps", "16", "--batch-size", "8", "--device", "cpu"]
    done = subprocess.run([sys.executable, SCRIPT, *options, "-o", output], capture_output=True, text=True, check=True)
    return output, read_result(done.stdout), done.stderr


@pytest.mark.extra
def test_loss_falls(trained):
    _, result, stderr = trained
    assert result["steps"] == 16
    assert result["seconds"] > 0
    assert result["loss_last"] < 0.5 * result["loss_first"]
    assert "16/16" in stderr
    assert "loss=" in stderr


@pytest.mark.extra
def test_folder_loads_and_matches_the_shipped_one(trained, script):
    output, _, _ = trained
    shipped = script.EXAMPLES / "models/digits-unet-flow"
    model = UNet2DModel.from_pretrained(output / "unet")
    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(output / "scheduler")
    assert dict(scheduler.config) == dict(FlowMatchEulerDiscreteScheduler.load_config(shipped / "scheduler"))
    assert UNet2DModel.load_config(output / "unet") == UNet2DModel.load_config(shipped / "unet")
    ours, theirs = load_file(output / WEIGHTS), load_file(shipped / WEIGHTS)
    assert {k: (v.shape, v.dtype) for k, v in ours.items()} == {k: (v.shape, v.dtype) for k, v in theirs.items()}
    with torch.no_grad():
        picture = model(torch.zeros(1, 1, 32, 32), 500.0, class_labels=torch.tensor([3])).sample
    assert picture.isfinite().all()
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize("model", ["digits-dit-flow", "digits-unet-epsilon", "digits-unet-flow", "digits-unet-v"])
def test_shipped_models_solve_the_task_of_the_script(script, model):
    """Samples, targets and timesteps are those of the shipped weights, which use the label that they are given."""
    source = script.EXAMPLES / "models" / model
    network = next(name for name in script.NETWORKS if (source / name).is_dir())
    denoiser = script.NETWORKS[network][0].from_pretrained(source / network).eval()
    torch.manual_seed(7)
    sample, target, timestep, labels = next(script.draw_batches(script.read_process(source), 32))

    def measure(timestep, labels):
        with torch.no_grad():
            return mse_loss(denoiser(sample, timestep, class_labels=labels).sample, target).item()

    loss = measure(timestep, labels)
    assert loss < 0.15
    assert loss < measure(timestep, torch.full_like(labels, script.NULL_CLASS))
    assert loss < 0.5 * measure(timestep.flip(0), labels)


@pytest.mark.extra
def test_batches_drop_a_tenth_of_the_labels(script):
    torch.manual_seed(0)
    sample, target, timestep, labels = next(script.draw_batches(script.Flow(), 4000))
    assert sample.shape == target.shape == (4000, 1, 32, 32)
    assert (labels == script.NULL_CLASS).float().mean().item() == pytest.approx(0.1, abs=0.02)
    x0 = sample - (timestep / 1000)[:, None, None, None] * target
    assert x0.min().item() == pytest.approx(-1, abs=1e-5)
    assert x0.max().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.extra
def test_same_seed_same_training(script, tmp_path):
    runs = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        done = run(script, "--steps", 3, "--batch-size", 4, "--seed", seed, output=tmp_path / name)
        assert done.exit_code == 0, done.output
        result = read_result(done.stdout)
        runs[name] = result["loss_first"], result["loss_last"], (tmp_path / name / WEIGHTS).read_bytes()
    assert runs["a"] == runs["b"]
    assert runs["a"][0] != runs["c"][0]
    assert runs["a"][2] != runs["c"][2]


def test_saved_weights_are_the_moving_average(script, monkeypatch):
    """Two steps: the average starts at the first weights, then keeps 2 / 11 of them (EMAModel's warm-up)."""
    raw = []

    class Recorder(EMAModel):
        def step(self, parameters):
            parameters = list(parameters)
            raw.append(parameters[0].item())
            super().step(parameters)

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, sample, timestep, class_labels):
            return SimpleNamespace(sample=self.weight * sample)

    monkeypatch.setattr(script, "EMAModel", Recorder)
    model, batch = Scale(), (torch.ones(1), torch.zeros(1), torch.zeros(1), torch.zeros(1))
    script.train(model, iter([batch] * 2), 0.1, 2, "cpu")
    assert raw[1] < raw[0] < 1
    assert model.weight.item() == pytest.approx((2 * raw[0] + 9 * raw[1]) / 11, rel=1e-6)


def test_unknown_model_is_a_usage_error(script, tmp_path):
    done = run(script, model="digits-unet-x", output=tmp_path / "out")
    assert done.exit_code == 2
    assert "digits-unet-x" in done.output
    assert "digits-unet-flow" in done.output
    assert "Traceback" not in done.output
    assert isinstance(done.exception, SystemExit)


def test_existing_output_is_refused_before_training(script, tmp_path):
    (tmp_path / "kept.txt").write_text("mine")
    done = run(script, output=tmp_path)
    assert done.exit_code == 1
    assert f"output: got {tmp_path}" in done.output
    assert isinstance(done.exception, SystemExit)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_unknown_device_is_refused_before_training(script, tmp_path):
    done = run(script, "--device", "abacus", output=tmp_path / "out")
    assert done.exit_code == 1
    assert "device: got abacus" in done.output
    assert isinstance(done.exception, SystemExit)


@pytest.mark.extra
def test_nothing_is_left_of_a_failed_run(script, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("disk full")

    monkeypatch.setattr(script.shutil, "copytree", fail)
    done = run(script, "--steps", 1, "--batch-size", 1, output=tmp_path / "out")
    assert str(done.exception) == "disk full"
    assert list(tmp_path.iterdir()) == []
