"""The wheel: one top-level name, the four packages, and a demo model that runs outside the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from checkout import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    skip = shutil.ignore_patterns(".*", "build", "dist", "out", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=skip)  # setuptools leaves its build folder beside the sources
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_wheel_holds_one_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"zeus_trt"}
    for package in ("zeus_graph", "export", "runtime", "calibration"):
        assert f"zeus_trt/{package}/__init__.py" in names
    assert "zeus_trt/calibration/page.html" in names
    assert [name for name in names if name.endswith(".safetensors")] == [
        "zeus_trt/demo_models/digits-unet-flow/unet/diffusion_pytorch_model.safetensors"
    ]


def test_wheel_works_outside_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    code = (
        "import zeus_trt, zeus_trt.export, zeus_trt.calibration, importlib.resources as r\n"
        "from zeus_trt.export import load_model\n"
        "folder = r.files('zeus_trt.demo_models') / 'digits-unet-flow'\n"
        "print(zeus_trt.__file__, load_model(folder).name)"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(site / "zeus_trt" / "__init__.py"), "digits-unet-flow"], done.stderr


def test_editable_install_is_the_checkout():
    import zeus_trt.runtime

    assert zeus_trt.runtime.__file__ == str(ROOT / "runtime" / "__init__.py")
