"""Models that are neither folders nor pipelines: a denoiser with its scheduler, a file of weights with its config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.loading import is_pipeline, say_dtype
from zeus_trt.runtime.bundle.manifest import SCHEDULER_FILE

WEIGHTS = (".safetensors", ".gguf")
_COMPONENTS = ("unet", "transformer")


def open_source(model: Any, config: str | Path | None = None, scheduler: Any = None) -> Any:
    """A pipeline of a denoiser or of a file of weights; any other model as it is.

    Args:
        model: As in ``zeus_trt.export``.
        config: The folder that the weights belong to.
        scheduler: That of a denoiser, as in ``choose_scheduler``.

    Raises:
        ZeusError: A file without its folder, weights that do not load, a denoiser without its scheduler, or one of
            these for a model that has it.
    """
    is_name = isinstance(model, str | Path)
    if is_name and Path(model).suffix.lower() in WEIGHTS:
        if scheduler is not None:
            raise ZeusError("scheduler: got one beside a file of weights; expected that of its config. Leave it out.")
        return load_single_file(Path(model), config)
    if config is not None:
        raise ZeusError(
            f"config: got {config} for a model that has its own; expected a file of weights, {' or '.join(WEIGHTS)}. "
            "Leave it out."
        )
    if not is_name and isinstance(model, torch.nn.Module) and hasattr(model, "config"):
        return _wrap(model, scheduler)
    if scheduler is not None:
        raise ZeusError("scheduler: got one for a model that has its own; expected a denoiser. Leave it out.")
    return model


def load_single_file(file: Path, config: str | Path | None) -> Any:
    """A pipeline whose denoiser has the weights of a file, which are in their author's format or in diffusers'.

    Args:
        file: A ``.safetensors`` file, or a ``.gguf`` file, whose weights are dequantized to float32.
        config: A pipeline's folder, or a folder of ``unet`` or ``transformer``, with its ``config.json``, and
            ``scheduler``. Nothing is read from a network, and no weights of that denoiser.

    Raises:
        ZeusError: No such file or folder, a class that diffusers reads no single file of, or weights that do not load.
    """
    if config is None:
        raise ZeusError(
            f"config: got nothing for {file.name}; expected the folder of its pipeline, or of its denoiser's "
            "config and its scheduler. Give it: a file of weights does not say what it is."
        )
    folder = Path(config)
    if not file.is_file():
        raise ZeusError(f"model: got {file}; expected a file of weights that exists. Check the path.")
    name, denoiser = load_denoiser(file, folder)
    pipeline = _join(folder, name, denoiser)
    pipeline.register_to_config(_name_or_path=str(file.with_suffix("")))
    return pipeline


def load_denoiser(file: Path, folder: Path) -> tuple[str, torch.nn.Module]:
    """The component of a folder that is the denoiser, with the weights of a file, float32; as ``load_single_file``."""
    name, model_class = _find_class(folder)
    settings: dict[str, Any] = say_dtype(torch.float32)
    if file.suffix.lower() == ".gguf":
        settings["quantization_config"] = _configure_gguf()
    try:
        denoiser = model_class.from_single_file(
            str(file), config=str(folder), subfolder=name, local_files_only=True, **settings
        )
        if "quantization_config" in settings:
            denoiser.dequantize()
            denoiser.float()
        denoiser.eval()
    except Exception as error:  # diffusers, safetensors and gguf each raise their own
        raise ZeusError(
            f"model: got {file}, which does not load as a {model_class.__name__} ({say_cause(error)}); expected the "
            f"weights of {folder / name}. Check that they belong together."
        ) from error
    if left := [key for key, value in denoiser.named_parameters() if value.is_meta]:
        raise ZeusError(
            f"model: got {file} without {left[0]} and {len(left) - 1} others; expected every weight of "
            f"{folder / name}. Check that they belong together."
        )
    return name, denoiser


def _wrap(denoiser: torch.nn.Module, scheduler: Any) -> Any:
    from zeus_trt.export.bare_pipeline import make_bare_pipeline
    from zeus_trt.export.importing import choose_scheduler

    if scheduler is None:
        raise ZeusError(
            f"scheduler: got nothing for a {type(denoiser).__name__}; expected its diffusers scheduler. Give it, or "
            "give the whole pipeline."
        )
    return make_bare_pipeline(denoiser, choose_scheduler(scheduler, None, lambda text: None))


def _find_class(folder: Path) -> tuple[str, Any]:
    """The denoiser's component and class, as its config names it."""
    import diffusers

    found = next((name for name in _COMPONENTS if (folder / name / "config.json").is_file()), None)
    if found is None:
        raise ZeusError(
            f"config: got {folder}; expected a folder with {' or '.join(_COMPONENTS)}, and a config.json in it. Give "
            "the folder of the pipeline."
        )
    file = folder / found / "config.json"
    config: Mapping[str, Any] = strict_json.read(file, dict[str, Any], f"model config {file}", advice="Save it again.")
    name = config.get("_class_name")
    model_class = getattr(diffusers, name, None) if isinstance(name, str) and name.isidentifier() else None
    if not hasattr(model_class, "from_single_file"):
        raise ZeusError(
            f"config: got the class {name!r}; expected one that diffusers {diffusers.__version__} reads a single file "
            "of. Save the model with save_pretrained(), and export its folder."
        )
    return found, model_class


def _join(folder: Path, name: str, denoiser: torch.nn.Module) -> Any:
    """The pipeline of a folder, with this denoiser instead of the one in the folder."""
    import diffusers

    from zeus_trt.export.bare_pipeline import make_bare_pipeline
    from zeus_trt.runtime.scheduler import load_scheduler

    if not is_pipeline(folder):
        return make_bare_pipeline(denoiser, load_scheduler(folder / SCHEDULER_FILE), name)
    try:
        return diffusers.DiffusionPipeline.from_pretrained(
            str(folder), local_files_only=True, **{name: denoiser}, **say_dtype(torch.float32)
        )
    except Exception as error:  # as in load_pipeline
        raise ZeusError(
            f"config: got {folder}, whose other parts do not load ({say_cause(error)}); expected a pipeline saved by "
            "save_pretrained(), with or without its denoiser's weights. Save it again."
        ) from error


def _configure_gguf() -> Any:
    import importlib.util

    import diffusers

    if missing := [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]:
        raise ZeusError(
            f"gguf: got no package {' and '.join(missing)}; expected it, by which diffusers reads such files. Install "
            f"it: pip install {' '.join(missing)}."
        )
    return diffusers.GGUFQuantizationConfig(compute_dtype=torch.float32)
