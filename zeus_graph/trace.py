"""Tracing: a diffusers scheduler, run on coefficients instead of pixels, becomes a SolverProgram.

No scheduler is named, patched or subclassed here: whether one can be traced is found by running it.
"""

import copy
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import MAX_STEPS, check_count, is_whole, show
from zeus_trt.zeus_graph.prune import prune
from zeus_trt.zeus_graph.sigmas import read_sigmas
from zeus_trt.zeus_graph.solver_program import SolverProgram

_TOLERANCE = 1e-5  # of the probe: above the float32 casts inside schedulers, far below any clipping
_AMPLITUDES = (1e-2, 1e2)
_LONGEST = 5_000  # evaluations: tracing takes about a millisecond for each
_WIDTHS = (64, 512)  # basis vectors to begin with, and at most: memory grows with the square


class UntraceableError(ZeusError):
    """The scheduler is stochastic, nonlinear or needs more than sample and model output; step mode serves it."""


def trace(scheduler: Any, num_steps: int, *, begin: int = 0, **schedule: Any) -> SolverProgram:
    """Reads the matrices of a scheduler off its own code.

    The channels of a float64 sample of shape (1, W, 1, 1) serve as a basis: the sample,
    every tensor that the scheduler keeps, and the model output are each one basis vector,
    laid anew before every evaluation. A run on random data then proves the result.

    Args:
        scheduler: A diffusers scheduler, which stays as it is. Random numbers of other threads do not disturb.
        num_steps: Number of steps, as given to ``set_timesteps``.
        begin: Index of the first evaluation in ``scheduler.timesteps`` (image to image).
        **schedule: More arguments of ``set_timesteps``: ``sigmas``, ``timesteps``, ``mu`` ...
            ``sigmas`` and ``timesteps`` replace the number of steps.

    Raises:
        UntraceableError: The scheduler is not linear, not deterministic, its ``step`` cannot be called with just
            model output, timestep and sample, or the schedule or what the scheduler keeps is too long to trace.
        ZeusError: ``set_timesteps`` refuses the arguments, or ``num_steps`` or ``begin`` is out of range.
    """
    with torch.inference_mode():
        prepared = prepare(scheduler, num_steps, begin, schedule)
        timesteps = tuple(float(t) for t in prepared.timesteps[begin:])
        if len(timesteps) > _LONGEST:
            raise UntraceableError(
                f"{type(scheduler).__name__}: got a schedule of {len(timesteps)} evaluations; expected {_LONGEST} at "
                "most, to trace it. Run it in step mode."
            )
        matrices, input_rows = prune(*_read(prepared, begin))
        config = dict(getattr(prepared, "config", {}))
        program = SolverProgram(
            scheduler=type(scheduler).__name__,
            config=config,
            num_steps=num_steps,
            begin=begin,
            timesteps=timesteps,
            sigmas=read_sigmas(prepared, timesteps, begin),
            input_rows=tuple(input_rows),
            matrices=tuple(matrices),
            init_noise_sigma=float(getattr(prepared, "init_noise_sigma", 1.0)),
            prediction_type=config.get("prediction_type"),
        )
        _prove(prepared, program)
    return program


def prepare(scheduler: Any, num_steps: int, begin: int, schedule: Mapping[str, Any]) -> Any:
    """A copy of the scheduler, moved to the CPU, whose schedule is set; arguments and errors as in ``trace``."""
    check_count("num_steps", num_steps, 1, MAX_STEPS)
    for key, value in schedule.items():
        if hasattr(value, "__len__") and not isinstance(value, str | torch.Tensor) and len(value) > MAX_STEPS:
            raise ZeusError(f"{key}: got {len(value)} values; expected {MAX_STEPS} at most. Give fewer.")
    name = type(scheduler).__name__
    moved = {id(tensor): tensor.cpu() for tensor in _tensors(scheduler) if tensor.device.type != "cpu"}
    prepared = copy.deepcopy(scheduler, moved)
    custom = any(schedule.get(key) is not None for key in ("sigmas", "timesteps"))
    if not custom:
        schedule = {"num_inference_steps": num_steps, **schedule}
    if not hasattr(prepared, "step") or not hasattr(prepared, "set_timesteps"):
        raise UntraceableError(
            f"scheduler: got {name}, without step or set_timesteps; expected a diffusers scheduler with both. "
            "Use another scheduler."
        )
    try:
        prepared.set_timesteps(**schedule)
        total = len(prepared.timesteps)
    except Exception as error:
        raise ZeusError(
            f"{name}.set_timesteps: got {schedule}, which raised {type(error).__name__} ({error}); expected arguments "
            "that it takes. Change them."
        ) from error
    if not torch.as_tensor(prepared.timesteps).isfinite().all():
        raise ZeusError(
            f"{name}.set_timesteps: got {schedule}, which makes timesteps that are not finite; expected a schedule of "
            "numbers. Change them."
        )
    found = getattr(prepared, "num_inference_steps", None)
    if custom and found is not None and found != num_steps:
        raise ZeusError(
            f"num_steps: got {num_steps}; expected {found}, the steps that the given sigmas or timesteps make. "
            "Change one of them."
        )
    if not is_whole(begin) or not 0 <= begin < total:
        raise ZeusError(f"begin: got {show(begin)}; expected 0..{total - 1}, an index of the timesteps. Change it.")
    if hasattr(prepared, "set_begin_index"):
        prepared.set_begin_index(begin)
    return prepared


