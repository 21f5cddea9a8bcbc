"""Export in one call, of whatever a model is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_trt.errors import ZeusError

if TYPE_CHECKING:
    from zeus_trt.export.profile import SizeRange
    from zeus_trt.runtime import Bundle


def export(
    model: Any,
    output: str | Path,
    *,
    scheduler: Any = None,
    config: str | Path | None = None,
    backends: Sequence[str] = (),
    gpu: str | Sequence[str] | None = None,
    ranges: "Mapping[str, SizeRange] | None" = None,
    **options: Any,
) -> "Bundle":
    """Exports a model to a verified bundle: what ``zeus-trt export`` does, and ``zeus-trt import`` for ``.onnx`` files.

    Args:
        model: A pipeline, as an object, a folder or an id of the hub; a bare model folder; a denoiser of diffusers with
            its ``scheduler``; a file of weights (``.safetensors``, ``.gguf``) with its ``config``; or an ONNX graph of
            others with ``latents`` and ``timestep``.
        output: The bundle's folder, which appears when everything in it is written and verified.
        scheduler: A diffusers scheduler, its config or its class; of a denoiser or a graph.
        config: A pipeline's folder, or a bare model folder, whose denoiser has the weights of ``model``.
        backends: Engines to build: ``tensorrt-rtx``, ``tensorrt``, ``aot-inductor``.
        gpu, ranges: As in ``build_engine``.
        **options: As in ``ExportOptions``, ``sizes``, ``precision``, ``overwrite`` ...; of a graph as in
            ``ImportOptions``.

    Raises:
        ZeusError: A bundle, which is exported already; an option that has no effect on such a model; or as
            ``export_with_engines`` and ``import_model``.
    """
    from zeus_trt.export.build import build_engine, check_backend
    from zeus_trt.export.export import export_with_engines
    from zeus_trt.export.importing import import_model
    from zeus_trt.export.loading import BUNDLE, find_kind
    from zeus_trt.export.source import open_source

    name = str(model) if isinstance(model, str | Path) else ""
    if name.endswith(".onnx"):
        if config is not None:
            raise ZeusError("config: got it for an ONNX graph, which has its weights; expected none. Leave it out.")
        for backend in backends:
            check_backend(backend, gpu)
        bundle = import_model(name, output, scheduler=scheduler, **options)
        for backend in backends:
            build_engine(bundle, backend, gpu=gpu, ranges=ranges)
        return bundle
    if name and find_kind(name) == BUNDLE:
        raise ZeusError(f"model: got {name}, a bundle; expected a model. Build its engines: zeus-trt build {name}.")
    source = open_source(model, config, scheduler)
    return export_with_engines(source, output, backends, gpu=gpu, ranges=ranges, **options)[0]
