"""Which pipeline classes of the installed diffusers work: twin, skipped steps, export, engine.

It builds each class from tiny random components (coverage_components.py), and tries it in a separate process.

python benchmarks/coverage.py [--only NAME ...] [--stages twin export] [--resume]
"""

import argparse
import importlib.metadata
import inspect
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
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
    """What works of a class, found in a process that may compute for so many seconds."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "found.json"
        process = multiprocessing.get_context("fork").Process(target=_run_child, args=(cls, stages, path, seconds))
        process.start()
        process.join(10 * seconds)
        is_late = process.exitcode is None or process.exitcode == -signal.SIGXCPU
        process.kill()
        process.join()
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if not found.pop("is_done", False):
            found["reason"] = f"took more than {seconds} s" if is_late else "crashed"
        return found


def _run_child(cls: type, stages: list[str], path: Path, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    sink = os.open(os.environ.get("COVERAGE_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    torch.set_num_threads(1)
    for found in checks.check(cls, stages, path.parent):
        found["seconds"] = round(time.process_time(), 1)
        path.with_suffix(".new").write_text(json.dumps(found))
        path.with_suffix(".new").rename(path)
    os._exit(0)  # not every library's threads end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", help="names of classes, or parts of names")
    parser.add_argument("--after", default="", help="a name: classes after it alone")
    parser.add_argument("--stages", nargs="*", default=["twin", "export"], choices=["twin", "export"])
    parser.add_argument("--seconds", type=int, default=120, help="limit of computing time per class")
    parser.add_argument("--jobs", type=int, default=1, help="classes that are tried side by side")
    parser.add_argument("--resume", action="store_true", help="leave out classes that were tried at these stages")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results" / "coverage.json")
    parser.add_argument("--table", type=Path, default=HERE.parent / "docs" / "coverage.md")
    asked = parser.parse_args()
    known = json.loads(asked.output.read_text()) if asked.output.exists() else {"classes": {}}
    classes, names = list_classes(), [cls.__name__ for cls in list_classes()]
    known["classes"] = {name: found for name, found in known["classes"].items() if name in names}
    left = [
        cls
        for cls in classes
        if cls.__name__ > asked.after
        and (not asked.only or any(part in cls.__name__ for part in asked.only))
        and not (asked.resume and {*asked.stages} <= {*known["classes"].get(cls.__name__, {}).get("stages", ())})
    ]
    with ThreadPoolExecutor(asked.jobs) as pool:
        tries = {pool.submit(try_class, cls, asked.stages, asked.seconds): cls.__name__ for cls in left}
        for done in as_completed(tries):
            name = tries[done]
            known["classes"][name] = found = {**done.result(), "stages": asked.stages}
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
