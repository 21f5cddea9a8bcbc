"""What `zeus-trt compare` does."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from zeus_trt.calibration.task import read_prompts
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation import compare as comparisons
from zeus_trt.evaluation.compare import make_folder
from zeus_trt.evaluation.comparison import Comparison
from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.peers import Peer
from zeus_trt.evaluation.quality import METRICS
from zeus_trt.evaluation.subject import EAGER, Subject, describe_pipeline, open_subject
from zeus_trt.evaluation.variants import Grid, NamedPlan, make_variants
from zeus_trt.export.loading import is_pipeline
from zeus_trt.pipelines import open_pipeline, refuse_mode
from zeus_trt.repeat import write_command
from zeus_trt.runtime.request import check_run
from zeus_trt.zeus_graph import Plan


def compare(
    path: str | os.PathLike,
    *,
    model: str | os.PathLike | None = None,
    backends: Sequence[str] = ("auto",),
    ratios: Sequence[int] = (0, 2, 3, 4),
    window: str | tuple[float, float] | None = None,
    plans: Sequence[str | Plan] = (),
    predictors: Sequence[str] | None = None,
    steps: Sequence[int] = (50,),
    solvers: Sequence[str] = ("default",),
    peers: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    prompts: str | os.PathLike | None = None,
    labels: Sequence[int] | None = None,
    num_images: int = 8,
    guidance_scale: float | None = None,
    seed: int = 0,
    mode: str | None = None,
    rounds: int = 3,
    output: str | os.PathLike | None = None,
    on_run: Callable[[int], None] | None = None,
) -> Comparison:
    """Compares eager, compiled and skipped runs of a bundle, a model folder or a pipeline: time, quality, memory.

    Args:
        path: A bundle, a model folder, or a diffusers pipeline, as a folder or an id of the hub.
        model: The model folder or the pipeline that a bundle came from: the eager reference.
        backends: As in ``open_subject``; ``eager`` is added where there are peers.
        ratios: As in ``Grid``, and so on to ``solvers``; ``plans`` as ``NamedPlan.read`` reads them.
        peers: As ``Peer.parse`` reads them.
        metrics: Of ``METRICS``; all by default.
        prompts: A file with a prompt per line, for pipelines.
        labels: Class labels, one per sample, in turn.
        guidance_scale: The pipeline's own by default, else as in ``choose_guidance``; 1 turns it off.
        seed: Sample k draws its noise from seed + k.
        num_images: As in ``MeasureOptions``, and so on.
        mode: As in ``Session.generate``; a pipeline has its own loop.

    Raises:
        ZeusError: An unknown backend, peer, metric, solver or predictor, and as ``open_subject`` and ``compare``.
    """
    path, output = Path(path), None if output is None else Path(output)
    command = write_command(
        "compare", compare, path, model=model, backends=backends, ratios=ratios, window=window,
        plans=plans, predictors=predictors, steps=steps, solvers=solvers, peers=peers, metrics=metrics, prompts=prompts,
        labels=labels, num_images=num_images, guidance_scale=guidance_scale, seed=seed, mode=mode, rounds=rounds,
        output=output,
    )  # fmt: skip
    parsed = [peer for text in peers for peer in Peer.parse(text)]
    options = MeasureOptions(num_images, rounds, METRICS if metrics is None else tuple(metrics))
    for count in steps:
        check_run(count, num_images, seed)
    backends = (*backends, EAGER) if parsed and EAGER not in backends else tuple(backends)
    if mode is not None and is_pipeline(Path(model or path)):
        raise refuse_mode(mode)
    grid = Grid(
        ratios=ratios, window=window, plans=[NamedPlan.read(source, window) for source in plans],
        predictors=predictors, steps=steps, solvers=solvers, peers=parsed, mode=mode or "auto",
    )  # fmt: skip
    if output is not None:
        make_folder(output)
    model, prompts = (None if file is None else Path(file) for file in (model, prompts))
    subject = _open(path, model, backends, prompts, labels, guidance_scale, seed, output)
    variants = make_variants(subject.workload, replace(grid, backends=subject.asked))
    return comparisons.compare(subject, variants, options, output=output, command=command, on_run=on_run)


def _open(
    path: Path,
    model: Path | None,
    backends: Sequence[str],
    prompts: Path | None,
    labels: Sequence[int] | None,
    guidance_scale: float | None,
    seed: int,
    output: Path | None,
) -> Subject:
    source = model or path
    if is_pipeline(source):
        workload = open_pipeline(
            str(source), prompts=read_prompts(prompts), labels=labels, guidance_scale=guidance_scale, seed=seed,
            bundle=path if model else None,
        )  # fmt: skip
        return describe_pipeline(workload, backends)
    if prompts and path.exists():
        raise ZeusError("--prompts: got a file for a model of class labels; expected --label. Leave it out.")
    return open_subject(
        path, model=model, backends=backends, labels=labels, guidance_scale=guidance_scale, seed=seed, folder=output
    )
