"""The engines of a session in the places of a pipeline's networks."""

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.pipelines.denoisers import find_denoisers, list_parts
from zeus_trt.runtime.pipelines.engine_call import CheckedCall, EngineCall
from zeus_trt.runtime.pipelines.side_effects import unwrap
from zeus_trt.runtime.session import Session
from zeus_trt.zeus_graph.counts import show


class SessionCalls(AbstractContextManager):
    """The calls of a pipeline's networks that engines answer; leaving its ``with`` block closes those it opened.

    Args:
        pipeline: The pipeline.
        session: Of the denoiser's bundle; the networks that have bundles in it get engines of the same kind.
        compares: Whether outputs and weights are compared.
        adds_adapter: The engine of the denoiser has an adapter that the pipeline lacks: outputs are not compared.

    Raises:
        ZeusError: The pipeline has no such network, or another one, or an engine does not open.
    """

    def __init__(self, pipeline: Any, session: Session, compares: bool, adds_adapter: bool = False):
        self.session, self._pipeline = session, pipeline
        self._compares, self._adds_adapter = compares, adds_adapter
        self._calls: dict[tuple[str, bool], CheckedCall] = {}
        self._sessions = {session.bundle.manifest.component: session}
        with ExitStack() as opened:
            for name in session.bundle.manifest.networks:
                self._sessions[name] = opened.enter_context(
                    Session(session.bundle.open_network(name), **session.options)
                )
            for name in self._sessions:
                self._calls[name, False] = self._make(name, self._find_module(name))
            self._opened = opened.pop_all()

    def find(self, name: str, module: Any, letter: str) -> CheckedCall | None:
        """What answers the calls of a module in a step of that letter; None if the module itself does."""
        if name not in self._sessions:
            return None
        manifest = self._sessions[name].bundle.manifest
        known = self._calls.get((name, False))
        is_same = known and known.module is module and type(unwrap(module)).__name__ == manifest.denoiser_class
        if not is_same:
            self._calls = {key: call for key, call in self._calls.items() if key[0] != name}
            self._calls[name, False] = self._make(name, module)
        key = name, letter == "Q" and name == self.session.bundle.manifest.component
        if key not in self._calls:
            self._calls[key] = self._make(name, module, is_quantized=True)
        return self._calls[key]

    def expect_change(self) -> None:
        """Has the next calls look at their modules: these may have changed."""
        for call in self._calls.values():
            call.expect_change()

    def __exit__(self, *error: Any) -> None:
        self._opened.close()

    def _find_module(self, name: str) -> Any:
        module = list_parts(self._pipeline).get(name)
        if not isinstance(module, torch.nn.Module):
            raise ZeusError(
                f"engine: got a bundle of a {name}; expected one of {', '.join(find_denoisers(self._pipeline))}, the "
                f"denoisers of this {type(self._pipeline).__name__}. Give the bundle of this pipeline."
            )
        return module

    def _make(self, name: str, module: Any, is_quantized: bool = False) -> CheckedCall:
        session = self._sessions[name]
        pixels = getattr(self._pipeline, "vae_scale_factor", None)
        chosen = session.quantized if is_quantized else session.engine
        adds = self._adds_adapter and session is self.session
        bundle = session.bundle.with_adapter(None) if adds else session.bundle
        engine = EngineCall(chosen, bundle.fused_manifest, type(unwrap(module)), pixels, bundle.adapter)
        return CheckedCall(engine, module, self._compares and not is_quantized, adds)


def choose_adapter(engine: Session | str | Path | Bundle | None, adapter: Any) -> Session | Bundle:
    """The bundle with its adapter, or a session that has it; raises ZeusError for any other."""
    if isinstance(engine, str | Path | Bundle):
        return (engine if isinstance(engine, Bundle) else Bundle.open(engine)).with_adapter(adapter)
    if engine is None or engine.bundle.adapter != engine.bundle.with_adapter(adapter).adapter:
        beside = "a session without it" if engine else "no engine"
        raise ZeusError(f"adapter: got {show(adapter)} beside {beside}; expected its bundle. Give that as engine.")
    return engine
