"""What is tried with a pipeline class, in order: each stage needs those before it."""

import contextlib
import copy
import dataclasses
import inspect
import itertools
import math
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage_components as components
import coverage_doubles as doubles
import numpy as np
import torch
from coverage_arguments import ARGUMENTS, BESIDE, OF_PIPELINE, SIZE
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError
from zeus_trt.export import export_model
from zeus_trt.export.pipeline_call import find_call
from zeus_trt.export.runs import Settings
from zeus_trt.export.settings import choose_settings
from zeus_trt.runtime import accelerate
from zeus_trt.runtime.pipelines.denoisers import find_denoisers, list_pipelines

STEPS = 8
MOST_BUILDS = 10


def check(cls: type, stages: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """What works so far, after each stage."""
    found: dict[str, Any] = {}
    doubles.stand_for_torchvision()
    try:
        yield found
        pipeline, settings, unseen = _build(cls)
        call, base = _lengthen(cls, settings.run), dict(settings.base)
        found["builds"] = True
        yield found
        plain = _run(pipeline, call, base)
        again = _run(pipeline, call, base)
        if not _equal(plain, again):
            raise AssertionError("the plain pipeline gives another result when it is run again")
        found["runs"] = True
        yield found
        with accelerate(pipeline, ratio=0) as twin:
            same = _run(twin, call, base)
        found["equal"] = _equal(plain, same)
        if not found["equal"]:
            raise AssertionError("ratio 0 gives another result")
        full = twin.report.nfe
        yield found
        with accelerate(pipeline, ratio=2) as twin:
            _run(twin, call, base)
        found["plan"], found["skips"] = str(twin.report.plan), twin.report.nfe < full
        yield found
        if not found["skips"]:
            raise AssertionError(f"ratio 2 skips no step of {found['plan']}")
        if "export" in stages:
            bundle = _export(pipeline, settings, unseen, folder / "bundle")
            found["exports"] = found["verified"] = True  # an export is compared with the network before it is kept
            yield found
            with accelerate(pipeline, ratio=0, engine=bundle) as twin:
                compiled = _run(twin, call, base)
            found["engine_error"] = _measure(compiled, plain)
            found["engine"] = twin.report.nfe == full
    except BaseException as error:
        traceback.print_exc()
        found["reason"] = f"{type(error).__name__}: {error}".strip()[:600]
    found["is_done"] = True
    yield found


def _build(cls: type) -> tuple[Any, Any, dict[str, Any]]:
    """The first pipeline that runs, and how to call it."""
    failures = []
    for build in itertools.islice(components.list_builders(cls), MOST_BUILDS):
        try:
            pipeline = build()
            settings, unseen = _choose_settings(pipeline)
            return pipeline, _open_output(pipeline, settings), unseen
        except Exception as error:
            traceback.print_exc()
            failures.append(error)
    raise (
        failures[-1] if len(failures) == 1 else RuntimeError(" / ".join(dict.fromkeys(str(f)[-250:] for f in failures)))
    )


def _lengthen(cls: type, call: Any) -> Any:
    """The call with as many steps as leave ``STEPS`` of them at the strength of an image's change."""
    takes = inspect.signature(cls.__call__).parameters
    strength = takes["strength"].default if "strength" in takes else None
    steps = math.ceil(STEPS / strength) if isinstance(strength, float) and 0 < strength <= 1 else STEPS
    given = {"num_inference_steps": steps} if "num_inference_steps" in takes else {}
    return dataclasses.replace(call, given={**call.given, **given})


def _open_output(pipeline: Any, settings: Any) -> Any:
    """Settings with which the pipeline runs to its end: not every one takes ``latent`` for its output."""
    bare = {name: value for name, value in settings.base.items() if name != "output_type"}
    bases = [settings.base, bare, {**bare, "output_type": "np"}]  # LDM3D's default fails in itself
    for base in bases[:-1]:
        with contextlib.suppress(Exception):  # each refuses latents in its own way
            _run(pipeline, settings.run, dict(base))
            return dataclasses.replace(settings, base=base)
    _run(pipeline, settings.run, dict(bases[-1]))
    return dataclasses.replace(settings, base=bases[-1])


def _export(pipeline: Any, settings: Any, unseen: Any, output: Path) -> Any:
    """A bundle of the denoiser, or of the first one of several."""
    try:
        return export_model(pipeline, output, settings=settings, unseen=unseen, steps=())
    except ZeusError as error:
        if not str(error).startswith("component:"):
            raise
        return export_model(
            pipeline, output, settings=settings, unseen=unseen, steps=(), component=next(iter(find_denoisers(pipeline)))
        )


def _measure(one: list[torch.Tensor], two: list[torch.Tensor]) -> float:
    """The largest error, relative to the largest value."""
    pairs = [(a.double(), b.double()) for a, b in zip(one, two, strict=True) if a.numel()]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for a, b in pairs)


def _choose_settings(pipeline: Any) -> Any:
    takes = inspect.signature(pipeline.__call__).parameters
    parts = getattr(pipeline, "components", {}).values()
    beside = [value for part in parts for value in BESIDE.get(type(part).__name__, {}).items()]
    own = OF_PIPELINE.get(type(pipeline).__name__, {})
    own = own(pipeline) if callable(own) else own
    arguments = {name: value for name, value in [*ARGUMENTS.items(), *beside] if name in takes} | own
    if list_pipelines(pipeline):  # export takes none of these
        base = {"prompt": "a photo of a cat", "height": SIZE, "width": SIZE}
        base = {name: value for name, value in base.items() if name in takes}
        return Settings(base, {}, {}, find_call(pipeline, base, arguments)), ()
    try:
        return choose_settings(pipeline, [(SIZE, SIZE)], arguments)
    except ZeusError as error:
        if not str(error).startswith("sizes:"):
            raise
        return choose_settings(pipeline, arguments=arguments)


def _run(pipeline: Any, call: Any, base: dict[str, Any]) -> list[Any]:
    torch.manual_seed(0)
    np.random.seed(0)
    out = copy.deepcopy(call)(pipeline, **copy.deepcopy(base))
    return [_to_tensor(leaf) for leaf in pytree.tree_leaves(_open(out))]


def _open(out: Any) -> Any:
    return dict(out) if hasattr(out, "keys") else vars(out) if hasattr(out, "__dataclass_fields__") else out


def _to_tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach()
    try:
        return torch.from_numpy(np.array(leaf))
    except TypeError:
        return torch.zeros(0)


def _equal(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
