"""Serving without diffusers, transformers and onnx."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from checkout import ROOT
from safetensors.torch import save_file

ABSENT = ("diffusers", "transformers", "onnx", "onnxscript", "click", "tqdm", "PIL", "matplotlib", "rich")
SCRIPT = ROOT / "examples" / "serve_minimal.py"


@pytest.mark.parametrize("kind", ["safetensors", pytest.param("npz", marks=pytest.mark.extra)])
def test_serves_a_bundle(digits_bundle, open_session, tmp_path, kind):
    given = {"class_labels": torch.tensor([3, 8]), "negative.class_labels": torch.tensor([10, 10])}
    file = tmp_path / f"conditioning.{kind}"
    if kind == "npz":
        np.savez(file, **{name: value.numpy() for name, value in given.items()})
    else:
        save_file(given, file)
    blocked = "import sys, runpy, torch\ntorch.set_num_threads(1)\n" + "".join(
        f"sys.modules[{name!r}] = None\n" for name in ABSENT
    )
    words = [str(SCRIPT), str(digits_bundle("unet-flow")), str(file), str(tmp_path / "out.npz")]
    words += ["--steps", "20", "--guidance-scale", "2", "--seed", "7", "--backend", "onnxruntime"]
    code = f"{blocked}sys.argv = {words!r}\nrunpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    session = open_session("unet-flow")
    expected = session.generate(
        {"class_labels": given["class_labels"]}, plan=session.plan(20, 3), num_steps=20, guidance_scale=2.0, seed=7
    )
    latents = torch.from_numpy(np.load(tmp_path / "out.npz")["latents"])
    torch.testing.assert_close(latents, expected.latents, rtol=0, atol=1e-4)
    assert f"nfe={expected.report.nfe}" in done.stdout
    assert "onnxruntime: asked for" in done.stdout
