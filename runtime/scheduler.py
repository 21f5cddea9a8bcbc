"""The diffusers scheduler of a bundle: its update rule is the solver of step mode."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError

SOLVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "euler": ("EulerDiscreteScheduler", {}),
    "ddim": ("DDIMScheduler", {"clip_sample": False}),
    "heun": ("HeunDiscreteScheduler", {}),
    "unipc": ("UniPCMultistepScheduler", {}),
    "dpmpp-2m": ("DPMSolverMultistepScheduler", {"solver_order": 2}),
    "dpmpp-3m": ("DPMSolverMultistepScheduler", {"solver_order": 3}),
}
"""Names of solvers, whatever the checkpoint's own: class of diffusers and changes of its config."""

_FLOW = {
    "euler": "FlowMatchEulerDiscreteScheduler",
    "heun": "FlowMatchHeunDiscreteScheduler",
}  # those of flow matching are classes of their own; the multistep ones take flow sigmas


def load_scheduler(config_file: Path) -> Any:
    """Makes the diffusers scheduler that ``config_file`` describes.

    Raises:
        ZeusError: diffusers is missing, or has no scheduler of that class; or no config of one.
    """
    config = read_config(config_file)
    scheduler_class = _find_class(str(config.get("_class_name", "")), config_file.name)
    try:
        return scheduler_class.from_config(config)
    except (ValueError, TypeError, RuntimeError) as error:  # each scheduler raises its own
        raise _refuse(config_file, str(error)) from error


def read_config(config_file: Path) -> dict[str, Any]:
    """The config of a diffusers scheduler, with its ``_class_name``.

    Raises:
        ZeusError: A file that is no JSON object.
    """
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _refuse(config_file, str(error)) from error
    if not isinstance(config, dict):
        raise _refuse(config_file, "no JSON object")
    return config


def _refuse(config_file: Path, reason: str) -> ZeusError:
    return ZeusError(
        f"scheduler: got {config_file}, which does not load ({reason}); expected the config of a diffusers scheduler. "
        "Save it again."
    )


def make_scheduler(config: Mapping[str, Any], solver: str) -> Any:
    """Makes another solver for the checkpoint whose scheduler has ``config``: same noise schedule.

    Args:
        config: The checkpoint's scheduler config, with its ``_class_name``.
        solver: One of ``SOLVERS``.

    Raises:
        ZeusError: An unknown solver, one that has no form for flow matching, or a missing diffusers.
    """
    if solver not in SOLVERS:
        raise ZeusError(f"solver: got {solver!r}; expected default, {', '.join(SOLVERS)}. Choose one of these.")
    name, changes = SOLVERS[solver]
    if config["_class_name"].startswith("FlowMatch"):
        if solver == "ddim":
            raise ZeusError("solver: got ddim for a flow-matching model; expected another, such as euler. Choose it.")
        shift = config.get("shift", 1.0)
        flow = {**changes, "prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": shift}
        name, config = (_FLOW[solver], {"shift": shift}) if solver in _FLOW else (name, flow)
        changes = {}
    return _find_class(name, solver).from_config({**config, **changes})


def _find_class(name: str, asked: str) -> Any:
    try:
        import diffusers
    except ImportError as error:
        raise ZeusError(
            "scheduler: got no diffusers on this machine; expected it for running step by step. "
            "Install it: pip install diffusers."
        ) from error
    scheduler_class: Any = getattr(diffusers, name, None)
    if not hasattr(scheduler_class, "from_config"):
        raise ZeusError(
            f"scheduler: got class {name!r} in {asked}; expected a scheduler of diffusers "
            f"{diffusers.__version__}. Update diffusers."
        )
    return scheduler_class
