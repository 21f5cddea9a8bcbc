"""The diffusers scheduler of a bundle: its update rule is the solver of step mode."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.open_list import find_outside

_THING = "scheduler"
_ADVICE = "Save the scheduler again."
_INFINITE = ("lambda_min_clipped",)  # diffusers writes -Infinity there
_MOST = 1_000_000  # training timesteps: a scheduler makes tables of as many numbers

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
}  # flow matching has its own classes of these; the multistep ones take flow sigmas

_EDM = {
    "euler": "EDMEulerScheduler",
    "dpmpp-2m": "EDMDPMSolverMultistepScheduler",
    "dpmpp-3m": "EDMDPMSolverMultistepScheduler",
}  # the schedulers of Karras et al. have sigma_data and their own timesteps


class GivenSolver(str):
    """The name of a solver that was given as an object, with the function from a config to its scheduler."""

    make: Callable[[Mapping[str, Any]], Any]


def name_solver(solver: Any) -> str:
    """A solver as a name that ``make_scheduler`` takes.

    Args:
        solver: A name, a diffusers scheduler, or a function from the checkpoint's scheduler config to one.

    Raises:
        ZeusError: Something else.
    """
    if isinstance(solver, str):
        return solver
    is_class = isinstance(solver, type)
    is_scheduler = not is_class and all(hasattr(solver, name) for name in ("set_timesteps", "step"))
    if not is_scheduler and (not callable(solver) or (is_class and hasattr(solver, "from_config"))):
        found = f"the class {solver.__name__}" if is_class else type(solver).__name__
        raise ZeusError(
            f"solver: got {found}; expected a name, a scheduler of diffusers, or a function from the checkpoint's "
            "scheduler config to one. Change it."
        )
    text = type(solver).__name__ if is_scheduler else getattr(solver, "__name__", type(solver).__name__)
    named = GivenSolver(re.sub(r"\W+", "-", text).strip("-"))
    named.make = (lambda config: solver) if is_scheduler else solver
    return named


def name_solvers(solvers: Any) -> tuple[str, ...]:
    """As ``name_solver``, for one solver or several; what is given twice counts once.

    Raises:
        ZeusError: Two that share a name, too.
    """
    given = solvers if isinstance(solvers, list | tuple) else (solvers,)
    names = [name_solver(one) for one in {one if isinstance(one, str) else id(one): one for one in given}.values()]
    if shared := [name for name in names if names.count(name) > 1]:
        raise ZeusError(f"solver: got several of the name {shared[0]}; expected different names. Rename a function.")
    return tuple(names)


def load_scheduler(config_file: Path) -> Any:
    """Makes the diffusers scheduler that ``config_file`` describes.

    Raises:
        ZeusError: diffusers is missing, or has no scheduler of that class; or no config of one.
    """
    return build_scheduler(read_config(config_file))


def read_config(config_file: Path) -> dict[str, Any]:
    """The config of a diffusers scheduler, with its ``_class_name``.

    Raises:
        ZeusError: The file is missing, or as ``parse_config``.
    """
    return parse_config(strict_json.read_bytes(config_file, _THING, advice=_ADVICE))


def parse_config(content: bytes) -> dict[str, Any]:
    """The config of a diffusers scheduler from the bytes of its file.

    Raises:
        ZeusError: No strict JSON object, one without the name of a class, or with more training timesteps than any
            model has.
    """
    data = strict_json.decode(content, _THING, advice=_ADVICE, infinite=_INFINITE)
    config = strict_json.build(data, dict[str, Any], _THING, advice=_ADVICE)
    if not isinstance(config.get("_class_name"), str):
        raise _refuse("it has no _class_name")
    trained = config.get("num_train_timesteps", 1)
    if type(trained) is not int or not 1 <= trained <= _MOST:
        raise _refuse(f"num_train_timesteps is {trained!r}, not in 1..{_MOST}")
    return config


def build_scheduler(config: Mapping[str, Any]) -> Any:
    """Makes the diffusers scheduler of a config.

    Raises:
        ZeusError: diffusers is missing, or has no scheduler of that class; or it refuses the config.
    """
    scheduler_class = _find_class(config["_class_name"], "the config")
    try:
        return scheduler_class.from_config(config)
    except Exception as error:  # each scheduler raises its own
        raise _refuse(f"{type(error).__name__}: {error}") from error


def _refuse(reason: str) -> ZeusError:
    return ZeusError(
        f"{_THING}: got a config that does not load ({reason}); expected the config of a diffusers scheduler. {_ADVICE}"
    )


def make_scheduler(config: Mapping[str, Any], solver: Any) -> Any:
    """Makes another solver for the checkpoint whose scheduler has ``config``: same noise schedule.

    Args:
        config: The checkpoint's scheduler config, with its ``_class_name``.
        solver: One of ``SOLVERS``, the entry point of another package, a function from that config to a scheduler, or
            a scheduler.

    Raises:
        ZeusError: An unknown solver, one that has no form for flow matching or makes no scheduler, or a missing
            diffusers.
    """
    solver = name_solver(solver)
    make = getattr(solver, "make", None) or (None if solver in SOLVERS else find_outside("solver", solver))
    if make is not None:
        made = make(config)
        if not all(hasattr(made, name) for name in ("set_timesteps", "step")):
            raise ZeusError(f"solver: got {type(made).__name__}; expected a scheduler of diffusers. Change it.")
        return made
    if solver not in SOLVERS:
        raise ZeusError(f"solver: got {solver!r}; expected default, {', '.join(SOLVERS)}. Choose one of these.")
    name, changes = SOLVERS[solver]
    if config["_class_name"].startswith("EDM"):
        if solver not in _EDM:
            raise ZeusError(f"solver: got {solver} for an EDM model; expected default, {', '.join(_EDM)}. Choose one.")
        name = _EDM[solver]
    elif config["_class_name"].startswith("FlowMatch"):
        if solver == "ddim":
            raise ZeusError("solver: got ddim for a flow-matching model; expected another, such as euler. Choose it.")
        shift = config.get("shift", 1.0)
        flow = {**changes, "prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": shift}
        name, config = (_FLOW[solver], {"shift": shift}) if solver in _FLOW else (name, flow)
        changes = {}
    return build_scheduler({**config, **changes, "_class_name": name})


def _find_class(name: str, asked: str) -> Any:
    try:
        import diffusers
    except ImportError as error:
        raise ZeusError(
            "scheduler: got no diffusers on this machine; expected it for running step by step. "
            "Install it: pip install diffusers."
        ) from error
    try:
        scheduler_class: Any = getattr(diffusers, name, None) if name.endswith("Scheduler") else None
    except (ImportError, RuntimeError):  # one that needs a package that is missing
        scheduler_class = None
    if not isinstance(scheduler_class, type) or not issubclass(scheduler_class, diffusers.SchedulerMixin):
        raise ZeusError(
            f"scheduler: got class {name!r} in {asked}; expected a scheduler of diffusers "
            f"{diffusers.__version__}. Update diffusers."
        )
    return scheduler_class
