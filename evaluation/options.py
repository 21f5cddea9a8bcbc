"""The options of a comparison."""

from dataclasses import dataclass

from zeus_trt.evaluation.quality import METRICS, Metric, check_metrics


@dataclass(frozen=True)
class MeasureOptions:
    """How variants are measured.

    Args:
        num_images: Samples 0 .. num_images - 1, run as one batch.
        rounds: Timed runs of each variant.
        metrics: Of ``METRICS``, of other packages, or functions.
        reference: Measure against the full run of the eager model too, where there is one.
        trajectories: Measure the error after every step too, for the report.
        timed_images: Time runs of the first few samples only, so that rounds are short; all by default.

    Raises:
        ZeusError: An unknown metric.
    """

    num_images: int = 8
    rounds: int = 3
    metrics: tuple[Metric, ...] = METRICS
    reference: bool = True
    trajectories: bool = True
    timed_images: int | None = None

    def __post_init__(self) -> None:
        check_metrics(self.metrics)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The samples."""
        return tuple(range(self.num_images))

    @property
    def timed(self) -> tuple[int, ...]:
        """The samples of a timed run."""
        return self.numbers[: self.timed_images]
