"""A pipeline that is made of whole pipelines, each of which is accelerated."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import accumulate
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.pipelines.stand_in import subclass
from zeus_trt.runtime.report import Report


@contextmanager
def combine(pipeline: Any, blocks: Mapping[str, AbstractContextManager[Any]]) -> Iterator[Any]:
    """A pipeline like the given one that calls accelerated parts; the given one is not touched.

    What is assigned to it stays with it. After a run its ``report`` is that of all runs of its parts, in their order.

    Args:
        pipeline: A diffusers pipeline that has the parts as attributes.
        blocks: The ``with`` block of each accelerated part, by name, in the order of their runs.
    """
    own_call: Any = type(pipeline).__call__
    with ExitStack() as opened:
        twins = {name: opened.enter_context(block) for name, block in blocks.items()}
        ran: list[Report] = []
        for twin in twins.values():
            counted = subclass(type(twin), __call__=_collect(type(twin).__call__, ran))
            object.__setattr__(twin, "__class__", counted)  # not as the pipeline's own assignments

        @functools.wraps(own_call)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            vars(self).pop("report", None)
            ran.clear()
            result = own_call(self, *args, **kwargs)
            if not ran:
                raise ZeusError(
                    f"pipeline: got a run of {type(pipeline).__name__} without one of its pipelines "
                    f"{', '.join(twins)}; expected some. Accelerate what it runs."
                )
            self.report = join(ran)
            return result

        combined: Any = object.__new__(subclass(type(pipeline), __call__=call))
        vars(combined).update({**vars(pipeline), **twins})
        yield combined


def _collect(own_call: Any, reports: list[Report]) -> Any:
    """A twin's call that adds the report of its run to a list."""

    @functools.wraps(own_call)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = own_call(self, *args, **kwargs)
        reports.append(self.report)
        return result

    return call


def refuse_for_parts(pipeline: Any, parts: Iterable[str], **given: Any) -> None:
    """Raises ZeusError for an argument of ``accelerate`` that belongs to one of the parts.

    Args:
        pipeline: The pipeline that is made of them.
        parts: Their names.
        given: The arguments, None where they are not given.
    """
    for name, value in given.items():
        if value is not None:
            raise ZeusError(
                f"{name}: got one for a {type(pipeline).__name__}, made of the pipelines {', '.join(parts)}; expected "
                "None. Accelerate the one that it is for, and run these one by one."
            )


def join(reports: Sequence[Report]) -> Report:
    """The report of runs that follow each other. No speed-up of them all is larger than the largest one's bound."""
    begins = accumulate((len(report.plan) for report in reports), initial=0)
    return dataclasses.replace(
        reports[0],
        mode_reason="; ".join(dict.fromkeys(report.mode_reason for report in reports)),
        plan="".join(report.plan for report in reports),
        nfe=sum(report.nfe for report in reports),
        engine_calls=sum(report.engine_calls for report in reports),
        engine_seconds=sum(report.engine_seconds for report in reports),
        total_seconds=sum(report.total_seconds for report in reports),
        speedup_bound=max(report.speedup_bound for report in reports),
        row_plans=(),
        drift=tuple(
            (begin + step, size) for begin, report in zip(begins, reports, strict=False) for step, size in report.drift
        ),
    )
