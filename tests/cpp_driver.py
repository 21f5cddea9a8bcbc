"""C++ sources of the tests: compiled once, and run with Python as the denoiser at the other end of a pipe."""

import functools
import hashlib
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bundle_cache import open_cache
from checkout import ROOT
from filelock import FileLock
from golden_files import GOLDEN

CPP = ROOT / "runtime" / "cpp"
SOURCES = ROOT / "tests" / "cpp"
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
COMPILERS = ("g++", "clang++")
FLAGS = {
    "plain": ("-O2", "-march=native", *WARNINGS),
    "address": ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-O1", "-g1", "-fsanitize=thread"),
}
"""Of each kind of program. -march=native: torch joins product and sum where the processor can, and so do these."""
CALL, RESULT, ERROR, QUANTIZED_CALL = range(4)

_LISTS = """cmake_minimum_required(VERSION 3.18)
project(user CXX)
find_package(zeus_trt 0.1 REQUIRED)
add_executable(user user.cpp)
target_link_libraries(user PRIVATE zeus_trt::zeus_trt)
"""
_USER = """#include <zeus_trt/zeus_trt.hpp>
#include <iostream>
int main(int, char** values) {
  const auto program = zeus_trt::SamplingProgram::load(values[1]);
  std::cout << (program ? std::to_string(program->nfe()) : program.error().message) << "\\n";
}
"""


def find_compiler(name: str) -> str:
    """The compiler; skips the test where it, or the header of nlohmann-json, is missing."""
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed")
    has = subprocess.run(
        [found, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"], input="#include <nlohmann/json.hpp>\n", text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    if has.returncode:
        pytest.skip("nlohmann/json.hpp is missing: apt-get install nlohmann-json3-dev")
    return found


@functools.cache
def compile_source(name: str | Path, compiler: str = "g++", kind: str = "plain") -> Path:
    """The program of a source, a path or a name in ``tests/cpp``; compiled if it or a header changed."""
    command = [find_compiler(compiler), "-std=c++17", *FLAGS[kind], f"-I{CPP}", "-pthread"]
    content = hashlib.sha256(" ".join(command).encode())
    for path in (SOURCES / name, *sorted(CPP.rglob("*.hpp"))):
        content.update(path.read_bytes())
    program = open_cache() / f"{Path(name).stem}-{compiler}-{kind}-{content.hexdigest()[:16]}"
    with FileLock(program.with_suffix(".lock")):
        if not program.exists():
            made = program.with_suffix(".new")
            done = subprocess.run(
                [*command, str(SOURCES / name), "-o", str(made)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[:3000]
            made.rename(program)
    return program


def run_program(program: Path, *arguments: object, check: bool = True) -> subprocess.CompletedProcess:
    """Runs it to its end; its text output is kept."""
    done = subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, check=False, errors="replace"
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def run_trajectories(
    program: Path,
    sampling_program: Path,
    noise: np.ndarray,
    denoiser: Callable[[int, np.ndarray, np.ndarray], np.ndarray],
    *,
    quantized: Callable[[int, np.ndarray, np.ndarray], np.ndarray] | None = None,
    guidance_scale: float = 1.0,
    trajectories: int = 1,
) -> dict[int, np.ndarray | str]:
    """Latents, or the error, of each trajectory.

    Args:
        program: Compiled ``driver.cpp``.
        sampling_program: File of the sampling program.
        noise: (rows, ...), float32 or float64.
        denoiser: Maps number of the trajectory, latents and timesteps (rows,) to the output.
        quantized: The same, for the steps ``Q`` of the plan.
        guidance_scale: With another than 1 the denoiser gets twice the rows.
        trajectories: How many run at once, a thread each.
    """
    file = sampling_program.with_suffix(".noise")
    file.write_bytes(noise.tobytes())
    kind = {4: "float", 8: "double"}[noise.itemsize]
    command = [program, sampling_program, file, len(noise), guidance_scale, trajectories, kind]
    made: dict[int, np.ndarray | str] = {}
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    with subprocess.Popen(
        [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout
        while head := process.stdout.read(32):
            what, trajectory, rows, size = struct.unpack("<4q", head)
            content = process.stdout.read(size)
            if what == ERROR:
                made[trajectory] = content.decode()
                continue
            tensor = np.frombuffer(content, noise.dtype).reshape(rows, *noise.shape[1:])
            if what == RESULT:
                made[trajectory] = tensor
                continue
            timesteps = np.frombuffer(process.stdout.read(4 * rows), np.float32)
            answer = quantized if what == QUANTIZED_CALL else denoiser
            process.stdin.write(np.ascontiguousarray(answer(trajectory, tensor, timesteps), noise.dtype).tobytes())
            process.stdin.flush()
    assert process.returncode == 0, "the driver failed: see its stderr"
    return made


def check_cmake(config: str | Path, folder: Path) -> None:
    """Builds a program by ``find_package(zeus_trt)`` and runs it; skips where there is no cmake.

    Args:
        config: Folder of ``zeus_trtConfig.cmake``.
        folder: An empty one.
    """
    find_compiler("g++")
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    (folder / "CMakeLists.txt").write_text(_LISTS)
    (folder / "user.cpp").write_text(_USER)
    build = folder / "build"
    run_program(Path("cmake"), "-S", folder, "-B", build, f"-Dzeus_trt_DIR={config}")
    run_program(Path("cmake"), "--build", build)
    assert run_program(build / "user", GOLDEN / "sampling_program.json").stdout == "3\n"
