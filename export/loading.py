"""Pipelines by their name."""

import re
from pathlib import Path
from typing import Any

import torch

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.runtime.bundle.manifest import FILE_NAME as MANIFEST
from zeus_trt.runtime.bundle.manifest import SCHEDULER_FILE
from zeus_trt.zeus_graph.counts import show

BUNDLE, PIPELINE, BARE, NONE = "bundle", "pipeline", "bare model", "none"
_COMPONENTS = ("unet", "transformer")  # names that the denoiser of a bare model folder may have
_INDEXES = ("model_index.json", "modular_model_index.json")
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # neither part is "." or ".."

_RENAMED = ".base_layer."
_ADAPTER = re.compile(r"\.lora_(?:A|embedding_A)\.(\w+?)(?:\.weight)?$")
_SAVE_ADAPTERS = (
    "Load the pipeline without adapters, load its adapters with load_lora_weights(), then export that pipeline; or "
    "call fuse_lora() and unload_lora_weights() on it, and save it with save_pretrained()."
)


def find_kind(name: str | Path) -> str:
    """Which kind of model a name is: ``BUNDLE``, ``PIPELINE`` (a folder, or perhaps on the hub), ``BARE`` or ``NONE``.

    Raises:
        ZeusError: As ``is_pipeline``.
    """
    if is_pipeline(name):
        return PIPELINE
    path = Path(name)
    if (path / MANIFEST).is_file():
        return BUNDLE
    return BARE if _find_component(path) or (path / SCHEDULER_FILE).is_file() else NONE


def is_pipeline(name: str | Path) -> bool:
    """Whether it names a pipeline folder, or may name a pipeline on the hub.

    Raises:
        ZeusError: A name that no folder can have, or an id of the hub that is a mistyped path as well: its first part
            is a folder here.
    """
    path = Path(name)
    try:
        is_folder, exists = any((path / index).is_file() for index in _INDEXES), path.exists()
        is_below = path.parent.is_dir()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ZeusError(
            f"model: got {show(str(name))} ({reason}); expected a folder or an id of the hub. Change it."
        ) from error
    if is_folder or exists or not _HUB_ID.fullmatch(str(name)):
        return is_folder
    if is_below:
        raise ZeusError(
            f"model: got {name}; expected a folder that exists in {path.parent}, or an id of the hub, whose first part "
            "is no folder here. Check the spelling, or work in another folder."
        )
    return True


def load_pipeline(name: str | Path, dtype: torch.dtype | None = None) -> Any:
    """Loads a pipeline folder, a bare model folder as a ``BarePipeline``, or a pipeline of the hub by its id.

    Args:
        name: The folder or the id.
        dtype: Of its modules; float32 by default.

    Raises:
        ZeusError: No such folder and no such id, or a model that does not load.
    """
    is_whole = is_pipeline(name)
    for index in (Path(name) / index for index in _INDEXES):
        if index.is_file():
            strict_json.read(index, dict[str, Any], f"model index {index}", advice="Save the pipeline again.")
    check_saved_adapters(Path(name))
    pipeline = (_load_saved if is_whole else _load_bare)(Path(name), **say_dtype(dtype or torch.float32))
    _check_complete(str(name), pipeline)
    return pipeline


def _find_component(folder: Path) -> str | None:
    return next((name for name in _COMPONENTS if (folder / name / "config.json").is_file()), None)


def _load_bare(folder: Path, **settings: Any) -> Any:
    from zeus_trt.export.bare_pipeline import load_bare_pipeline

    component = _find_component(folder)
    if component is None or not (folder / SCHEDULER_FILE).is_file():
        raise ZeusError(
            f"model: got {folder}; expected a pipeline, or a folder with {' or '.join(_COMPONENTS)}, and scheduler, in "
            "diffusers' format. Save the pipeline with save_pretrained()."
        )
    return load_bare_pipeline(folder, component, **settings)


def _load_saved(name: Path, **settings: Any) -> Any:
    import diffusers

    try:
        if not (name / _INDEXES[0]).is_file() and (name / _INDEXES[1]).is_file():
            pipeline = diffusers.ModularPipeline.from_pretrained(str(name))
            pipeline.load_components(**settings)
            absent = [part for part, value in pipeline.components.items() if value is None]
            if left := [part for part in absent if pipeline.get_component_spec(part).pretrained_model_name_or_path]:
                raise ValueError(f"its {left[0]} does not load")  # diffusers logs it, and goes on
            return pipeline
        return diffusers.DiffusionPipeline.from_pretrained(str(name), **settings)
    except Exception as error:  # the hub, transformers, safetensors and diffusers each raise their own
        raise ZeusError(
            f"model: got {name}, which does not load ({say_cause(error)}); expected a pipeline "
            "folder saved by save_pretrained(), or the id of one on a hub that can be reached. Without a network give "
            "a local folder."
        ) from error


def check_saved_adapters(folder: Path) -> None:
    """Refuses weights that were saved with adapters in them, which diffusers does not read.

    diffusers renames the weights that an adapter changes when it saves them, does not save the adapter's scale, and
    leaves those weights without values when it loads them.

    Args:
        folder: A pipeline's folder, or one of its components'; anything else is left to the loader.

    Raises:
        ZeusError: A component has such weights.
    """
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")])
    for file in files:
        keys = _list_weights(file)
        if any(_RENAMED in key for key in keys):  # a file of adapters alone renames nothing, and is not loaded
            names = sorted({name for key in keys for name in _ADAPTER.findall(key)})
            said = f"adapter{'s' if len(names) > 1 else ''} {' and '.join(names) or 'of another kind than LoRA'}"
            raise ZeusError(
                f"model: got {file.parent}, whose weights were saved with the {said} in them, "
                f"without {'their scales' if len(names) > 1 else 'its scale'}; expected weights alone. {_SAVE_ADAPTERS}"
            )


def _list_weights(file: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError):  # the loader reports the fault
        return []


def _check_complete(name: str, pipeline: Any) -> None:
    parts = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
    for component, part in parts.items():
        if missing := [weight for weight, value in part.named_parameters() if value.is_meta]:
            raise ZeusError(
                f"model: got {name}, whose {component} was saved without {missing[0]} and {len(missing) - 1} others; "
                f"expected every weight. {_SAVE_ADAPTERS}"
            )


def say_dtype(dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The argument of ``from_pretrained`` that this diffusers calls it by."""
    import diffusers

    is_new = tuple(int(part) for part in diffusers.__version__.split(".")[:2]) >= (0, 42)
    return {"dtype" if is_new else "torch_dtype": dtype}
