"""What `zeus-trt compare` does."""

from collections.abc import Callable, Sequence
from pathlib import Path

from zeus_trt.calibration.cells import make_cells, read_plan
from zeus_trt.calibration.compare import compare, make_folder
from zeus_trt.calibration.comparison import Comparison
from zeus_trt.calibration.peers import Peer
from zeus_trt.calibration.quality import METRICS, check_metrics
from zeus_trt.calibration.subject import EAGER, open_subject


def run_comparison(
    path: Path,
    *,
    model: Path | None = None,
    backends: Sequence[str] = ("auto",),
    ratios: Sequence[int] = (0, 2, 3, 4),
    plans: Sequence[str] = (),
    predictors: Sequence[str] = ("zeus",),
    steps: Sequence[int] = (50,),
    solvers: Sequence[str] = ("default",),
    peers: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    prompts: Path | None = None,
    labels: Sequence[int] | None = None,
    num_images: int = 8,
    guidance_scale: float = 2.0,
    seed: int = 0,
    mode: str = "auto",
    rounds: int = 3,
    output: Path | None = None,
    on_run: Callable[[int], None] | None = None,
) -> Comparison:
    """Opens a bundle or a model folder, and compares what the command line asks for.

    Args:
        path: A bundle, or a model folder.
        model: The model folder that a bundle came from: the eager reference.
        backends: As in ``open_subject``; ``eager`` is added where there are peers.
        ratios: As in ``make_cells``, and so on to ``solvers``; plans as ``read_plan`` reads them.
        peers: As ``Peer.parse`` reads them.
        metrics: Of ``METRICS``; all by default.
        prompts: As in ``open_subject``, and so on to ``seed``.
        num_images: As in ``compare``, and so on.
        mode: As in ``Session.generate``.

    Raises:
        ZeusError: An unknown backend, peer, metric, solver or predictor, and as ``open_subject`` and ``compare``.
    """
    parsed = [peer for text in peers for peer in Peer.parse(text)]
    metrics = METRICS if metrics is None else tuple(metrics)
    check_metrics(metrics)
    named = [read_plan(text) for text in plans]
    if output is not None:
        make_folder(output)
    backends = (*backends, EAGER) if parsed and EAGER not in backends else tuple(backends)
    subject = open_subject(
        path, model=model, backends=backends, labels=labels, prompts=prompts, guidance_scale=guidance_scale, seed=seed,
        folder=output,
    )  # fmt: skip
    cells = make_cells(
        subject.workload, backends=subject.asked, ratios=ratios, plans=named, predictors=predictors, steps=steps,
        solvers=solvers, peers=parsed, mode=mode,
    )  # fmt: skip
    return compare(subject, cells, num_images=num_images, rounds=rounds, metrics=metrics, output=output, on_run=on_run)
