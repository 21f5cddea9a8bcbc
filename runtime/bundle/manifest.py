"""The manifest of a bundle: what its engine takes, gives, and was made from."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError, escape
from zeus_trt.runtime.bundle.branch import Branch
from zeus_trt.runtime.bundle.foreign import Foreign
from zeus_trt.runtime.bundle.layout import Layout
from zeus_trt.runtime.bundle.manifest_check import check_manifest, check_sizes
from zeus_trt.runtime.bundle.precision import FLOATS, QUANTIZED, Precision
from zeus_trt.runtime.bundle.relation import Relation
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec
from zeus_trt.runtime.bundle.verification import Verification

FORMAT = 2
DIGEST = "manifest_sha256"
FILE_NAME = "manifest.json"
SCHEDULER_FILE = "scheduler/scheduler_config.json"
NETWORKS = "networks"
"""Folder of the bundles of networks beside the denoiser."""

_THING = "manifest"
_ADVICE = "Export the model again."
_AGAIN = "export the model again: `zeus-trt export MODEL -o BUNDLE --overwrite`."
_ZEROS = "0" * 64
_SEAL = re.compile(rb'("%b"\s*:\s*")[0-9a-f]{64}' % DIGEST.encode())
_SHA256 = re.compile(r"[0-9a-f]{64}")


def solver_name(num_steps: int) -> str:
    """File of the traced solver for ``num_steps`` steps of the checkpoint's scheduler."""
    return f"solvers/{num_steps}.json"


def graph_name(precision: str) -> str:
    """File of the denoiser's graph in a precision; its weights are beside it, in the same name with ``.data``."""
    return f"graphs/{precision}/denoiser.onnx"


@dataclass(frozen=True)
class Labels:
    """Class labels of a class-conditional model: 0..count-1, and the null class of guidance."""

    count: int
    null: int

    def __post_init__(self) -> None:
        check_sizes("labels", self.count)
        if not 0 <= self.null <= self.count:
            raise ValueError(f"labels have the null label {self.null}, which is not in 0..{self.count}")


