"""Pipelines, opened with the options of their samples."""

import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.guidance_range import Scale
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.export.labels import choose_labels, count_labels
from zeus_trt.export.loading import load_pipeline
from zeus_trt.export.recorder import silence
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.pipelines.arguments import is_modular, list_parameters
from zeus_trt.runtime.pipelines.denoisers import find_denoisers

_TYPES = {None: None, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_ARGUMENTS = {"height": "size", "num_frames": "frames"}
_CONTENTS = {"prompt": "prompts", "class_labels": "labels"}


@dataclass(frozen=True)
class ModelOptions:
    """The samples of a model, and how it runs. Only labels, guidance, seed, backend, mode and inputs have a use
    for bundles.

    Args:
        prompts: One per image, in turn; or a file with one per line.
        labels: The same of a model of class labels; all classes of a bundle or a bare model by default.
        guidance_scale: As in ``choose_guidance``: the pipeline's own by default, else 2 of class labels, else 1.
            A range, as a tuple, is for calibration: each sample takes its own from it.
        seed: Image k draws its noise from seed + k.
        negative_prompt: Of every image.
        size: Height and width in pixels.
        frames: Of a video.
        image: A picture to begin with, or to follow: a pipeline whose call takes none becomes that of image to image.
        strength: How much of the picture is made anew, 0..1.
        engine: A bundle of the pipeline, whose engine runs.
        device: By default a GPU if there is one.
        dtype: ``fp32`` (default), ``fp16`` or ``bf16``.
        backend: The engine that is asked for; None for the default.
        mode: As in ``Session.generate``, for bundles; a pipeline has its own loop.
        inputs: Conditioning of a bundle, as ``read_inputs`` takes it; sample k takes row k, in turn.
        adapters: What the bundle's engine adds to its weights: texts as ``Bundle.with_adapter`` takes them.
    """

    prompts: Sequence[str] | Path = ()
    labels: Sequence[int] | None = None
    guidance_scale: Scale | None = None
    seed: int = 0
    negative_prompt: str | None = None
    size: tuple[int, int] | None = None
    frames: int | None = None
    image: Path | None = None
    strength: float | None = None
    engine: Path | None = None
    device: str | None = None
    dtype: str | None = None
    backend: str | None = None
    mode: str | None = None
    inputs: Mapping[str, Any] | Sequence[str] = ()
    adapters: Sequence[str] = ()

    def open_bundle(self, path: str | Path) -> Bundle:
        """A bundle with these adapters; errors as ``Bundle.with_adapter``."""
        return Bundle.open(path).with_adapter(",".join(self.adapters) if self.adapters else None)

    @property
    def for_pipelines(self) -> dict[str, Any]:
        """The options that are given and have no effect on a bundle."""
        others = ("labels", "guidance_scale", "seed", "backend", "mode", "inputs", "adapters")
        return {name: value for name, value in vars(self).items() if name not in others and value not in (None, (), [])}


def open_pipeline(model: str | Path, asked: ModelOptions) -> PipelineWorkload:
    """Loads a pipeline, or a bare model folder, and checks that it takes the options.

    Args:
        model: A pipeline folder, a bare model folder, or a pipeline's id on the hub.
        asked: The options.

    Raises:
        ZeusError: A pipeline that does not load, no prompt, or something that this pipeline does not take.
    """
    prompts = read_prompts(asked.prompts) if isinstance(asked.prompts, Path) else asked.prompts
    asked = replace(asked, prompts=prompts)
    _check_asked(model, asked)
    picture = _read_image(asked.image) if asked.image else None
    bundle = asked.open_bundle(asked.engine) if asked.engine else None
    pipeline = load_on_device(model, asked.device, asked.dtype)
    if picture:
        pipeline = _take_image(pipeline)
    arguments = _list_arguments(asked)
    takes = list_parameters(pipeline)
    _check_content(pipeline, takes, asked)
    _check_labels(pipeline, asked.labels)
    _check_negative(type(pipeline).__name__, takes, arguments, pipeline)
    size = asked.size
    if picture:
        size = size or (_round_size(pipeline, picture) if "height" in takes else None)
        arguments["image"] = picture.resize(size[::-1]) if size else picture
    if size and (not picture or "height" in takes):  # else the picture says it
        arguments |= {"height": size[0], "width": size[1]}
    _check_arguments(type(pipeline).__name__, takes, arguments)
    pipeline.set_progress_bar_config(disable=True)  # of the form that takes a picture, which is another object
    content = prompts or asked.labels or _list_labels(pipeline)
    return PipelineWorkload(pipeline, content, arguments, asked.seed, bundle)


def load_on_device(model: str | Path, device: str | None = None, dtype: str | None = None) -> Any:
    """Loads a pipeline to where it runs, without progress bars; arguments as in ``ModelOptions``.

    Raises:
        ZeusError: A device or a type that is not there, or as ``load_pipeline``.
    """
    _check_type(dtype)
    chosen = _choose_device(device)
    pipeline = load_pipeline(model, _TYPES[dtype])
    pipeline.to(chosen)
    pipeline.set_progress_bar_config(disable=True)
    if is_modular(pipeline):
        silence(pipeline._blocks)  # its own method does not reach blocks of blocks
    return pipeline


def read_prompts(file: Path) -> list[str]:
    """The prompts in a file, one per line.

    Raises:
        ZeusError: A file that does not read.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ZeusError(
            f"prompts: got {file}, which does not read ({error}); expected a text file. Check it."
        ) from error
    return [line.strip() for line in lines if line.strip()]


def _check_type(name: str | None) -> None:
    if name not in _TYPES:
        raise ZeusError(f"dtype: got {name}; expected fp32, fp16 or bf16. Choose one of these.")


def _check_asked(model: str | Path, asked: ModelOptions) -> None:
    """Refuses wrong options before anything is loaded: a pipeline's folder names its class."""
    _check_type(asked.dtype)
    if asked.prompts and asked.labels:
        raise ZeusError("prompts: got prompts and labels; expected one of the two. Leave the other out.")
    if asked.strength is not None and not asked.image:
        raise ZeusError(
            f"strength: got {asked.strength:g} without a picture; expected an image too. Give one, or leave it out."
        )
    if found := _find_class(model):
        takes = inspect.signature(found.__call__).parameters
        arguments = _list_arguments(asked)
        early = {name: value for name, value in arguments.items() if name != "strength"}
        _check_content(found, takes, asked)
        _check_arguments(found.__name__, takes, {**early, "height": 0} if asked.size and not asked.image else early)
        _check_negative(found.__name__, takes, arguments)


def _list_arguments(asked: ModelOptions) -> dict[str, Any]:
    """Arguments of the pipeline's call, but for prompts, labels, picture and sizes."""
    arguments = {"guidance_scale": asked.guidance_scale, "negative_prompt": asked.negative_prompt}
    arguments |= {"num_frames": asked.frames, "strength": asked.strength}
    return {name: value for name, value in arguments.items() if value is not None}


def _choose_device(name: str | None) -> str:
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros((), device=name).item()
    except (RuntimeError, AssertionError) as error:
        known = "cpu or cuda" if torch.cuda.is_available() else "cpu"
        raise ZeusError(f"device: got {name}, which does not compute here; expected {known}. Choose it.") from error
    return name


def _find_class(model: str | Path) -> Any:
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
    if given.get("negative_prompt") is None:
        return
    asked = "true_cfg_scale" if "true_cfg_scale" in takes else "guidance_scale"
    scale = given.get(asked)
    if scale is None and asked in takes:
        scale = takes[asked].default
    reads_scale = getattr(getattr(getattr(pipeline, "unet", None), "config", None), "time_cond_proj_dim", None)
    if reads_scale or (isinstance(scale, int | float) and scale <= 1):
        found = f"{asked} is {scale:g}" if not reads_scale else "its denoiser reads the scale as an input"
        raise ZeusError(
            f"negative_prompt: got it for a {name} without guidance ({found}); expected guidance "
            "above 1, without which nothing reads it. Leave it out, or raise the scale."
        )


def _check_content(pipeline: Any, takes: Collection[str], asked: ModelOptions) -> None:
    """Refuses prompts or labels of a pipeline, or its class, that takes the other; a bare model needs neither."""
    name = pipeline.__name__ if inspect.isclass(pipeline) else type(pipeline).__name__
    known = [names for argument, names in _CONTENTS.items() if argument in takes]
    given = "labels" if asked.labels else "prompts" if asked.prompts else None
    if given and given not in known:
        raise ZeusError(
            f"{given}: got it for a {name}; expected {' or '.join(known) or 'a pipeline that takes it'}. Give that "
            "instead."
        )
    if not given and "batch_size" not in takes:
        raise ZeusError(f"prompts: got nothing for a {name}; expected {' or '.join(known)}, one or more. Give some.")


def _list_labels(pipeline: Any) -> Sequence[int]:
    """All classes of a bare model, if it has any."""
    labels = next(filter(None, map(choose_labels, find_denoisers(pipeline).values())), None)
    return range(labels.count) if labels else ()


def _check_labels(pipeline: Any, labels: Sequence[int] | None) -> None:
    count = next((count for part in pipeline.components.values() if (count := count_labels(part))), None)
    wrong = [label for label in labels or () if not 0 <= label < (count or label + 1)]
    if wrong:
        raise ZeusError(
            f"labels: got {wrong[0]}; expected 0..{(count or 1) - 1}, the classes of this {type(pipeline).__name__}. "
            "Choose one."
        )


def _check_arguments(name: str, takes: Collection[str], given: Collection[str]) -> None:
    unknown = [argument for argument in given if argument not in takes]
    if unknown:
        known = ("guidance_scale", "negative_prompt", "height", "num_frames", "image", "strength")
        names = [_ARGUMENTS.get(argument, argument) for argument in known if argument in takes]
        raise ZeusError(
            f"{_ARGUMENTS.get(unknown[0], unknown[0])}: got it for a {name}; expected some of "
            f"{', '.join(names) or 'no argument'}. Leave it out."
        )


def _take_image(pipeline: Any) -> Any:
    """The form of a pipeline that takes a picture: its own, or that of image to image."""
    import diffusers

    name = type(pipeline).__name__
    if "image" not in list_parameters(pipeline):
        try:
            pipeline = diffusers.AutoPipelineForImage2Image.from_pipe(pipeline)
        except ValueError as error:
            raise ZeusError(
                f"image: got one for a {name}, which has no form that takes a picture; expected a pipeline that has. "
                "Leave it out."
            ) from error
    takes = list_parameters(pipeline)
    needed = [argument for argument in ("mask_image", "control_image") if argument in takes]
    if needed:
        raise ZeusError(
            f"image: got one for a {name}, which needs a {needed[0]} as well; expected a pipeline of one picture. "
            "Call it from Python, or choose another."
        )
    return pipeline


def _read_image(file: Path) -> Any:
    from PIL import Image

    try:
        with Image.open(file) as opened:
            return opened.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ZeusError(f"image: got {file}, which does not read ({error}); expected a picture. Choose one.") from error


def _round_size(pipeline: Any, picture: Any) -> tuple[int, int]:
    """Height and width of a picture, rounded down to what patches of two latents make."""
    names = ("vae_scale_factor", "vae_scale_factor_spatial", "vae_spatial_compression_ratio")
    step = 2 * max((getattr(pipeline, name, 1) for name in names if getattr(pipeline, name, None)), default=8)
    width, height = (max(side // step, 1) * step for side in picture.size)
    return height, width