class _Run:
    """One pass through the scheduler's own loop, on a copy, watched for random draws."""

    def __init__(self, prepared: Any, begin: int):
        self.scheduler = copy.deepcopy(prepared)
        self.timesteps = self.scheduler.timesteps[begin:]
        self._generator = torch.Generator()
        takes_generator = "generator" in inspect.signature(self.scheduler.step).parameters
        self._arguments = {"generator": self._generator} if takes_generator else {}
        self._random = self._generator.get_state()

    def scale(self, i: int, sample: torch.Tensor) -> torch.Tensor:
        """The model input of evaluation ``i``."""
        if not hasattr(self.scheduler, "scale_model_input"):
            return sample
        return self._watch(i, sample, lambda: self.scheduler.scale_model_input(sample, self.timesteps[i]))

    def step(self, i: int, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """The sample after evaluation ``i``."""

        def call() -> torch.Tensor:
            result = self.scheduler.step(output, self.timesteps[i], sample, **self._arguments)
            return result.prev_sample if hasattr(result, "prev_sample") else result[0]

        return self._watch(i, sample, call)

    def refuse(self, i: int, found: str) -> UntraceableError:
        """The error that says what was found at evaluation ``i``."""
        return UntraceableError(
            f"{type(self.scheduler).__name__}: got {found}, at evaluation {i}; expected a solver that is linear in "
            "sample and model output, and deterministic. Run it in step mode."
        )

    def _watch(self, i: int, sample: torch.Tensor, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        try:
            result = call()
        except Exception as error:
            raise self.refuse(i, f"{type(error).__name__} ({error}) on a bare sample and model output") from error
        if not torch.equal(self._generator.get_state(), self._random):
            raise self.refuse(i, "a stochastic step (it draws random numbers)")
        if not isinstance(result, torch.Tensor) or result.shape != sample.shape:
            raise self.refuse(i, "a result of another shape than the sample")
        return result


def _read(prepared: Any, begin: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Matrices and input rows of all evaluations, over everything that the scheduler keeps."""
    width, widest = min(len(prepared.timesteps) + 8, _WIDTHS[0]), _WIDTHS[1]
    while True:
        run = _Run(prepared, begin)
        result = _read_within(run, width)
        if result is not None:
            return result
        if width >= widest:
            raise UntraceableError(
                f"{type(run.scheduler).__name__}: got more than {widest - 2} tensors that it keeps between two "
                f"evaluations of {len(run.timesteps)}; expected fewer, to trace it. Run it in step mode."
            )
        width *= 2


def _read_within(run: _Run, width: int) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
    """The same with ``width`` basis vectors; None if the state outgrows them."""
    basis = torch.eye(width, dtype=torch.float64).reshape(width, 1, width, 1, 1)
    matrices, input_rows = [], []
    size = 1
    for i in range(len(run.timesteps)):
        if size + 2 > width:  # one for the model output, and one that stays unused to reveal constants
            return None
        input_rows.append(_coefficients(run, i, run.scale(i, basis[0].clone()), size))
        sample = run.step(i, basis[size].clone(), basis[0].clone())
        kept = [t for t in _tensors(run.scheduler) if t.shape == basis[0].shape and t.is_floating_point()]
        places = {_coefficients(run, i, sample, size + 1).tobytes(): 0}
        rows = [_coefficients(run, i, tensor, size + 1) for tensor in kept]
        for tensor, row in zip(kept, rows, strict=True):
            if row.any():
                tensor.copy_(basis[places.setdefault(row.tobytes(), len(places))])
        matrices.append(np.stack([np.frombuffer(row) for row in places]))
        size = len(places)
    return matrices, input_rows


def _coefficients(run: _Run, i: int, tensor: torch.Tensor, size: int) -> np.ndarray:
    """The first ``size`` channels, float64; the others must be zero."""
    row = tensor.reshape(-1).to(torch.float64, copy=True).numpy() + 0.0  # no -0.0: rows are compared by their bytes
    if not np.isfinite(row).all():
        raise run.refuse(i, "a result that is not finite (its own loop then ends in NaN or infinity too)")
    if row[size:].any():
        raise run.refuse(i, "a term that comes from neither sample nor model output, a constant or noise")
    return row[:size].copy()


def _prove(prepared: Any, program: SolverProgram) -> None:
    """Compares the program with the scheduler's own loop on small and on large random data."""
    found = _first_difference(prepared, program)
    if found is None:
        return
    run, i, sample, error = found
    again = _first_difference(prepared, program)
    small, large = sample / np.array(_AMPLITUDES)[:, None]
    if again is None or not np.array_equal(again[2], sample):
        raise run.refuse(i, "a stochastic step (two runs differ)")
    if np.abs(small - large).max() > _TOLERANCE * max(np.abs(small).max(), np.abs(large).max()):
        raise run.refuse(i, "a nonlinear step (it does not scale with its inputs, like clipping or thresholding)")
    raise run.refuse(i, f"a step that depends on its data (matrices miss it by a relative {error:.1e})")


def _first_difference(prepared: Any, program: SolverProgram) -> tuple[_Run, int, np.ndarray, float] | None:
    """The first evaluation where program and scheduler disagree: the scheduler's values (2, n) and the error."""
    run = _Run(prepared, program.begin)
    generator = torch.Generator().manual_seed(0)
    amplitudes = torch.tensor(_AMPLITUDES, dtype=torch.float64).reshape(2, 1, 1, 1)

    def draw() -> torch.Tensor:
        return amplitudes * torch.randn(1, 4, 4, 4, generator=generator, dtype=torch.float64)

    def flat(tensor: torch.Tensor) -> np.ndarray:
        return tensor.to(torch.float64, copy=True).numpy().reshape(2, -1)

    sample = draw()
    state = flat(sample)[None]
    for i, (row, matrix) in enumerate(zip(program.input_rows, program.matrices, strict=True)):
        output = draw()
        scaled = flat(run.scale(i, sample.clone()))
        sample = run.step(i, output.clone(), sample)
        columns = np.concatenate([state, flat(output)[None]])
        for values, weights, terms in ((scaled, row, state), (flat(sample), matrix[0], columns)):
            # Errors are measured against the terms of the sum, which may cancel.
            scale = np.tensordot(np.abs(weights), np.abs(terms), 1).max(axis=-1)
            error = np.abs(values - np.tensordot(weights, terms, 1)).max(axis=-1)
            if not (error <= _TOLERANCE * scale).all():
                return run, i, values, float(np.max(error / np.maximum(scale, np.finfo(float).tiny)))
        state = np.tensordot(matrix, columns, 1)
        state[0] = flat(sample)  # no drift between the two: float32 casts add up
    return None


def read_scales(prepared: Any, begin: int = 0) -> list[float]:
    """By evaluation from ``begin`` on, the factor from sample to model input; read on a copy of the scheduler."""
    own = copy.copy(prepared)
    for name in ("step", "scale_model_input"):  # a pipeline's scheduler may have others in their place
        vars(own).pop(name, None)
    run, scales = _Run(own, begin), []
    with torch.inference_mode():
        for i in range(len(run.timesteps)):
            scales.append(float(run.scale(i, torch.ones(1, 1, 1, 1))))
            run.step(i, torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
    return scales


def _tensors(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Every distinct tensor that an object holds, through lists, tuples, dicts, deques and objects."""
    seen = set() if seen is None else seen
    if value is None or isinstance(value, (str, bytes, int, float, type, ModuleType)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item, seen)
    elif isinstance(value, (list, tuple, deque, set)):
        for item in value:
            yield from _tensors(item, seen)
    elif hasattr(value, "__dict__"):
        yield from _tensors(vars(value), seen)
