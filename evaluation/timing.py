"""One run, timed with all the work that it gave to a GPU."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from zeus_trt.evaluation.memory import peak_device_mib, peak_memory_mib, reset_peak_memory
from zeus_trt.evaluation.workload import Sample, Setting, Workload


@dataclass(frozen=True)
class Run:
    """The figures of one run of a batch.

    Args:
        total_ms: From the request to samples on the host.
        engine_ms: Inside the engine; on CUDA the device's own time.
        loop_ms: The rest of the trajectory: solver, guidance, Python.
        host_mib: Peak resident memory of the process.
        device_mib: Peak memory of the GPU; None without one.
        nfe: Full steps, counted as they ran.
        engine_calls: Calls, counted at the engine.
        eager_calls: Calls of the uncompiled denoiser while another engine was asked for.
        backend: The name that the engine reports.
        mode: ``program`` or ``step``.
        plan: The plan that ran.
        round: Equal for runs that were timed right after each other: only their times may be compared.
        parts_ms: Inside a pipeline's other parts, text encoders and decoder, by name.
        work: The calls in units of one of the whole batch, in which some rows are their share; 0 if it is not known.
    """

    total_ms: float
    engine_ms: float
    loop_ms: float
    host_mib: float
    device_mib: float | None
    nfe: int
    engine_calls: int
    eager_calls: int
    backend: str
    mode: str
    plan: str
    round: str = ""
    parts_ms: Mapping[str, float] = field(default_factory=dict)
    work: float = 0.0


def time_run(
    workload: Workload,
    setting: Setting,
    numbers: Sequence[int],
    denoiser_class: str | None = None,
    round_: str = "",
) -> tuple[Run, Sample]:
    """Runs once, and measures.

    Args:
        workload: What runs.
        setting: How.
        numbers: Which samples, as one batch.
        denoiser_class: Class of the uncompiled denoiser: its calls are counted where ``setting`` asks for another
            engine, since an engine that quietly falls back to it would measure it instead.
        round_: Kept as ``Run.round``.
    """
    reset_peak_memory()
    hidden_class = None if setting.backend == "eager" else denoiser_class
    with _count_eager_calls(hidden_class) as count, _time_parts(getattr(workload, "parts", {})) as seconds_of:
        start = read_clock()
        sample = workload.run(setting, numbers)
        seconds = read_clock() - start
    report = sample.report
    run = Run(
        total_ms=1000 * seconds,
        engine_ms=1000 * report.engine_seconds,
        loop_ms=1000 * report.loop_seconds,
        host_mib=peak_memory_mib(),
        device_mib=peak_device_mib(),
        nfe=report.nfe,
        engine_calls=report.engine_calls,
        eager_calls=count(),
        backend=report.backend,
        mode=report.mode,
        plan=report.plan,
        round=round_,
        parts_ms={name: 1000 * part for name, part in seconds_of.items() if part},
        work=round(len(report.plan) / report.speedup_bound, 6),
    )
    return run, fetch(sample)


def pair_runs(runs: Sequence[Run], full: Sequence[Run]) -> tuple[Run, ...]:
    """The runs that have a full run of the same round."""
    rounds = {run.round for run in full}
    return tuple(run for run in runs if run.round in rounds)


def fetch(sample: Sample) -> Sample:
    """The sample in float32 on the CPU."""
    return replace(sample, latents=sample.latents.float().cpu(), images=sample.images.float().cpu())


def read_clock() -> float:
    """Seconds, after all work that was given to the GPU is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def count_flops(work: Callable[[], Any]) -> int:
    """Floating-point operations of the matrix products, convolutions and attentions of eager ``work``."""
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    def count_attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return sdpa_flop_count(query, key, value)

    cpu_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # torch's own table leaves it out
    with FlopCounterMode(display=False, custom_mapping={cpu_attention: count_attention}) as counter:
        work()
    return counter.get_total_flops()


@contextmanager
def _time_parts(parts: Mapping[str, torch.nn.Module]) -> Iterator[dict[str, float]]:
    """Seconds inside each module by its name, added up as it is called.

    The outermost calls count, also those of its submodules: a decoder's ``decode`` calls these alone. The modules have
    hooks inside the block.
    """
    seconds = dict.fromkeys(parts, 0.0)
    depth, began = Counter[str](), dict.fromkeys(parts, 0.0)
    handles = []

    def enter(name: str, *_: Any) -> None:
        if not depth[name]:
            began[name] = read_clock()
        depth[name] += 1

    def leave(name: str, *_: Any) -> None:
        depth[name] -= 1
        if not depth[name]:
            seconds[name] += read_clock() - began[name]

    try:
        for name, part in parts.items():
            for module in part.modules():
                handles.append(module.register_forward_pre_hook(partial(enter, name)))
                handles.append(module.register_forward_hook(partial(leave, name), always_call=True))
        yield seconds
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _count_eager_calls(denoiser_class: str | None) -> Iterator[Callable[[], int]]:
    """Counts the calls of every torch module of this class in the process; None counts nothing."""
    count = 0

    def note(module: torch.nn.Module, _: Any) -> None:
        nonlocal count
        count += type(module).__name__ == denoiser_class

    if denoiser_class is None:
        yield lambda: 0
        return
    handle = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield lambda: count
    finally:
        handle.remove()
