"""Ray: found or started, with what zeus-trt sets for it."""

import importlib.util
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.runtime.bundle.engine_trust import VARIABLE, check_trust

LOCAL = "local"
"""The address that starts a Ray here for as long as it is needed."""

_ADDRESS = re.compile(r"(ray://)?[A-Za-z0-9._-]+:\d+|\[[0-9a-fA-F:]+\]:\d+|auto")
_LOOPBACK = "127.0.0.1"
_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}


@dataclass(frozen=True)
class RayOptions:
    """A cluster of Ray, and what of it is used.

    Args:
        address: ``host:port`` of a cluster, ``auto`` for the one of this machine, or ``LOCAL``.
        replicas: The least and the most copies of the model.
        cpus, gpus: What each takes; by default a GPU if the cluster has one, and a CPU.

    Raises:
        ZeusError: No address, or numbers that are none of these.
    """

    address: str = LOCAL
    replicas: tuple[int, int] = (1, 1)
    cpus: float = 1
    gpus: float | None = None

    def __post_init__(self) -> None:
        if self.address != LOCAL and not _ADDRESS.fullmatch(self.address):
            raise ZeusError(
                f"ray: got the address {self.address}; expected host:port, ray://host:port, auto, or local. Change it."
            )
        least, most = self.replicas
        if not 1 <= least <= most:
            raise ZeusError(f"replicas: got {least}:{most}; expected 1 or more, the smaller number first. Change it.")

    def list_resources(self) -> dict[str, float]:
        """What each copy takes, in the cluster that is connected.

        Raises:
            ZeusError: The cluster has less than one copy takes.
        """
        import ray

        there = ray.cluster_resources()
        cpus, gpus = there.get("CPU", 0), there.get("GPU", 0)
        asked = self.gpus if self.gpus is not None else min(gpus, 1)
        if self.cpus > cpus or asked > gpus:
            raise ZeusError(
                f"ray: got {self.cpus:g} CPUs and {asked:g} GPUs per replica, in a cluster of {cpus:g} and {gpus:g}; "
                "expected a cluster with room for one. Lower them, or add nodes."
            )
        return {"num_cpus": self.cpus, "num_gpus": asked}


@contextmanager
def connect(options: RayOptions) -> Iterator[Any]:
    """Yields the module ``ray``, connected to a cluster; a local one ends with the block.

    A local one has no dashboard, and answers nobody without a token that only its own processes have: some of Ray's
    ports are open on every interface, whatever its address.

    Raises:
        ZeusError: Ray is not installed, or no cluster answers.
    """
    if importlib.util.find_spec("ray") is None:
        raise ZeusError("ray: got no such package; expected it to be installed. pip install 'zeus-trt[ray]'.")
    variables = dict(_VARIABLES)
    if options.address == LOCAL:
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    import ray

    is_ours = not ray.is_initialized()  # else the caller's
    try:
        if is_ours:
            _start(ray, options)
        yield ray
    finally:
        if is_ours:
            ray.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _start(ray: Any, options: RayOptions) -> None:
    settings: dict[str, Any] = {"address": options.address}
    if options.address == LOCAL:
        cpus = max(os.cpu_count() or 1, 1 + int(options.cpus * options.replicas[0]))
        settings |= {"include_dashboard": False, "_node_ip_address": _LOOPBACK, "num_cpus": cpus}
    try:
        ray.init(
            **settings, log_to_driver=False, logging_level="ERROR", runtime_env=make_environment(), namespace="zeus-trt"
        )
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise ZeusError(
            f"ray: got no connection to {options.address} ({say_cause(error)}); expected a cluster that answers. Start "
            "one with `ray start --head`, or give another address."
        ) from error


def make_environment() -> dict[str, Any]:
    """What workers get of this process: whether engines of other machines are trusted."""
    return {"env_vars": {VARIABLE: "1"}} if check_trust(None) else {}


def find_on_every_node(options: Any) -> dict[str, Any]:
    """The fields of a ``ServedModel`` with absolute paths: every node opens the model itself."""
    places = {name: getattr(options, name, None) for name in ("model", "engine")}
    return vars(options) | {name: _resolve(place) for name, place in places.items() if place is not None}


def _resolve(place: str | Path) -> str:
    return str(Path(place).resolve() if Path(place).exists() else place)
