"""Pipelines, opened as the command line asks for them."""

import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.export.loading import load_pipeline
from zeus_trt.runtime import Bundle

_TYPES = {None: None, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_OPTIONS = {"prompts": "prompt", "bundle": "engine", "num_frames": "frames", "height": "size", "width": "size"}
_CONTENTS = {"prompt": "--prompt", "class_labels": "--label"}


def name_option(argument: str) -> str:
    """The command line's name of an argument."""
    return "--" + _OPTIONS.get(argument, argument).replace("_", "-")


def open_pipeline(
    model: str,
    *,
    prompts: Sequence[str] = (),
    labels: Sequence[int] | None = None,
    guidance_scale: float | None = None,
    seed: int = 0,
    negative_prompt: str | None = None,
    size: tuple[int, int] | None = None,
    frames: int | None = None,
    image: Path | None = None,
    strength: float | None = None,
    bundle: Path | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> PipelineWorkload:
    """Loads a pipeline with what it is asked for.

    Args:
        model: A pipeline folder, or a pipeline's id on the hub.
        prompts: One per image, in turn.
        labels: The same of a pipeline of class labels.
        guidance_scale: The pipeline's own by default.
        seed: Image k draws its noise from seed + k.
        negative_prompt: Of every image.
        size: Height and width in pixels.
        frames: Of a video.
        image: A picture to begin with, or to follow: a pipeline whose call takes none becomes that of image to image.
        strength: How much of the picture is made anew, 0..1.
        bundle: Export of the pipeline, whose engine runs.
        device: By default a GPU if there is one.
        dtype: ``fp32`` (default), ``fp16`` or ``bf16``.

    Raises:
        ZeusError: A pipeline that does not load, no prompt, or something that this pipeline does not take.
    """
    if dtype not in _TYPES:
        raise ZeusError(f"--dtype: got {dtype}; expected fp32, fp16 or bf16. Choose one of these.")
    if bool(prompts) == bool(labels):
        found = "prompts and labels" if prompts else "none for a pipeline"
        raise ZeusError(f"prompt: got {found}; expected prompts or labels, one or more. Give one of the two.")
    if strength is not None and not image:
        raise ZeusError(f"strength: got {strength:g} without a picture; expected one. Give --image, or leave it out.")
    arguments: dict[str, Any] = {"guidance_scale": guidance_scale, "negative_prompt": negative_prompt}
    arguments |= {"num_frames": frames, "strength": strength}
    found = _find_class(model)
    if found:  # what its call takes is known before anything is loaded
        own = inspect.signature(found.__call__).parameters
        early = {name: value for name, value in arguments.items() if value is not None and name != "strength"}
        _check_content(found.__name__, own, labels)
        _check_arguments(found.__name__, own, {**early, "height": size} if size and not image else early)
        _check_negative(found.__name__, own, arguments)
    device, picture = _choose_device(device), _read_image(image) if image else None
    opened = Bundle.open(bundle) if bundle else None
    pipeline = load_pipeline(model, _TYPES[dtype])
    if picture:
        pipeline = _take_image(pipeline)
    takes = inspect.signature(pipeline.__call__).parameters
    _check_content(type(pipeline).__name__, takes, labels)
    _check_labels(pipeline, labels)
    _check_negative(type(pipeline).__name__, takes, arguments, pipeline)
    if picture:
        size = size or (_round_size(pipeline, picture) if "height" in takes else None)
        arguments["image"] = picture.resize(size[::-1]) if size else picture
    if size and (not picture or "height" in takes):  # else the picture says it
        arguments |= {"height": size[0], "width": size[1]}
    given = {name: value for name, value in arguments.items() if value is not None}
    _check_arguments(type(pipeline).__name__, takes, given)
    pipeline.to(device)
    pipeline.set_progress_bar_config(disable=True)
    return PipelineWorkload(pipeline, prompts or labels or (), given, seed, opened)


def _choose_device(name: str | None) -> str:
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros((), device=name).item()
    except (RuntimeError, AssertionError) as error:
        known = "cpu or cuda" if torch.cuda.is_available() else "cpu"
        raise ZeusError(f"--device: got {name}, which does not compute here; expected {known}. Choose it.") from error
    return name


def refuse_mode(mode: str) -> ZeusError:
    """What a mode of sessions is answered with for a pipeline."""
    return ZeusError(f"mode: got {mode} for a pipeline, which has its own loop; expected a bundle. Leave it out.")


def _find_class(model: str) -> Any:
    """The class that a pipeline folder names, if diffusers has it; nothing is loaded."""
    import diffusers

    try:
        name = json.loads((Path(model) / "model_index.json").read_text(encoding="utf-8"))["_class_name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    found = getattr(diffusers, name, None) if isinstance(name, str) else None
    return found if inspect.isclass(found) else None


def _check_negative(
    name: str, takes: Mapping[str, inspect.Parameter], given: Mapping[str, Any], pipeline: Any = None
) -> None:
    """Refuses a negative prompt that nothing would read: guidance is off, or the denoiser reads its scale."""
    if given["negative_prompt"] is None:
        return
    asked = "true_cfg_scale" if "true_cfg_scale" in takes else "guidance_scale"
    scale = given.get(asked)
    if scale is None and asked in takes:
        scale = takes[asked].default
    told = getattr(getattr(getattr(pipeline, "unet", None), "config", None), "time_cond_proj_dim", None)
    if told or (isinstance(scale, int | float) and scale <= 1):
        found = f"{asked} is {scale:g}" if not told else "its denoiser reads the scale as an input"
        raise ZeusError(
            f"{name_option('negative_prompt')}: got it for a {name} without guidance ({found}); expected guidance "
            "above 1, without which nothing reads it. Leave it out, or raise the scale."
        )


def _check_content(name: str, takes: Collection[str], labels: Sequence[int] | None) -> None:
    content = "class_labels" if labels else "prompt"
    if content not in takes:
        wanted = [option for argument, option in _CONTENTS.items() if argument in takes]
        raise ZeusError(
            f"{_CONTENTS[content]}: got it for a {name}; expected {' or '.join(wanted) or 'a pipeline that takes it'}. "
            "Give that instead."
        )


def _check_labels(pipeline: Any, labels: Sequence[int] | None) -> None:
    name = type(pipeline).__name__
    count = getattr(getattr(getattr(pipeline, "transformer", None), "config", None), "num_embeds_ada_norm", None)
    wrong = [label for label in labels or () if not 0 <= label < (count or label + 1)]
    if wrong:
        raise ZeusError(
            f"--label: got {wrong[0]}; expected 0..{(count or 1) - 1}, the classes of this {name}. Choose one."
        )


def _check_arguments(name: str, takes: Collection[str], given: Collection[str]) -> None:
    unknown = [argument for argument in given if argument not in takes]
    if unknown:
        known = ("guidance_scale", "negative_prompt", "height", "num_frames", "image", "strength")
        options = [name_option(argument) for argument in known if argument in takes]
        raise ZeusError(
            f"{name_option(unknown[0])}: got it for a {name}; expected some of "
            f"{', '.join(options) or 'no option'}. Leave it out."
        )


def _take_image(pipeline: Any) -> Any:
    """The form of a pipeline that takes a picture: its own, or that of image to image."""
    import diffusers

    name = type(pipeline).__name__
    if "image" not in inspect.signature(pipeline.__call__).parameters:
        try:
            pipeline = diffusers.AutoPipelineForImage2Image.from_pipe(pipeline)
        except ValueError as error:
            raise ZeusError(
                f"--image: got one for a {name}, which has no form that takes a picture; expected a pipeline that has. "
                "Leave it out."
            ) from error
    takes = inspect.signature(pipeline.__call__).parameters
    needed = [argument for argument in ("mask_image", "control_image") if argument in takes]
    if needed:
        raise ZeusError(
            f"--image: got one for a {name}, which needs a {needed[0]} as well; expected a pipeline of one picture. "
            "Call it from Python, or choose another."
        )
    return pipeline


def _read_image(file: Path) -> Any:
    from PIL import Image

    try:
        with Image.open(file) as opened:
            return opened.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ZeusError(
            f"--image: got {file}, which does not read ({error}); expected a picture. Choose one."
        ) from error


def _round_size(pipeline: Any, picture: Any) -> tuple[int, int]:
    """Height and width of a picture, rounded down to what patches of two latents make."""
    names = ("vae_scale_factor", "vae_scale_factor_spatial", "vae_spatial_compression_ratio")
    step = 2 * max((getattr(pipeline, name, 1) for name in names if getattr(pipeline, name, None)), default=8)
    width, height = (max(side // step, 1) * step for side in picture.size)
    return height, width
