"""What to run a pipeline with for its capture, and what to vary."""

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.export.arguments import OTHER_PROMPT, PROMPT
from zeus_trt.export.labels import count_labels
from zeus_trt.export.pipeline_call import (
    DETAIL,
    PER_PROMPT,
    SEED,
    UNEVEN,
    MissingArgument,
    PipelineCall,
    find_call,
    runs,
    share_pictures,
)
from zeus_trt.export.recorder import check_pipeline
from zeus_trt.export.runs import Settings
from zeus_trt.runtime.pipelines.arguments import list_parameters

_OUTPUTS = ("latent", "pt", "np")  # not every pipeline returns latents
_TEXT_LENGTHS = ("max_sequence_length",)
_RESIZES = ("use_resolution_binning", "_auto_resize")  # each replaces the sizes that are asked for
_KEEPS = "use_kv_cache"  # passes the denoiser an object; not every pipeline runs without
_SCENE = "on a red sofa by the window of an old house near the sea in the light of the evening"
_DETAILS = _SCENE, f"{_SCENE} and another one {_SCENE}"  # longer than the blocks that prompts are padded to
_SECONDS = ("audio_length_in_s", "audio_end_in_s", "audio_duration")


def choose_settings(
    pipeline: Any, sizes: Sequence[tuple[int, int]] = (), arguments: Mapping[str, Any] | None = None
) -> tuple[Settings, tuple[dict[str, Any], ...]]:
    """How to run a pipeline for its capture: what to vary, and what to keep for verification.

    What its ``__call__`` requires is made: prompts, class labels, pictures, masks, videos, embeddings of pictures.

    Args:
        pipeline: A diffusers pipeline.
        sizes: Heights and widths in pixels: that of the base run, the model's own by default; further ones are
            captured and verified as well, and one in the middle between them.
        arguments: Further arguments of its ``__call__``, which do not vary.

    Returns:
        The settings, and changes to sizes that the capture never sees.

    Raises:
        ZeusError: A pipeline of several loops, an argument that it does not take, or one that cannot be made.
    """
    check_pipeline(pipeline)
    given = _check_given(pipeline, dict(arguments or {}))
    takes = list_parameters(pipeline)
    fixed: dict[str, Any] = {"output_type": "latent"} if "output_type" in takes else {}
    fixed |= {name: False for name in _RESIZES if name in takes}
    step = max(8 * getattr(pipeline, "vae_scale_factor", 8), 32)
    asked: dict[str, Any] = {name: given.pop(name) for name in ("height", "width") if name in given}
    frames = _list_frames(pipeline) if "num_frames" in takes and "num_frames" not in given else ()
    fixed |= {"num_frames": frames[0]} if frames else {}
    (base, varied), call = _choose_base(pipeline, fixed, given, sizes[:1] or _list_default_sizes(pipeline, step), asked)
    height, width = base["height"], base["width"]
    unseen: list[dict[str, Any]] = []
    if "height" in takes or call.is_sized_by_pictures:
        if others := sizes[1:]:
            varied |= {"height": max(size[0] for size in others), "width": max(size[1] for size in others)}
            unseen = [{"height": high, "width": wide} for high, wide in others]
            unseen.append({name: (base[name] + varied[name]) // 2 // step * step for name in ("height", "width")})
        else:
            varied |= {"height": height + step, "width": width + step}
            portrait, square = {"height": height + 2 * step}, dict.fromkeys(("height", "width"), height + step)
            unseen = [portrait, square, {"width": height + step}]
    else:
        del base["height"], base["width"]
        check_sized(pipeline, base, sizes)
    varied = {name: value for name, value in varied.items() if name not in asked}
    if frames:
        varied["num_frames"] = frames[1]
        unseen = [{**change, "num_frames": frames[2]} for change in unseen]
    for name, (first, second) in _list_lengths(takes, given):
        if name not in base and (name in _TEXT_LENGTHS or runs(pipeline, call, {**base, name: first})):
            base[name], varied[name] = first, second
    if _is_text(base.get("prompt")) and runs(pipeline, call, {**base, DETAIL: _DETAILS[0]}):
        varied[DETAIL] = _DETAILS[0]  # pipelines that pad prompts to the longest one
        last: dict[str, Any] = unseen.pop() if unseen else {}
        unseen.append({**last, DETAIL: _DETAILS[1]})
    varied = _keep_what_runs(pipeline, call, base, varied, ("height", "width") if sizes[1:] else ())
    unseen = _restrict(unseen, varied)
    return Settings(base, varied, _choose_content(base), call, _choose_uneven(pipeline, call, base)), tuple(unseen)


def fix_text(settings: Settings, unseen: Sequence[Mapping[str, Any]]) -> tuple[Settings, tuple[dict[str, Any], ...]]:
    """What ``choose_settings`` returned, with prompts of one length."""
    varied = {name: value for name, value in settings.varied.items() if name != DETAIL}
    return replace(settings, varied=varied), tuple(_restrict(unseen, varied))


def check_sized(pipeline: Any, base: Mapping[str, Any], sizes: Sequence[tuple[int, int]]) -> None:
    """Raises ZeusError for sizes of a pipeline whose base setting has none: they would have no effect."""
    if sizes and "height" not in base:
        raise ZeusError(
            f"sizes: got some for a {type(pipeline).__name__}, which runs at one size; expected none. Leave them out."
        )


def _is_text(prompt: Any) -> bool:
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(one, str) for one in prompt))


