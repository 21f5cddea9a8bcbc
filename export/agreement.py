"""Comparing what was exported with the eager model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.capture import Capture
from zeus_trt.export.overflow import find_nonfinite
from zeus_trt.export.precision import TOLERANCES, to_float32
from zeus_trt.export.runs import Settings, record
from zeus_trt.export.shape_probe import ShapeProbe
from zeus_trt.runtime.bundle.manifest import Verification
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import name_dtype
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.pipelines.rows import read_prediction

BATCHES = (1, 2, 3)
TOLERANCE = TOLERANCES["fp32"]


@dataclass(frozen=True)
class Case:
    """One call to compare.

    Args:
        arguments: Keyword arguments of the denoiser's ``forward``.
        inputs: The same as inputs of the graph, by name, the latents first.
        setting: What the pipeline was run with, where it differs from the base run.
        row: The row of the call that ``inputs`` are; None where they are all rows.
    """

    arguments: Mapping[str, Any]
    inputs: Mapping[str, torch.Tensor]
    setting: Mapping[str, Any] = field(default_factory=dict)
    row: int | None = None

    @property
    def latents(self) -> torch.Tensor:
        """The first input."""
        return next(iter(self.inputs.values()))

    def select(self, output: torch.Tensor) -> torch.Tensor:
        """The part of the call's output that belongs to ``inputs``."""
        return output if self.row is None else output[self.row : self.row + 1]


class BeyondTable(ZeusError):
    """The eager model refuses the sizes of a case: one of its tables, such as that of positions, is too short.

    Args:
        message: As in ``ZeusError``.
        case: The case.
    """

    def __init__(self, message: object, case: Case):
        super().__init__(message)
        self.case = case


def list_cases(
    captured: Capture,
    pipeline: Any,
    settings: Settings,
    changes: Iterable[Mapping[str, Any]],
    batches: Sequence[int] = BATCHES,
) -> Iterator[Case]:
    """Calls of a pipeline's denoiser at each change of the base setting.

    At each: the pipeline's own call, exactly as it was made; then every batch of ``batches``, with another timestep
    in each row. Where the graph takes one row: the first and the last row of the pipeline's own call. They are the same
    calls every time.
    """
    probe = ShapeProbe(captured.denoiser)
    for change in changes:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            calls = record(pipeline, captured.component, settings, change, probe)
        setting = {name: value for name, value in change.items() if isinstance(value, str | int | float)}
        given = calls[0].arguments
        if captured.rows.is_one:
            for row in sorted({0, calls[0].output_shape[0] - 1}):
                inputs = captured.flatten(captured.rows.flatten(captured.masks.fill_arguments(given), row))
                yield Case(given, inputs, setting, row)
            continue
        inputs = captured.flatten(captured.rows.flatten(captured.masks.fill_arguments(given)))
        yield Case(given, inputs, setting)
        for batch in batches if captured.has_batch else ():
            rows = take_rows(captured, inputs, batch)
            values = [int(rows[spec.name]) if spec.value else rows[spec.name] for spec in captured.inputs]
            yield Case(captured.nest(values), rows, setting)


def list_all_cases(
    captured: Capture, pipeline: Any, settings: Settings, unseen: Iterable[Mapping[str, Any]], rules: SizeRules
) -> Iterator[Case]:
    """What an export is verified at, as far as the graph takes it.

    The base setting and those of ``unseen`` at every batch; the other settings that were captured; and of portrait,
    landscape and square those that none of them is, where the pipeline runs at them.
    """
    unseen = (*unseen, settings.uneven) if captured.masks.known and settings.uneven else tuple(unseen)
    varied = [{name: value} for name, value in settings.varied.items()]
    yield from allowed(list_cases(captured, pipeline, settings, ({}, *unseen)), rules)
    yield from allowed(list_cases(captured, pipeline, settings, varied, batches=()), rules)
    for change in turn(settings, (*varied, *unseen)):
        try:
            cases = tuple(list_cases(captured, pipeline, settings, (change,), batches=()))
        except ZeusError:  # a size that the pipeline refuses is no size to verify at
            continue
        yield from allowed(cases, rules)


def allowed(cases: Iterable[Case], rules: SizeRules) -> Iterator[Case]:
    """The cases at sizes that the graph takes."""
    return (case for case in cases if rules.allow(case.inputs))


