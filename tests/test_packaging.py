"""The wheel: one top-level name, the four packages, and a demo model that runs outside the checkout; the sdist."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from checkout import ROOT
from cpp_driver import check_cmake


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder of the sdist, and of the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    skip = shutil.ignore_patterns(".*", "build", "dist", "out", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=skip)  # setuptools leaves its build folder beside the sources
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """Folder that the wheel is installed into."""
    site = tmp_path_factory.mktemp("site")
    install = ("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    return site


@pytest.mark.extra
def test_wheel_holds_one_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"zeus_trt"}
    assert "zeus_trt/zeus_graph/prior.json" in names
    for package in ("zeus_graph", "export", "runtime", "serving", "evaluation", "calibration"):
        assert f"zeus_trt/{package}/__init__.py" in names
    assert "zeus_trt/evaluation/page.html" in names
    assert [name for name in names if name.endswith(".safetensors")] == [
        "zeus_trt/demo_models/digits-unet-flow/unet/diffusion_pytorch_model.safetensors"
    ]


@pytest.mark.extra
def test_wheel_works_outside_the_checkout(site, tmp_path):
    code = (
        "import zeus_trt, zeus_trt.export, zeus_trt.calibration, importlib.resources as r\n"
        "from zeus_trt.export import load_pipeline\n"
        "folder = r.files('zeus_trt.demo_models') / 'digits-unet-flow'\n"
        "print(zeus_trt.__file__, type(load_pipeline(folder).denoiser).__name__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(site / "zeus_trt" / "__init__.py"), "UNet2DModel"], done.stderr


@pytest.mark.extra
def test_the_wheel_brings_the_headers_and_what_a_deployment_copies(site, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "zeus_trt", "cmake-dir"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(site / "zeus_trt" / "runtime" / "cpp")
    for name in ("sample.cpp", "server.cpp", "CMakeLists.txt"):
        assert (site / "zeus_trt" / "cpp_examples" / name).exists()
    assert (site / "zeus_trt" / "export" / "deployment.md").exists()
    assert (site / "zeus_trt" / "serving" / "page.html").exists()
    check_cmake(done.stdout.strip(), tmp_path)


@pytest.mark.slow
def test_the_tests_of_the_sdist_run(built, site, tmp_path):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["tests/zeus_graph/test_plan.py", "tests/test_readme.py::test_make_targets_exist"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=unpacked, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for name in ("tests/reference/digits.json", "benchmarks/results/demo.png", "examples/data", "Makefile"):
        assert (unpacked / name).exists()


@pytest.mark.extra
def test_one_package_of_onnxruntime_at_a_time(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    needs = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: onnxruntime")]
    assert {need.split("extra == ")[-1].strip("'\"") for need in needs} == {"onnxruntime", "onnxruntime-gpu"}
    assert len(needs) == 2


def test_editable_install_is_the_checkout():
    import zeus_trt.runtime

    assert zeus_trt.runtime.__file__ == str(ROOT / "runtime" / "__init__.py")
