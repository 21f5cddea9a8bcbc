"""Reading a bundle: the folder that export writes."""

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError, escape
from zeus_trt.files import digest_file, recover
from zeus_trt.runtime.bundle import adapter as adapters
from zeus_trt.runtime.bundle.adapter import Adapter
from zeus_trt.runtime.bundle.foreign import Foreign
from zeus_trt.runtime.bundle.manifest import (
    FILE_NAME,
    NETWORKS,
    SCHEDULER_FILE,
    FileEntry,
    Graph,
    Manifest,
    solver_name,
)
from zeus_trt.runtime.bundle.mixture import Choice, Mixture, mix, read_choice
from zeus_trt.runtime.bundle.onnx_references import list_references
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.scheduler import parse_config
from zeus_trt.zeus_graph.counts import show

_Stamp = tuple[int, ...]
_COPY = "Copy the whole folder, or export the model again."


@dataclass(frozen=True)
class Bundle:
    """A folder whose listed files are all there and unchanged since export. Other files in it are not read here: its
    engines have their own records.

    Small files are read, compared with the manifest and used as one: the bytes that were checked are those in use.
    The graph and its weights are too large to hold: they are compared when the bundle opens, and once more before an
    engine reads them if their size, times or place on the disk have changed since.

    Args:
        path: The folder.
        manifest: What it holds.
        adapter: What the weights of its engines get in addition.
    """

    path: Path
    manifest: Manifest
    adapter: Adapter | Mixture | None = None
    _stamps: dict[str, _Stamp] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: str | Path) -> "Bundle":
        """Reads the manifest and checks size and SHA-256 of every file it names.

        Raises:
            ZeusError: No bundle, an unknown format, a file that is missing or changed or leaves the folder, or a graph
                that reads other files than those of the manifest.
        """
        if not isinstance(path, str | os.PathLike):
            raise ZeusError(f"bundle: got {type(path).__name__}; expected the path of a folder. Change it.")
        path = Path(path)
        recover(path)
        try:
            content = strict_json.read_bytes(_locate(path, FILE_NAME), "manifest")
        except (OSError, ValueError) as error:
            raise ZeusError(
                f"bundle: got {path} without a readable {FILE_NAME}; expected a folder written by `zeus-trt export`. "
                "Export the model, or give another folder."
            ) from error
        bundle = cls(path, Manifest.from_json(content))
        for name in bundle.manifest.files:
            bundle._check(name)
        bundle._check_references()
        return bundle

    def graph(self, precision: str | None = None) -> Path:
        """The denoiser's ONNX graph in a precision, by default the first, with its weights beside it.

        Raises:
            ZeusError: The bundle has no such graph, or a file of it has changed since the bundle was opened.
        """
        graph = self.manifest.find_graph(precision).file
        for name in (name for name in self.manifest.files if name.startswith(graph)):
            self.file(name)
        return self.path / graph

    def file(self, name: str) -> Path:
        """A large file of the manifest, checked again if it has changed since the bundle was opened; or ZeusError."""
        if self._stamps.get(name) != _stamp(self._find(name)):
            self._check(name)
        return self.path / name

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that are stored in it."""
        return adapters.list_names(self.manifest.files)

    def with_adapter(self, choice: Choice | None) -> "Bundle":
        """The same bundle, whose engines have an adapter in their weights, or several; None for none.

        Args:
            choice: A name, ``ink``; names with scales as ``set_adapters`` takes them, ``ink:0.6,style:0.4``, or
                ``{"ink": 0.6, "style": 0.4}``. A name alone has the scale that it is stored with.

        Raises:
            ZeusError: The bundle has no such adapter, or a scale is no number or 0.
        """
        if choice is None:
            return replace(self, adapter=None)
        return replace(self, adapter=mix(read_choice(choice), self._read_adapter))

    def _read_adapter(self, name: str) -> Adapter:
        if name not in self.adapters:
            raise ZeusError(
                f"adapter: got {show(name)} for a bundle with {', '.join(self.adapters) or 'none'}; expected one "
                f"that it holds. Make it: zeus-trt adapter {self.path} FILE -o NAME."
            )
        return Adapter.from_json(self.read(f"{adapters.place_of(name)}/{adapters.FILE_NAME}"))

    @property
    def fused_manifest(self) -> Manifest:
        """The manifest of what its engines compute: with its adapter among the active ones."""
        if (one := self.adapter) is None:
            return self.manifest
        return replace(self.manifest, adapters={**one.scales}, adapters_sha256=one.sha256)

    def open_network(self, name: str) -> "Bundle":
        """The bundle of a network beside the denoiser, one of the manifest's ``networks``; errors as in ``open``."""
        return Bundle.open(self._find(f"{NETWORKS}/{name}/{FILE_NAME}").parent)

    def find_quantized(self) -> Precision:
        """The precision of the graph that answers the ``Q`` steps of plans.

        Raises:
            ZeusError: The bundle has no such graph.
        """
        if (precision := self.manifest.quantized) is None:
            raise ZeusError(
                f"plan: got Q for {self.path}, which has no quantized graph; expected one in int8 or fp8. Add it: "
                f"zeus-trt quantize {self.path}. Or write F."
            )
        return precision

    @property
    def scheduler_config(self) -> dict[str, Any]:
        """The diffusers scheduler config of the checkpoint; errors as in ``read``."""
        return parse_config(self.read(SCHEDULER_FILE))

    def has_solver(self, num_steps: int) -> bool:
        """Whether the bundle stores the traced solver for ``num_steps``."""
        return solver_name(num_steps) in self.manifest.files

    def read_solver(self, num_steps: int) -> bytes:
        """The file of the traced solver for ``num_steps``; errors as in ``read``."""
        return self.read(solver_name(num_steps))

    def read(self, name: str) -> bytes:
        """The content of a small file of the manifest.

        Raises:
            ZeusError: The manifest does not list the file, or the file is missing, too large or changed.
        """
        entry = self.manifest.files.get(name)
        if entry is None:
            raise ZeusError(
                f"bundle: got no {name} in the manifest of {self.path}; expected a file that it lists. "
                "Export the model again."
            )
        content = strict_json.read_bytes(self._find(name), name, advice=_COPY)
        if len(content) != entry.size or hashlib.sha256(content).hexdigest() != entry.sha256:
            raise _refuse_content(name, len(content), entry)
        return content

    def describe(self) -> str:
        """The bundle's content for a person, a line per fact."""
        manifest = self.manifest
        lines = {
            "model": [f"{manifest.model}/{manifest.component} ({manifest.denoiser_class})"],
            "weights": [f"sha256 {manifest.weights_sha256[:16]}"],
            "predicts": [manifest.prediction_type],
            "guidance": [manifest.guidance],
            "inputs": [str(spec) for spec in manifest.inputs],
            "output": [str(manifest.output)],
            "adapters": [", ".join(self.adapters) or "none"],
            "networks": [", ".join(manifest.networks) or "none"],
            "labels": [f"0..{manifest.labels.count - 1}, null {manifest.labels.null}" if manifest.labels else "none"],
            "error to eager": [_list_errors(one) for one in manifest.verified],
            "made by": [", ".join(f"{name} {version}" for name, version in manifest.versions.items())],
            "files": [", ".join(f"{name} ({entry.size / 2**20:.1f} MiB)" for name, entry in manifest.files.items())],
        }
        between = "\n" + " " * 15
        return "\n".join(f"{name:<15}{between.join(map(escape, values))}" for name, values in lines.items())

    def _find(self, name: str) -> Path:
        """Where a listed file is; raises ZeusError where it is missing or leaves the folder."""
        try:
            return _locate(self.path, name)
        except FileNotFoundError as error:
            raise ZeusError(
                f"bundle: got {self.path} without {name}; expected every file of the manifest. {_COPY}"
            ) from error
        except (OSError, ValueError) as error:
            raise ZeusError(
                f"bundle: got {name} in {self.path}, which cannot be read ({error}); expected a file inside the "
                "folder. Copy the folder with files in the place of links, or export the model again."
            ) from error

    def _check(self, name: str) -> None:
        """Compares a file with the manifest, and remembers its stamp."""
        file, entry = self._find(name), self.manifest.files[name]
        before = _stamp(file)
        size = file.stat().st_size
        if size != entry.size or digest_file(file) != entry.sha256 or _stamp(file) != before:
            raise _refuse_content(name, size, entry)
        self._stamps[name] = before

    def _check_references(self) -> None:
        for graph in self.manifest.graphs:
            try:
                references = list_references(self._find(graph.file))
            except (OSError, ValueError) as error:
                raise ZeusError(
                    f"bundle: got {graph.file}, which cannot be read ({error}); expected an ONNX graph. "
                    "Export the model again."
                ) from error
            folder = graph.file.rpartition("/")[0]
            if other := sorted(name for name in references if f"{folder}/{name}" not in self.manifest.files):
                raise ZeusError(
                    f"bundle: got a graph that reads {', '.join(other)}; expected files that the manifest lists. "
                    "Export the model again."
                )


