"""A subject of toy engines on the digits bundle: comparisons that cost nothing."""

import torch

from zeus_trt.evaluation.comparison import EngineFacts
from zeus_trt.evaluation.subject import Subject
from zeus_trt.evaluation.workload import SessionWorkload
from zeus_trt.runtime import Bundle


class ToyEngine:
    """A denoiser that bends its input.

    Args:
        backend: What it says that it is.
        before: Called before every call.
    """

    def __init__(self, backend="onnxruntime", before=None):
        self.backend = backend
        self.before = before
        self.calls = 0

    def __call__(self, sample, timestep, class_labels):
        if self.before:
            self.before()
        self.calls += 1
        return torch.tanh(sample) * (1 + timestep[:, None, None, None] / 2000) + 0.1 * torch.sin(3 * sample)


def make_subject(bundle, seed=0, denoiser_class=None, **engines):
    """A subject whose engines are given by backend, ``_`` for ``-``."""
    engines = {name.replace("_", "-"): engine for name, engine in engines.items()} or {"onnxruntime": ToyEngine()}
    workload = SessionWorkload(Bundle.open(bundle), None, 1.0, seed, engines)
    facts = {name: EngineFacts({"backend": name}) for name in engines}
    return Subject("toy", workload, facts, tuple(engines), denoiser_class=denoiser_class)
