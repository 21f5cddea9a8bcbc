"""The diffusers scheduler of a bundle: its update rule is the solver of step mode."""

import json
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError


def load_scheduler(config_file: Path) -> Any:
    """Makes the diffusers scheduler that ``config_file`` describes.

    Raises:
        ZeusError: diffusers is missing, or has no scheduler of that class.
    """
    config = json.loads(config_file.read_text(encoding="utf-8"))
    try:
        import diffusers
    except ImportError as error:
        raise ZeusError(
            "scheduler: got no diffusers on this machine; expected it for running step by step. "
            "Install it: pip install diffusers."
        ) from error
    name = config.get("_class_name", "")
    scheduler_class: Any = getattr(diffusers, name, None)
    if not hasattr(scheduler_class, "from_config"):
        raise ZeusError(
            f"scheduler: got class {name!r} in {config_file.name}; expected a scheduler of diffusers "
            f"{diffusers.__version__}. Update diffusers."
        )
    return scheduler_class.from_config(config)
