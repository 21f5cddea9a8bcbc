"""A service with a toy engine, whose pictures are 8 x 8 pixels, and a server for it on a free port."""

import contextlib
import threading
import time

import torch
import uvicorn
from toy_bundle import DIGITS, LABELS, make_session

from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.serving.app import create_app
from zeus_trt.serving.image_model import BundleModel
from zeus_trt.serving.service import Service

PIXELS = TensorSpec("sample", "float32", ("batch", 3, 8, 8), "latents")
POST = "/v1/images/generations"


class Gated:
    """A toy engine that waits until it is opened."""

    def __init__(self):
        self.opened, self.entered = threading.Event(), threading.Event()
        self.opened.set()

    def __call__(self, sample, timestep, class_labels):
        self.entered.set()
        assert self.opened.wait(60)
        return torch.tanh(sample * 0.5 + (class_labels * 1.3).sin()[:, None, None, None])


def make_service(engine=None, **settings):
    """A service of the toy."""

    def open_model():
        session = make_session(LABELS, labels=DIGITS, engine=engine or Gated(), latents=PIXELS)
        return BundleModel(session, 2.0, **settings)

    return Service(open_model)


@contextlib.contextmanager
def run_in_thread(service, limits=None, **settings):
    """Runs a real server; gives its port."""
    config = uvicorn.Config(create_app(service, limits), port=0, log_level="critical", ws="none", **settings)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(30)