def _list_errors(graph: Graph | Foreign) -> str:
    reference = next(
        (record.setting["reference"] for record in graph.verification if "reference" in record.setting), ""
    )
    errors = (f"{'x'.join(map(str, record.shape))}: {record.relative_error:.1e}" for record in graph.verification)
    return f"{graph.precision}{reference and f' to {reference}'}: {', '.join(errors) or 'not measured'}"


def _locate(folder: Path, name: str) -> Path:
    """A file of a folder.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is outside of the folder, once links are followed.
        OSError: The path cannot be followed.
    """
    try:
        root, file = folder.resolve(strict=True), (folder / name).resolve(strict=True)
    except RuntimeError as error:  # a link to itself, before Python 3.13
        raise ValueError(error) from error
    if not file.is_relative_to(root):
        raise ValueError(f"a link leads to {file}")
    if not file.is_file():
        raise FileNotFoundError(file)
    return folder / name


def _stamp(file: Path) -> _Stamp:
    """Whatever of a file changes when its content does, without reading it."""
    state = file.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _refuse_content(name: str, size: int, entry: FileEntry) -> ZeusError:
    return ZeusError(
        f"bundle: got {name} with other content ({size} bytes) than the exported file; expected {entry.size} bytes, "
        f"SHA-256 {entry.sha256[:12]}... Copy the folder again, or export the model again."
    )
