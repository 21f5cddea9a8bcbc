"""The application of `zeus-trt serve`, deployed with Ray Serve."""

import threading
from collections.abc import Callable
from typing import Any

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.ray_cluster import LOCAL, RayOptions, connect, find_on_every_node
from zeus_trt.serving.app import create_app
from zeus_trt.serving.limits import Limits
from zeus_trt.serving.server import Address
from zeus_trt.serving_model import ServedModel

NAME = "zeus-trt"
"""Of the application in Ray Serve."""


class Replica:
    """One copy of the model, in a process of Ray.

    Args:
        served: The fields of ``ServedModel``.
        **settings: Of ``create_app``.
    """

    def __init__(self, served: dict[str, Any], **settings: Any):
        self._service, self._settings = ServedModel(**served).open_service(), settings

    def __serve_build_asgi_app__(self) -> Any:
        return create_app(self._service, **self._settings)

    def __del__(self) -> None:
        if service := getattr(self, "_service", None):
            service.close(cancel=True)


def serve_on_ray(
    served: ServedModel,
    address: Address,
    limits: Limits,
    cluster: RayOptions,
    wait: Callable[[], Any] = lambda: threading.Event().wait(),
) -> None:
    """Deploys the application, prints where it answers, and removes it again when ``wait`` returns or raises.

    Args:
        served: The model; each replica opens it.
        address: Where Ray Serve's proxy listens; where a cluster has one already, that stays.
        limits: Of each replica.
        cluster: Replicas are added while more than ``2 * max_rows`` requests per replica run or wait.
        wait: Waits for the end; a signal by default.

    Raises:
        ZeusError: Port 0, no cluster, or a model that does not open.
    """
    if address.port == 0:
        raise ZeusError("port: got 0 with Ray, which does not choose one; expected 1 to 65535. Change it.")
    with connect(cluster) as ray:
        from ray import serve

        busy = 2 * served.max_rows
        least, most = cluster.replicas
        deployment = serve.deployment(
            serve.ingress()(Replica),
            name="Replica",
            ray_actor_options=cluster.list_resources(),
            autoscaling_config={"min_replicas": least, "max_replicas": most, "target_ongoing_requests": busy},
            max_ongoing_requests=2 * busy,
            max_queued_requests=served.max_queue,
            graceful_shutdown_timeout_s=limits.seconds,
        )
        app = deployment.bind(find_on_every_node(served), limits=limits, api_key=address.api_key, hosts=address.hosts)
        try:
            serve.start(http_options={"host": address.host, "port": address.port})
            serve.run(app, name=NAME)
            print(f"http://{f'[{address.host}]' if ':' in address.host else address.host}:{address.port}", flush=True)
            wait()
        except (RuntimeError, ray.exceptions.RayError) as error:
            raise ZeusError(
                f"ray: got no running application ({say_cause(error)}); expected one. Look at Ray's logs."
            ) from error
        finally:
            if cluster.address == LOCAL:
                serve.shutdown()
            else:
                serve.delete(NAME)  # other applications of the cluster stay