@dataclass(frozen=True)
class Graph:
    """The denoiser in one precision. All graphs of a bundle have the same inputs and output.

    Args:
        precision: Of its weights.
        keep_fp32: Patterns of the modules that run in float32 all the same; of a quantized graph, in float.
        verification: How far its outputs are from those of the eager model, or of the graph that it was made from.
    """

    precision: Precision
    keep_fp32: tuple[str, ...] = ()
    verification: tuple[Verification, ...] = ()

    @property
    def file(self) -> str:
        """Its place in the bundle."""
        return graph_name(self.precision)


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and SHA-256 of a file of the bundle."""

    size: int
    sha256: str

    def __post_init__(self) -> None:
        if not 0 <= self.size < 1 << 40 or not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"{self.size} bytes and SHA-256 {self.sha256!r} are no size and digest")


@dataclass(frozen=True)
class Manifest:
    """Everything a runtime must know before it opens an engine.

    The border of every graph is the solver's: ``inputs[0]`` is the latents as the solver steps them, ``inputs[1]`` the
    solver's timestep, float32 of shape (batch,); the others are conditioning. Floating-point inputs and the output are
    float32, whatever the graph computes in.

    Args:
        model: Name of the model.
        component: The denoiser's name in its pipeline.
        denoiser_class: Its class.
        denoiser_config: Its config.
        weights_sha256: Digest of its weights, without adapters.
        prediction_type: What it predicts, in diffusers' words.
        inputs: Latents, timestep, conditioning.
        output: The prediction, with the axes of the latents.
        symbols: The sizes that vary.
        labels: The class labels, of a class-conditional model.
        graphs: One per precision; the first is used where none is asked for.
        versions: Of the libraries that the export used.
        pipeline_class: Class of the pipeline that it was captured from.
        constants: Arguments of the denoiser that are no tensors, baked into the graphs, by their place in its
            ``forward``.
        guidance: How the pipeline guides: ``batched`` (one call, the batch doubled), ``sequential`` (a call per
            branch), ``embedded`` (the denoiser reads the scale as its input ``guidance``) or ``none``.
        guidance_factor: What the scale is multiplied with for that input: 1 for FLUX, 1000 for HunyuanVideo; None if
            it is not known.
        timestep_scale: What the graphs multiply the solver's timestep with (0.001 for FLUX).
        constant_axis: Axis along which the graphs append the input of role ``constant`` to the latents, if any.
        variance_axis: Axis along which the denoiser itself returns a learned variance after its prediction, which the
            graphs drop; None without one.
        unsteppable: Why no solver can step the graphs, whose border is then the denoiser's own; empty if one can.
        strength_rule: How the pipeline's family rounds an image-to-image strength (``STRENGTH_RULES``), None where it
            takes no strength.
        relations: What the sizes must satisfy together, such as ``height > width`` where the model branches on it.
        adapters: The scale of each adapter that was active or fused in the exported denoiser, by name.
        adapters_sha256: Digest of the weights and scales of those that were active; empty without one.
        layout: How the output is cut into what the network answers, where it answers several tensors; None where the
            output is what it answers.
        networks: Networks that the denoiser reads at each step, which have bundles in this one.
        masks: Inputs that are ones where the pipeline passes none.
        is_bare: Whether the denoiser answers with its prediction alone.
        branches: Conditions on values of which the graphs have one side: they return NaN where it is the other.
        foreign: The engine that others compiled, of a bundle without graphs.
        files: Size and digest of every file of the export, but for those bundles.
    """

    model: str
    component: str
    denoiser_class: str
    denoiser_config: dict[str, Any]
    weights_sha256: str
    prediction_type: str
    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    symbols: tuple[SymbolSpec, ...]
    labels: Labels | None
    graphs: tuple[Graph, ...]
    versions: dict[str, str]
    pipeline_class: str | None = None
    constants: dict[str, Any] = field(default_factory=dict)
    guidance: str = "batched"
    guidance_factor: float | None = None
    timestep_scale: float = 1.0
    constant_axis: int | None = None
    variance_axis: int | None = None
    unsteppable: str = ""
    strength_rule: str | None = None
    relations: tuple[Relation, ...] = ()
    adapters: dict[str, float] = field(default_factory=dict)
    adapters_sha256: str = ""
    layout: Layout | None = None
    networks: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    is_bare: bool = False
    branches: tuple[Branch, ...] = ()
    foreign: Foreign | None = None
    files: dict[str, FileEntry] = field(default_factory=dict)

    @property
    def latents(self) -> TensorSpec:
        """The noisy sample: the first input."""
        return self.inputs[0]

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of the latents of one image, without the batch axis.

        Raises:
            ZeusError: The latents have an axis that varies.
        """
        axes = self.latents.axes[1:]
        if moving := [axis for axis in axes if isinstance(axis, str)]:
            raise ZeusError(
                f"latents: got {self.latents}, whose {', '.join(moving)} may vary; expected fixed sizes. "
                "Give the noise, or call the engine yourself."
            )
        return tuple(int(size) for size in axes)

    def find_graph(self, precision: str | None = None) -> Graph:
        """The graph in a precision; by default the first.

        Raises:
            ZeusError: The bundle has none in that precision, or none at all.
        """
        if self.foreign:
            raise ZeusError(
                f"graph: got a bundle of a compiled engine alone ({self.foreign.backend}); expected one with a graph, "
                "which this needs. Import the graph or the program that the engine was compiled from."
            )
        found = next((graph for graph in self.graphs if precision in (None, graph.precision)), None)
        if found is None:
            there = ", ".join(graph.precision for graph in self.graphs)
            other = "quantize the bundle" if precision in QUANTIZED else f"export the model in {precision}"
            raise ZeusError(
                f"precision: got {precision} for a bundle with graphs in {there}; expected one of these. Choose one, "
                f"or {other}."
            )
        return found

    def find_precision(self, precision: str | None = None) -> Precision:
        """That of the engine which others compiled, or of the graph in a precision; errors as in ``find_graph``."""
        if self.foreign and precision in (None, self.foreign.precision):
            return self.foreign.precision
        return self.find_graph(precision).precision

    @property
    def precision(self) -> Precision:
        """That of the first graph, or of the engine which others compiled."""
        return self.find_precision()

    @property
    def base_backend(self) -> str:
        """The backend that runs without a build."""
        return self.foreign.backend if self.foreign else "onnxruntime"

    @property
    def quantized(self) -> Precision | None:
        """That of the graph that answers the ``Q`` steps of plans: the first in int8 or fp8."""
        return next((graph.precision for graph in self.graphs if graph.precision not in FLOATS), None)

    @property
    def verified(self) -> "tuple[Graph | Foreign, ...]":
        """Its graphs, or the engine in their place."""
        return (self.foreign,) if self.foreign else self.graphs

    def describe(self) -> str:
        """Denoiser, inputs that vary, and the worst error to eager, on one line."""
        floats = [one for one in self.verified if one.precision not in QUANTIZED]
        records = [record for one in floats for record in one.verification]
        worst = max((record.relative_error for record in records), default=None)
        source = next((record.setting["reference"] for record in records if "reference" in record.setting), "eager")
        symbols = ", ".join(symbol.name for symbol in self.symbols)
        error = "not measured" if worst is None else f"at most {worst:.1e}"
        where = f" where {' and '.join(map(str, self.relations))}" if self.relations else ""
        return escape(f"{self.denoiser_class}, {symbols} may vary{where}, relative error to {source} {error}")

    def to_json(self) -> str:
        """The manifest as JSON text, with a digest of itself.

        The digest finds accidental changes. It is no signature: who changes the manifest can make another digest.
        """
        rare = ("masks", "is_bare", "branches", "foreign")  # older readers refuse these names
        content = {name: value for name, value in asdict(self).items() if value or name not in rare}
        return seal({"format": FORMAT, **content})

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """Reads what ``to_json`` wrote.

        Raises:
            ZeusError: No manifest, one of a format this version does not know, one that was changed, or one whose
                parts do not fit each other.
        """
        content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        data = strict_json.decode(content, _THING, advice=_ADVICE)
        strict_json.check_format(data, FORMAT, _THING, advice=_AGAIN)
        found = data.pop(DIGEST, None)
        if found is None or found != _digest(content):
            reason = f"no {DIGEST}" if found is None else f"a {DIGEST} of other content"
            raise ZeusError(
                f"{_THING}: got {reason}; expected the digest that `zeus-trt export` wrote. The file was changed, or "
                f"made by an older zeus-trt. {_ADVICE}"
            )
        del data["format"]
        manifest = strict_json.build(data, cls, _THING, advice=_ADVICE)
        try:
            check_manifest(manifest)
            needed = (*(graph.file for graph in manifest.graphs), SCHEDULER_FILE)
            if missing := [name for name in needed if name not in manifest.files]:
                raise ValueError(f"its files lack {', '.join(missing)}")
        except ValueError as error:
            raise ZeusError(
                f"{_THING}: got parts that do not fit each other ({error}); expected a zeus-trt manifest. {_ADVICE}"
            ) from error
        return manifest


def seal(content: Mapping[str, Any]) -> str:
    """JSON text of a manifest's content with its digest, the SHA-256 of the text with zeros in the digest's place."""
    text = json.dumps({DIGEST: _ZEROS, **content}, indent=2, allow_nan=False) + "\n"
    return text.replace(_ZEROS, _digest(text.encode()), 1)


def _digest(content: bytes) -> str:
    return hashlib.sha256(_SEAL.sub(rb"\g<1>" + _ZEROS.encode(), content, count=1)).hexdigest()