def turn(settings: Settings, changes: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, int]]:
    """Changes of the base setting to the orientations that neither it nor one of ``changes`` has."""
    sizes = [(setting.get("height"), setting.get("width")) for setting in _apply(settings.base, changes)]
    high, wide = sizes[0]
    if type(high) is not int or type(wide) is not int:
        return
    seen = {_orient(*size) for size in sizes}
    for size in ((high, wide), (wide, high), (max(high, wide),) * 2):
        if _orient(*size) not in seen:
            yield dict(zip(("height", "width"), size, strict=True))


def _apply(base: Mapping[str, Any], changes: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    yield base
    yield from ({**base, **change} for change in changes)


def _orient(high: Any, wide: Any) -> int:
    """1 for portrait, 0 for square, -1 for landscape."""
    return (high > wide) - (high < wide)


def take_rows(captured: Capture, inputs: Mapping[str, torch.Tensor], batch: int) -> dict[str, torch.Tensor]:
    """The same inputs with ``batch`` rows, repeated where there are fewer, each at another timestep."""
    symbol = captured.inputs[0].axes[0]
    taken = dict(inputs)
    for spec in captured.inputs:
        for axis, name in enumerate(spec.axes):
            if name == symbol:
                rows = torch.arange(batch) % inputs[spec.name].shape[axis]
                taken[spec.name] = taken[spec.name].index_select(axis, rows)
    timestep = captured.inputs[1].name
    fractions = torch.linspace(1, 0.5, batch).view(-1, *(1,) * (taken[timestep].ndim - 1))
    return taken | {timestep: taken[timestep] * fractions}


def compare(
    eager: torch.nn.Module,
    engine: Denoiser,
    cases: Iterable[Case],
    backend: str,
    tolerance: float = TOLERANCE,
    explain: Callable[[Case], str] | None = None,
    leave: Callable[[Any], torch.Tensor] = lambda answer: read_prediction(answer).float(),
) -> tuple[Verification, ...]:
    """Runs both on every case.

    Args:
        eager: The reference in float32, in eval mode.
        engine: What was exported.
        cases: What to run.
        backend: Name of the engine, for the record.
        tolerance: Largest relative error that is accepted.
        explain: What to say of a case where the engine, and not the reference, returns values that are not finite.
        leave: Makes what the engine returns, in float32, of the reference's answer; its first output by default.

    Raises:
        ZeusError: An output is not finite, or the error is above ``tolerance``.
    """
    records = []
    for case in cases:
        arguments, shape = to_float32(case.arguments), tuple(case.latents.shape)
        try:
            with torch.inference_mode():
                expected = case.select(leave(eager(**arguments)))
        except Exception as error:  # the model's own code raises its own
            words = " ".join(str(error).split())[:200]
            message = (
                f"verification: got {type(error).__name__} from the eager model at latents {shape} ({words}); expected "
                "an output. Export it at sizes that it takes."
            )
            is_beyond = isinstance(error, IndexError) or "out of bounds" in words
            raise BeyondTable(message, case) if is_beyond else ZeusError(message) from error
        if not torch.isfinite(expected).all():
            first = find_nonfinite(eager, partial(eager, **arguments)) or "its output"
            raise ZeusError(
                f"verification: got non-finite values from the eager model at latents {shape}, first in {first}; "
                "expected finite ones. Check the weights."
            )
        got = engine(**case.inputs)
        dtype = name_dtype(got)
        if not torch.isfinite(got := got.float()).all():
            reason = explain(case) if explain else "; expected finite ones. Report the model."
            raise ZeusError(
                f"verification: got non-finite values from the engine, {backend}, at latents {shape}{reason}"
            )
        difference = got - expected
        relative = float(difference.norm() / expected.norm().clamp_min(1e-12))
        if not relative <= tolerance:  # nor is NaN enough
            raise ZeusError(
                f"verification: got a relative error of {relative:.2e} to the eager model at latents {shape} on "
                f"{backend}; expected at most {tolerance:.0e}. Report the model, or raise the tolerance if you accept "
                "it."
            )
        records.append(Verification(backend, shape, dtype, float(difference.abs().max()), relative, dict(case.setting)))
    return tuple(records)
