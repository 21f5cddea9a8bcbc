"""The page of the coverage: a row per pipeline class, with the reason of every "no"."""

from collections.abc import Mapping
from typing import Any

_HEAD = """# Which pipelines of diffusers work

Made by `python benchmarks/coverage.py`: do not edit it. Every pipeline class that diffusers {diffusers} exports is
built of tiny random components (`benchmarks/coverage_models.py`) and run for 8 steps. *Twin*: `accelerate` at ratio 0
gives the pipeline's result to the bit. *Skips*: at ratio 2 the denoiser is called at fewer steps.
*Export*: the denoiser becomes a graph, compared with the network at sizes that the export never saw. *Engine*: the twin
runs with that graph in ONNX Runtime; the number is the largest error of the whole run's result, relative to its
largest value. Some pipelines return pictures of 8 bits, where one unit is 4e-3 and a random decoder makes more of it:
each call of I2VGenXL agrees to 3e-6, its video to 3e-2. A dash: not tried.

A class that "does not run with what could be made for it" fails without zeus-trt too: the tiny components do not fit
it yet, or a part of diffusers does not fit the installed transformers. So every number is a lower bound. The safety
checker of Cosmos and, where torchvision is absent, the functions of it that Cosmos and OmniGen call are doubles
(`benchmarks/coverage_doubles.py`). A pipeline that is made of whole pipelines skips if one of these does.
Command: {command}.

{counts}

With {versions}.

| class | twin | skips | export | engine | reason |
| --- | --- | --- | --- | --- | --- |
"""
_COLUMNS = ("equal", "skips", "exports", "engine")
_PLAIN = {ord(sign): f"&#{ord(sign)};" for sign in "[]|<>*_`"}  # what Markdown would read as marks in a cell


def has_loop(found: Mapping[str, Any]) -> bool:
    """Whether a class has a scheduler that steps and a denoiser, as far as its try tells."""
    return bool(found.get("skips")) or not any(words in found.get("reason", "") for words in _NO_LOOP)


_NO_LOOP = (
    "made of the pipelines",
    "expected a diffusers pipeline with a scheduler",
    "OnnxStable",
    "has no attribute '__call__'",
)
"""What is said of classes that are made of whole pipelines, have no scheduler or loop, or hold ONNX graphs."""


def count(classes: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """How many classes get how far."""
    looped = {name: found for name, found in classes.items() if has_loop(found) and not name.startswith("Onnx")}
    return {
        "classes": len(classes),
        "with a scheduler and a denoiser": len(looped),
        "run": sum(bool(found.get("runs")) for found in looped.values()),
        "equal at ratio 0": sum(bool(found.get("equal")) for found in looped.values()),
        "skip at ratio 2": sum(bool(found.get("skips")) for found in looped.values()),
        "export was tried": sum("export" in found["stages"] and bool(found.get("skips")) for found in looped.values()),
        "export": sum(bool(found.get("exports")) for found in looped.values()),
        "engine in the twin": sum(bool(found.get("engine")) for found in looped.values()),
    }


def write(known: Mapping[str, Any]) -> str:
    """The page."""
    versions = known["versions"]
    head = _HEAD.format(
        diffusers=versions["diffusers"],
        command=known["command"],
        counts="; ".join(f"{name}: {number}" for name, number in count(known["classes"]).items()) + ".",
        versions=", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
    )
    return head + "".join(_write_row(name, found) for name, found in sorted(known["classes"].items()))


def _write_row(name: str, found: Mapping[str, Any]) -> str:
    cells = [_write_cell(found, column) for column in _COLUMNS]
    reason = " ".join(found.get("reason", "").split())
    reason = reason if len(reason) <= 240 else f"{reason[:237]}..."
    return f"| {name.removesuffix('Pipeline')} | {' | '.join(cells)} | {reason.translate(_PLAIN)} |\n"


def _write_cell(found: Mapping[str, Any], column: str) -> str:
    if column in ("exports", "engine") and ("export" not in found["stages"] or not found.get("skips")):
        return "-"
    if column == "engine" and "engine_error" in found:
        return f"{found['engine_error']:.0e}"
    return "yes" if found.get(column) else "no"
