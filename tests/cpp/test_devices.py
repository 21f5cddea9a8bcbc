"""The headers for CUDA and TensorRT: compiled where their compilers and headers are, run where there is a device."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cpp_driver import CPP, WARNINGS, find_compiler
from diffusers import UniPCMultistepScheduler

from zeus_trt.zeus_graph import Plan, fold, trace

USER = """#include <zeus_trt/zeus_trt_tensorrt.hpp>
int main() {
  auto engine = zeus_trt::TensorRtEngine::open("deploy");
  auto quantized = zeus_trt::TensorRtEngine::open("deploy", 0, nullptr, "quantized");
  auto denoiser = engine->bind({{"class_labels", {nullptr, {2}}}}, {4, 8, 8});
  auto other = quantized->bind({{"class_labels", {nullptr, {2}}}}, {4, 8, 8});
  zeus_trt::EnginePair pair(**denoiser, **other);
  return !pair(zeus_trt::Call<float>{});
}
"""


@pytest.mark.slow
def test_cuda(tmp_path):
    find_compiler("g++")
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not installed")
    program = tmp_path / "cuda"
    source = Path(__file__).parent / "cuda.cu"
    command = ["nvcc", "-std=c++17", "-O2", f"-I{CPP}", "-Xcompiler", "-Wall,-Wextra", str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr
    fold(trace(UniPCMultistepScheduler(), 20), Plan.uniform(20, 3)).save(tmp_path / "program.json")
    done = subprocess.run([str(program), str(tmp_path / "program.json")], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("it compiles; there is no CUDA device to run it on")
    assert done.returncode == 0, done.stdout + done.stderr


def find_headers(name: str, variable: str, usual: tuple[str, ...]) -> Path:
    """Folder of a vendor's header."""
    folders = [Path(folder) for folder in (os.environ.get(variable), *usual) if folder]
    found = next((folder for folder in folders if (folder / name).exists()), None)
    return found or pytest.skip(f"{name} is in none of {', '.join(map(str, folders))}: set {variable} to its folder")


def test_tensorrt(tmp_path):
    compiler = find_compiler("g++")
    usual = ("/usr/include/x86_64-linux-gnu", "/usr/include", "/usr/local/tensorrt/include", "/opt/tensorrt/include")
    tensorrt = find_headers("NvInferRuntime.h", "TENSORRT_INCLUDE", usual)
    nvcc = shutil.which("nvcc")
    beside = (str(Path(nvcc).resolve().parents[1] / "include"),) if nvcc else ()
    cuda = find_headers("cuda_runtime_api.h", "CUDA_INCLUDE", (*beside, "/usr/local/cuda/include", "/usr/include"))
    (tmp_path / "user.cpp").write_text(USER)
    command = [compiler, "-std=c++17", "-fsyntax-only", *WARNINGS, f"-I{CPP}", "-isystem", str(tensorrt)]
    done = subprocess.run(
        [*command, "-isystem", str(cuda), str(tmp_path / "user.cpp")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    print(f"compiled against {tensorrt}/NvInferRuntime.h and {cuda}/cuda_runtime_api.h")
