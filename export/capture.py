"""Finding out, by running the user's own pipeline, what its denoiser is called with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.axes import Moved, Slot, find_symbols, find_unit
from zeus_trt.export.border import CONSTANT, Axes, Border, find_border
from zeus_trt.export.denoisers import choose_denoiser
from zeus_trt.export.guidance import find_guidance, find_guidance_factor
from zeus_trt.export.inputs import CONDITIONING, LATENTS, TIMESTEP, cross, describe_inputs, name_axes
from zeus_trt.export.masks import Masks, find_masks
from zeus_trt.export.networks import (
    find_layout,
    find_moving_inputs,
    find_packed,
    find_together,
    is_beside,
    say_unsteppable,
)
from zeus_trt.export.pipeline_call import DETAIL
from zeus_trt.export.recorder import Call, check_solver, find_denoiser
from zeus_trt.export.runs import (
    Network,
    Run,
    Settings,
    find_moving_integers,
    find_rows,
    measure,
    record,
    say_failure,
    summarize,
    take_one,
)
from zeus_trt.export.shape_probe import ShapeProbe
from zeus_trt.runtime.bundle.layout import PACKED, Layout, pack
from zeus_trt.runtime.bundle.tensor_spec import OUTPUT_NAME, SymbolSpec, TensorSpec
from zeus_trt.runtime.pipelines.answers import list_tensors
from zeus_trt.runtime.pipelines.arguments import Arguments
from zeus_trt.runtime.pipelines.rows import Rows, read_prediction

ALIASES = {"num_frames": "frames", "max_sequence_length": "prompt", DETAIL: "prompt"}


@dataclass(frozen=True)
class Capture:
    """What a pipeline passes to its denoiser.

    Args:
        component: The denoiser's name in the pipeline.
        denoiser: The user's module.
        inputs: Of the graph: the solver's latents and timestep, then the others in the order of the ``forward``
            signature. Floating-point inputs are float32. Latents and timestep change with the step, ``conditioning``
            and ``constant`` with the content; without a run of other content everything else is ``conditioning``.
        border: What the graph does around the denoiser.
        symbols: The sizes that vary, factors before products.
        constants: The arguments that are no tensors and never change, by path.
        guidance: ``batched`` where the rows of a call hold the latents of every image twice, ``sequential`` where each
            branch is a call, ``embedded`` where the denoiser reads the scale as ``guidance``, or ``none``.
        guidance_factor: What the scale is multiplied with where the denoiser reads it; None if it is not known.
        output_axes: A size or a symbol's name per axis of the graph's output.
        arguments: The first call of the base run.
        rows: What is taken of the rows of a call.
        layout: How the output holds what the denoiser answers, where that is a network beside one; None for a denoiser.
        beside: Networks whose answers the denoiser reads at each step.
        masks: Those that some calls leave out.
        is_bare: Whether it answers with its prediction alone, not with a structure that holds it.
    """

    component: str
    denoiser: Any
    inputs: tuple[TensorSpec, ...]
    border: Border
    symbols: tuple[SymbolSpec, ...]
    constants: Mapping[str, Any]
    guidance: str
    guidance_factor: float | None
    output_axes: tuple[int | str, ...]
    arguments: Arguments
    rows: Rows = field(default_factory=Rows)
    layout: Layout | None = None
    beside: tuple[str, ...] = ()
    masks: Masks = field(default_factory=Masks)
    is_bare: bool = False

    @property
    def has_batch(self) -> bool:
        """Whether the graph takes any number of rows."""
        return isinstance(self.inputs[0].axes[0], str)

    @property
    def takes_numbers(self) -> bool:
        """Whether it is a network beside a denoiser, and numbers that it is given are inputs."""
        return bool(self.layout) and any(not spec.axes and spec.role == CONDITIONING for spec in self.inputs)

    @property
    def examples(self) -> tuple[torch.Tensor | int, ...]:
        """The first call of the base run as values of the inputs, in their order; no view, whose base torch traces."""
        flat = self.flatten(self.arguments)
        return tuple(int(flat[spec.name]) if spec.value else flat[spec.name].clone() for spec in self.inputs)

    def flatten(self, arguments: Arguments) -> dict[str, torch.Tensor]:
        """A recorded call as inputs of the graph: timestep float32 per row, integers int64 of shape ()."""
        batch = len(arguments.leaves[self.inputs[0].name])
        own = [spec for spec in self.inputs if spec.role != CONSTANT]
        if missing := [spec.name for spec in own if arguments.leaves.get(spec.name) is None]:
            raise ZeusError(
                f"{missing[0]}: got none in a call of the denoiser; expected it, as in the run that was captured. Run "
                "the pipeline with the same kind of arguments."
            )
        return self.border.split({spec.name: _to_tensor(spec.role, arguments.leaves[spec.name], batch) for spec in own})

    def nest(self, values: Sequence[Any]) -> dict[str, Any]:
        """Keyword arguments of ``forward`` for values of the inputs, in their order."""
        named = dict(zip((spec.name for spec in self.inputs), values, strict=True))
        return self.rows.restore(self.arguments.nest({**self.arguments.leaves, **self.border.enter(named)}))

    def leave(self, answer: Any) -> torch.Tensor:
        """The output of the graph for what the denoiser answers, float32."""
        return pack(list_tensors(answer)).float() if self.layout else self.border.leave(read_prediction(answer))


def capture(
    pipeline: Any,
    settings: Settings,
    component: str | None = None,
    is_one: bool = False,
    network: Network | None = None,
) -> Capture:
    """Runs the pipeline at several settings with a probe in the place of its denoiser, and describes the calls.

    Args:
        pipeline: A diffusers pipeline; unchanged afterwards.
        settings: How to run it, and what to vary.
        component: The denoiser's name; needed where the pipeline has two. Or that of a network beside it, such as a
            ControlNet, all of whose answer is the output.
        is_one: Take one row of each call, for a denoiser whose code fixes how many there are. Calls that pass a list
            with a tensor per row are taken so in any case.
        network: How to take a network beside the denoiser; found by default.

    Raises:
        ZeusError: A wrong component, settings that do not fit, or calls that no graph of tensors can replace.
    """
    is_named, component = component is not None, component or _choose_component(pipeline, settings)
    denoiser = find_denoiser(pipeline, component)
    recorded, content_calls, masks = _record_all(pipeline, component, settings, ShapeProbe(denoiser))
    answer = recorded[0][0].answer
    if network is None and is_named and is_beside(pipeline, component, settings, answer):
        network = Network()
    rows, runs = _take_rows(recorded, network)
    if (together := find_together(runs[0], answer)) and network is None:
        network = Network()
        rows, runs = _take_rows(recorded, network)
    (latents, timestep), residuals, beside = find_moving_inputs(pipeline, settings, component, runs[0], network)
    if is_one and not rows.is_one:
        rows = take_one(rows, [each.given for each in runs], [len(each.arguments.leaves[latents]) for each in runs])
        runs = [summarize(calls, rows, network) for calls in recorded]
    content = summarize(content_calls, rows, network) if content_calls else None
    integers = find_moving_integers(runs)
    symbols, slots = _find_symbols(settings, measure(runs, integers), latents)
    first = runs[0].arguments
    inputs = describe_inputs(runs, content, {latents: LATENTS, timestep: TIMESTEP}, slots, residuals)
    layout = find_layout(runs[0], answer, inputs, symbols, slots) if network else None
    axes, reason = _find_axes(runs[0], inputs[0], slots, layout), say_unsteppable(network, beside, residuals, together)
    border = find_border((latents, timestep), axes, runs[0].scales[timestep], _learns_variance(pipeline), reason)
    return Capture(
        component=component,
        denoiser=denoiser,
        inputs=cross(inputs, border, axes, first.leaves[latents]),
        border=border,
        symbols=symbols + (find_packed(runs) if layout else ()),
        constants={first.paths[name]: value for name, value in first.constants.items() if name not in integers},
        guidance=find_guidance(runs[0], latents),
        guidance_factor=find_guidance_factor(pipeline, settings, first),
        output_axes=axes.output if border.unsteppable else axes.state,
        arguments=first,
        rows=rows,
        layout=layout,
        beside=beside,
        masks=masks,
        is_bare=isinstance(answer, torch.Tensor),
    )


def _record_all(
    pipeline: Any, component: str, settings: Settings, probe: ShapeProbe
) -> tuple[list[list[Call]], list[Call], Masks]:
    """The calls at the base setting and each other one, those with other content, and the masks that some leave out."""
    run = partial(record, pipeline, component, settings, probe=probe)
    recorded = [run(change) for change in ({}, *({name: value} for name, value in settings.varied.items()))]
    content, uneven = (run(change) if change else [] for change in (settings.content, settings.uneven))
    masks = find_masks((*chain(*recorded), *content, *uneven))
    return [masks.fill(calls) for calls in recorded], masks.fill(content), masks


def _find_symbols(
    settings: Settings, sizes: Mapping[Slot, Sequence[int]], latents: str
) -> tuple[tuple[SymbolSpec, ...], dict[Slot, str]]:
    """The sizes that vary, and the symbol of every axis that does."""
    found, slots = find_symbols(sizes, _name_settings(settings, sizes[latents, 0]))
    symbols = tuple(
        symbol if symbol.name == "batch" else find_unit(symbol, moved, settings.base, settings.varied)
        for moved, symbol in found.items()
    )
    _check_base(found)
    return symbols, slots


def _learns_variance(pipeline: Any) -> bool:
    return str(getattr(pipeline.scheduler, "config", {}).get("variance_type", "")).startswith("learned")


def _check_base(found: Mapping[Moved, SymbolSpec]) -> None:
    if small := [(symbol.name, moved[0]) for moved, symbol in found.items() if moved[0] < 2]:
        raise ZeusError(
            f"settings: got a base run where {small[0][0]} is {small[0][1]}; expected 2 or more, since "
            "exporters take 1 for a constant. Raise it, or do not vary it."
        )


def _take_rows(recorded: Sequence[Sequence[Call]], network: Network | None) -> tuple[Rows, list[Run]]:
    rows = find_rows([calls[0].arguments for calls in recorded])
    return rows, [summarize(calls, rows, network) for calls in recorded]


def _choose_component(pipeline: Any, settings: Settings) -> str:
    check_solver(pipeline)
    with say_failure(settings.base):
        return choose_denoiser(pipeline, lambda proxy: settings.run(proxy, **settings.base))


def _name_settings(settings: Settings, batches: Sequence[int]) -> tuple[str, ...]:
    """Names of the settings for the symbols that they move; what moves the rows of the latents is the batch."""
    moves_batch = [batch != batches[0] for batch in batches[1:]]
    names = (ALIASES.get(name, name) for name in settings.varied)
    return tuple("batch" if moves else name for name, moves in zip(names, moves_batch, strict=True))


def _find_axes(run: Run, latents: TensorSpec, slots: Mapping[Slot, str], layout: Layout | None) -> Axes:
    """The axes of the latents, of their part that changes with the step, and of the output."""
    shape, part = run.arguments.leaves[latents.name].shape, run.changing[latents.name]
    state = tuple(axis if own == size else own for axis, own, size in zip(latents.axes, part, shape, strict=True))
    output = (latents.axes[0], PACKED) if layout else name_axes(OUTPUT_NAME, run.outputs[OUTPUT_NAME], slots)
    return Axes(latents.axes, state, output)


def _to_tensor(role: str, leaf: Any, batch: int) -> torch.Tensor:
    value = torch.as_tensor(leaf)
    if role != TIMESTEP:
        return value
    rows = torch.atleast_1d(value.float())
    return rows.expand(batch, *rows.shape[1:]).clone() if len(rows) == 1 else rows
