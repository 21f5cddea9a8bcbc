"""Which pipeline classes of the installed diffusers work: twin, skipped steps, export, engine.

It builds each class from tiny random components (coverage_components.py), and tries it in a separate process.

python benchmarks/coverage.py [--only NAME ...] [--stages twin export] [--resume]
"""

import argparse
import importlib.metadata
import inspect
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import coverage_checks as checks
import coverage_table as table
import diffusers
import torch

HERE = Path(__file__).parent


def list_classes() -> list[type]:
    """The pipeline classes that diffusers exports."""
    found = {getattr(diffusers, name, None) for name in dir(diffusers) if "Pipeline" in name}
    classes = [cls for cls in found if inspect.isclass(cls) and issubclass(cls, diffusers.DiffusionPipeline)]
    return sorted((cls for cls in classes if cls is not diffusers.DiffusionPipeline), key=lambda cls: cls.__name__)


def try_class(cls: type, stages: list[str], seconds: int) -> dict[str, Any]:
    """What works of a class, found in a process with a time limit."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "found.json"
        process = os.fork()
        if not process:
            _run_child(cls, stages, path, scratch)
        began = time.monotonic()
        while os.waitpid(process, os.WNOHANG) == (0, 0):
            if time.monotonic() - began > seconds:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                break
            time.sleep(0.05)
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if not found.pop("is_done", False):
            found["reason"] = f"took more than {seconds} s" if time.monotonic() - began > seconds else "crashed"
        return {**found, "seconds": round(time.monotonic() - began, 1)}


def _run_child(cls: type, stages: list[str], path: Path, scratch: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
    sink = os.open(os.environ.get("COVERAGE_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    torch.set_num_threads(1)
    try:
        for found in checks.check(cls, stages, Path(scratch)):
            path.with_suffix(".new").write_text(json.dumps(found))
            path.with_suffix(".new").rename(path)
    finally:
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", help="names of classes, or parts of names")
    parser.add_argument("--after", default="", help="a name: classes after it alone")
    parser.add_argument("--stages", nargs="*", default=["twin", "export"], choices=["twin", "export"])
    parser.add_argument("--seconds", type=int, default=120, help="limit per class")
    parser.add_argument("--resume", action="store_true", help="leave out classes that were tried at these stages")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results" / "coverage.json")
    parser.add_argument("--table", type=Path, default=HERE.parent / "docs" / "coverage.md")
    asked = parser.parse_args()
    known = json.loads(asked.output.read_text()) if asked.output.exists() else {"classes": {}}
    classes, names = list_classes(), [cls.__name__ for cls in list_classes()]
    known["classes"] = {name: found for name, found in known["classes"].items() if name in names}
    for cls in classes:
        name = cls.__name__
        is_left = not {*asked.stages} <= {*known["classes"].get(name, {}).get("stages", ())}
        if name <= asked.after or (asked.only and not any(part in name for part in asked.only)):
            continue
        if asked.resume and not is_left:
            continue
        known["classes"][name] = found = {**try_class(cls, asked.stages, asked.seconds), "stages": asked.stages}
        print(name, found, file=sys.stderr, flush=True)
        write(known, asked)
    print(json.dumps(write(known, asked)))


def write(known: dict[str, Any], asked: argparse.Namespace) -> dict[str, int]:
    """Writes the results and the table; returns the counts."""
    packages = ("diffusers", "transformers", "torch", "onnxruntime", "zeus-trt")
    known["versions"] = {name: importlib.metadata.version(name) for name in packages}
    known["command"] = f"python benchmarks/coverage.py --seconds {asked.seconds}"
    known["counts"] = counts = table.count(known["classes"])
    asked.output.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    asked.table.write_text(table.write(known))
    return counts


if __name__ == "__main__":
    main()