def _restrict(unseen: Sequence[Mapping[str, Any]], varied: Collection[str]) -> list[dict[str, Any]]:
    """The changes without what does not vary, each once."""
    found: list[dict[str, Any]] = []
    for change in unseen:
        left = {name: value for name, value in change.items() if name in varied}
        if left and left not in found:
            found.append(left)
    return found


def _check_given(pipeline: Any, given: dict[str, Any]) -> dict[str, Any]:
    takes = list_parameters(pipeline)
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    unknown = [name for name in given if name not in takes and name not in ("height", "width")]
    if unknown and not open_ended:
        raise ZeusError(
            f"{unknown[0]}: got it for a {type(pipeline).__name__}; expected one of {', '.join(takes)}. Leave it out."
        )
    return given


def _choose_base(
    pipeline: Any,
    fixed: Mapping[str, Any],
    given: Mapping[str, Any],
    sizes: Sequence[tuple[int, int]],
    asked: Mapping[str, int],
) -> tuple[tuple[dict[str, Any], dict[str, Any]], PipelineCall]:
    """The settings at the first of ``sizes`` that the pipeline runs at, and what makes them three rows."""
    failure = None
    outputs = [{"output_type": name} for name in _OUTPUTS] if "output_type" in fixed else [{}]
    kept: list[dict[str, Any]] = [{_KEEPS: False}, {}] if _KEEPS in list_parameters(pipeline) else [{}]
    for (height, width), output, keeps in product(sizes, outputs, kept):
        if failure and output != outputs[0] and not _is_of_output(failure):
            continue
        base = {**fixed, **output, **keeps, "height": height, "width": width, **asked}
        try:
            (rows, varied), call = _choose_rows(pipeline, base, dict(given))
        except MissingArgument as error:
            failure = error
            continue
        return ({**base, **rows}, varied), call
    assert failure is not None
    raise failure


def _is_of_output(failure: MissingArgument) -> bool:
    """Whether another output may help: the error names ``output_type``, or the pipeline's code reads an unset name."""
    return "output_type" in str(failure) or isinstance(failure.__cause__, UnboundLocalError)


def _choose_rows(
    pipeline: Any, fixed: Mapping[str, Any], given: dict[str, Any]
) -> tuple[tuple[dict[str, Any], dict[str, Any]], PipelineCall]:
    """The settings of two rows, what makes them three, and what the pipeline then runs with; one row if need be."""
    takes = list_parameters(pipeline)
    failure = None
    for rows in _list_rows(pipeline, takes, given):
        try:
            base = {**fixed, **rows[0]}
            return rows, share_pictures(pipeline, find_call(pipeline, base, given), base, rows[1])
        except MissingArgument as error:
            failure = error  # the last asks for the least
    assert failure is not None
    raise failure


