"""Options of the commands that may run on Ray."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from zeus_trt.ray_cluster import RayOptions

RAY_OPTIONS = ("ray", "replicas", "cpus_per_replica", "gpus_per_replica")


class Span(click.ParamType):
    """A least and a most number."""

    name = "MIN:MAX"

    def convert(self, value, param, ctx) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", value)
        if not found or not 1 <= int(found[1]) <= int(found[2] or found[1]):
            self.fail(f"{value!r} is not a number such as 2, or two such as 1:4", param, ctx)
        return int(found[1]), int(found[2] or found[1])


def ray_options(command: Callable) -> Callable:
    """Gives a command the options of ``RAY_OPTIONS``."""
    number = click.FloatRange(0, min_open=True)
    for option in (
        click.option("--gpus-per-replica", type=click.FloatRange(0), help="[default: 1 if the cluster has a GPU]"),
        click.option("--cpus-per-replica", type=number, default=1.0, show_default=True),
        click.option("--replicas", type=Span(), default="1", show_default=True, help="Copies of the model on Ray."),
        click.option(
            "--ray",
            is_flag=False,
            flag_value="local",
            metavar="[ADDRESS]",
            help="Run on Ray: host:port, auto, or (put --ray last) one that is started here.",
        ),
    ):
        command = option(command)
    return command


def read_ray(options: dict[str, Any]) -> "RayOptions | None":
    """Takes the options of Ray out of those of a command; None where it is not asked for."""
    address, replicas, cpus, gpus = (options.pop(name) for name in RAY_OPTIONS)
    if address is None:
        return None
    from zeus_trt.ray_cluster import RayOptions

    return RayOptions(address, replicas, cpus, gpus)
