"""What sharing an engine did for a request, and for all of them."""

from dataclasses import dataclass

from zeus_trt.runtime import Report


@dataclass(frozen=True)
class ServedReport(Report):
    """The report of a trajectory that shared an engine.

    ``total_seconds`` begins when the trajectory does, and ``engine_seconds`` has the waiting in it.

    Args:
        shared_calls: Calls of the engine that had rows of other trajectories too.
        mean_rows: Rows of the calls that it took part in, on average.
        wait_seconds: Time that its calls waited while they were not in the engine.
        queue_seconds: Time from the submission to the begin of the trajectory.
    """

    shared_calls: int = 0
    mean_rows: float = 0.0
    wait_seconds: float = 0.0
    queue_seconds: float = 0.0


@dataclass(frozen=True)
class Counters:
    """What a batcher did so far, and what it does now.

    Args:
        submitted: Requests that were taken.
        finished: Those that ended with a result.
        failed: Those that ended with an error, a passed time limit among them.
        cancelled: Those that were cancelled.
        refused: Those that were not taken, since the queue was full.
        calls: Calls of the engine.
        rows: Rows of these calls, without padding.
        padding: Rows that were added.
        engine_seconds: Time inside the engine.
        queued: Requests that wait for their begin.
        active: Trajectories that run.
        waiting: Calls that wait for the engine.
    """

    submitted: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    calls: int = 0
    rows: int = 0
    padding: int = 0
    engine_seconds: float = 0.0
    queued: int = 0
    active: int = 0
    waiting: int = 0