def _list_rows(
    pipeline: Any, takes: Collection[str], given: dict[str, Any]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Ways to ask for two rows, each with what asks for three instead; the last asks for one."""
    counts = [count for part in pipeline.components.values() if (count := count_labels(part))]
    if "class_labels" in takes and counts:  # the batch is that of the labels, the size is fixed
        labels = [label % counts[0] for label in (1, 2, 3)]
        return [({"class_labels": labels[:2]}, {"class_labels": labels})]
    if "prompt" not in takes:
        name = "batch_size" if "batch_size" in takes else "batch"
        return [({name: 2}, {name: 3}), ({name: 1}, {})]
    prompt = given.pop("prompt", PROMPT)
    prompt = prompt[0] if isinstance(prompt, list | tuple) else prompt
    # Prompts first: some pipelines take a number of images per prompt and set it to 1.
    ways: list[tuple[dict[str, Any], dict[str, Any]]] = [({"prompt": [prompt] * 2}, {"prompt": [prompt] * 3})]
    ways += [({"prompt": prompt, name: 2}, {name: 3}) for name in PER_PROMPT if name in takes]
    return [*ways, ({"prompt": prompt}, {})]


def _list_frames(pipeline: Any) -> tuple[int, int, int]:
    names = ("vae_scale_factor_temporal", "vae_temporal_compression_ratio")
    step = next((found for name in names if isinstance(found := getattr(pipeline, name, None), int)), 4)
    step = step if step > 1 else 4
    return 2 * step + 1, 3 * step + 1, 4 * step + 1


def _list_lengths(
    takes: Mapping[str, inspect.Parameter], given: Collection[str]
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Lengths of text and sound that may vary, each with two values; the first that runs is taken."""
    for name, parameter in takes.items():
        if name in given:
            continue
        if name in _TEXT_LENGTHS and isinstance(parameter.default, int) and parameter.default >= 16:
            yield name, (parameter.default, parameter.default // 2)
        elif name in _SECONDS:
            yield from ((name, (seconds, 2 * seconds)) for seconds in (4.0, 1.0))


def _keep_what_runs(
    pipeline: Any, call: PipelineCall, base: Mapping[str, Any], varied: Mapping[str, Any], asked: Sequence[str]
) -> dict[str, Any]:
    """The settings that the pipeline lets vary, and those that the user asked for; all are tried before each alone."""
    if runs(pipeline, call, {**base, **varied}):
        return dict(varied)
    return {
        name: value for name, value in varied.items() if name in asked or runs(pipeline, call, {**base, name: value})
    }


def _choose_content(base: Mapping[str, Any]) -> dict[str, Any]:
    prompt = base.get("prompt")
    if prompt is None:
        return {} if "class_labels" in base else {SEED: 1}
    return {SEED: 1, "prompt": [OTHER_PROMPT] * len(prompt) if isinstance(prompt, list) else OTHER_PROMPT}


def _choose_uneven(pipeline: Any, call: PipelineCall, base: Mapping[str, Any]) -> dict[str, Any]:
    """What makes the prompts differ in length; nothing where there is one, or where the pipeline refuses it."""
    prompt, uneven = base.get("prompt"), {UNEVEN: _DETAILS[0]}
    several = isinstance(prompt, list) and len(prompt) > 1 and _is_text(prompt)
    return uneven if several and runs(pipeline, call, {**base, **uneven}) else {}


def _list_default_sizes(pipeline: Any, step: int) -> list[tuple[int, int]]:
    """Sizes beside the one of the denoiser's config, which some models compute in another way; then that one, and it
    as a square, the last that a network with many levels refuses.

    The config of a component that encodes is not that of the latents.
    """
    parts = [part for part in pipeline.components.values() if not hasattr(part, "encode")]
    sizes = [getattr(getattr(part, "config", None), "sample_size", None) for part in parts]
    sample = next((size for size in sizes if isinstance(size, int)), None)
    side = sample * getattr(pipeline, "vae_scale_factor", 8) if sample else 512
    side = max(side // step, 2) * step
    return [(side + step, side - step), (side, side - step), (side, side)]
