"""The process that serves: uvicorn, and what it does at signals. It needs FastAPI and uvicorn."""

import logging
import signal
import threading
from dataclasses import dataclass
from ipaddress import ip_address
from types import FrameType

import uvicorn
from uvicorn.main import STARTUP_FAILURE

from zeus_trt.errors import ZeusError
from zeus_trt.serving.app import create_app
from zeus_trt.serving.limits import Limits
from zeus_trt.serving.service import Service

logger = logging.getLogger(__name__)

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1", "[::1]")


@dataclass(frozen=True)
class Address:
    """Where a server listens, and who may ask it.

    Args:
        host: A name or an address of this machine.
        port: 0 for a free one.
        api_key: What clients must send.
        is_public: Any client that reaches the server may ask it, without a key.

    Raises:
        ZeusError: An address that other machines reach, without a key and not public; or an empty key.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    is_public: bool = False

    def __post_init__(self) -> None:
        if self.api_key is not None and (len(self.api_key) < 16 or not self.api_key.isascii()):
            raise ZeusError("api_key: got one that is short, or not ASCII; expected 16 characters or more. Change it.")
        if not (self.is_local or self.api_key or self.is_public):
            raise ZeusError(
                f"host: got {self.host}, which other machines reach, and no API key; expected a key. Set one, or say "
                "that the server is public."
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The only names that clients may call it by; none for any."""
        return _LOCAL_NAMES if self.is_local and not self.api_key else ()


def run_server(service: Service, address: Address, limits: Limits) -> None:
    """Serves until SIGTERM or Ctrl-C: then no more requests are taken, and those that run end. A second one ends now.

    SIGHUP opens the model anew. The service is closed at the end.

    Raises:
        ZeusError: The port is taken, or another machine has the address.
    """
    app = create_app(service, limits, address.api_key, address.hosts)
    config = uvicorn.Config(
        app, host=address.host, port=address.port, log_level="warning", access_log=False, server_header=False,
        limit_concurrency=limits.connections, timeout_graceful_shutdown=int(limits.seconds), ws="none",
    )  # fmt: skip
    server = _Server(config, service)
    before = signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=_reload, args=(service,)).start())
    try:
        server.run()
    except SystemExit as error:
        if error.code == STARTUP_FAILURE:
            raise ZeusError(
                f"port: got {address.port} of {address.host}, which does not open; expected a free one. Change it."
            ) from error
        raise
    finally:
        signal.signal(signal.SIGHUP, before)
        service.close(cancel=True)


class _Server(uvicorn.Server):
    """Goes on listening while its last requests end, so that whoever asks can see that it is not ready."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called at SIGTERM and SIGINT."""
        if self._service.is_draining:
            self.should_exit = self.force_exit = True
            return
        self._service.is_draining = True
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        self._service.drain()
        self.should_exit = True

    def _log_started_message(self, listeners: object) -> None:
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        print(f"http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)


def _reload(service: Service) -> None:
    try:
        service.reload()
    except Exception as error:
        logger.error("The model was not opened anew, and the old one goes on: %s", error)
