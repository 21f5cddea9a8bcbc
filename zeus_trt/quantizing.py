"""Quantization in one call."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeus_trt.calibration.quantization_report import BlockError, QuantizationReport
    from zeus_trt.zeus_graph import Plan

SEED = 1000
"""Of the samples of a quantization: others than those that ``run`` and ``compare`` make by default."""


def quantize(
    bundle: str | os.PathLike,
    *,
    precision: str = "int8",
    plan: "str | os.PathLike | Plan | None" = None,
    model: str | os.PathLike | None = None,
    prompts: str | os.PathLike | None = None,
    **options: Any,
) -> "QuantizationReport":
    """Adds a graph in 8 bits to a bundle, calibrated on the steps that a plan runs, if it is near the float graph.

    Then ``Session(bundle, precision="int8")`` runs it, and ``build_engine(bundle, ..., precision="int8")`` builds it.

    Args:
        bundle: A folder written by ``zeus-trt export``. It is replaced at once at the end, or left as it was.
        precision: ``int8`` or ``fp8``.
        plan: As in ``load_plan``; every step by default.
        model: The pipeline of the bundle; needed where its inputs come from prompts.
        prompts: For pipelines: a file with a prompt per line; sample k takes line k, in turn.
        **options: Of ``QuantizeOptions`` and ``ModelOptions``: ``num_trajectories``, ``keep``, ``min_psnr``,
            ``steps``, ``guidance_scale``, ``labels``, ``seed`` (1000 by default) ...

    Raises:
        ZeusError: As ``open_model``, or a graph that is too far from the float graph.
    """
    from zeus_trt.calibration.quantize import quantize as add

    return add(*_open(bundle, precision=precision, plan=plan, model=model, prompts=prompts, **options))


def measure_sensitivity(bundle: str | os.PathLike, **options: Any) -> "tuple[BlockError, ...]":
    """The error that each block alone makes in 8 bits, the largest first: what to ``keep``. The bundle is only read.

    Args:
        bundle: As in ``quantize``.
        **options: As in ``quantize``.

    Raises:
        ZeusError: As ``quantize``, but for the comparison with the float graph.
    """
    from zeus_trt.calibration.quantize import measure_blocks

    return measure_blocks(*_open(bundle, **options))


def _open(
    bundle: str | os.PathLike,
    plan: "str | os.PathLike | Plan | None" = None,
    model: str | os.PathLike | None = None,
    prompts: str | os.PathLike | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """The workload and the options of a quantization."""
    from zeus_trt.calibration.quantize import QuantizeOptions
    from zeus_trt.open_model import ModelOptions, open_model
    from zeus_trt.options import split_options
    from zeus_trt.zeus_graph.plan_choice import load_plan

    options |= {"prompts": Path(prompts)} if prompts else {}
    own, asked = split_options({"seed": SEED, **options}, QuantizeOptions, ModelOptions)
    steps = own.get("steps", 50)
    settings = QuantizeOptions(
        **own, plan=None if plan is None else load_plan(plan, steps if _is_preset(plan) else None)
    )
    if model is None:
        return open_model(os.fspath(bundle), **asked), settings
    return open_model(os.fspath(model), engine=Path(bundle), **asked), settings


def _is_preset(plan: Any) -> bool:
    from zeus_trt.zeus_graph import PRESETS

    return isinstance(plan, str) and plan in PRESETS
