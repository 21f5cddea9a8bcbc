"""Reading a bundle: the folder that export writes."""

from dataclasses import dataclass
from pathlib import Path

from zeus_trt.errors import ZeusError
from zeus_trt.files import digest_file
from zeus_trt.runtime.manifest import FILE_NAME, ONNX_FILE, SCHEDULER_FILE, Manifest, solver_name


@dataclass(frozen=True)
class Bundle:
    """A folder whose files are all there and unchanged since export."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> "Bundle":
        """Reads the manifest and checks size and SHA-256 of every file it names.

        Raises:
            ZeusError: No bundle, an unknown format, or a file that is missing or changed.
        """
        path = Path(path)
        try:
            manifest = Manifest.from_json((path / FILE_NAME).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ZeusError(
                f"bundle: got {path} without a readable {FILE_NAME}; expected a folder written by `zeus-trt export`. "
                "Export the model, or give another folder."
            ) from error
        for name, entry in manifest.files.items():
            file = path / name
            if not file.is_file():
                raise ZeusError(
                    f"bundle: got {path} without {name}; expected every file of the manifest. Copy the whole folder, "
                    "or export the model again."
                )
            size = file.stat().st_size
            if size != entry.size or digest_file(file) != entry.sha256:
                raise ZeusError(
                    f"bundle: got {name} with other content ({size} bytes) than the exported file; expected "
                    f"{entry.size} bytes, SHA-256 {entry.sha256[:12]}... Copy the folder again, or export the model "
                    "again."
                )
        return cls(path, manifest)

    @property
    def onnx(self) -> Path:
        """The denoiser's graph; its weights lie beside it."""
        return self.path / ONNX_FILE

    @property
    def scheduler_config(self) -> Path:
        """The diffusers scheduler config of the checkpoint."""
        return self.path / SCHEDULER_FILE

    def solver_file(self, num_steps: int) -> Path:
        """Where the traced solver for ``num_steps`` lies, if the bundle has it."""
        return self.path / solver_name(num_steps)

    def describe(self) -> str:
        """What the bundle holds, for a person."""
        manifest = self.manifest
        errors = (f"{'x'.join(map(str, v.shape))}: {v.relative_error:.1e}" for v in manifest.verification)
        lines = {
            "model": f"{manifest.model}/{manifest.component} ({manifest.denoiser_class})",
            "weights": f"sha256 {manifest.weights_sha256[:16]}",
            "predicts": manifest.prediction_type,
            "guidance": manifest.guidance,
            "inputs": "\n               ".join(str(spec) for spec in manifest.inputs),
            "output": str(manifest.output),
            "labels": f"0..{manifest.labels.count - 1}, null {manifest.labels.null}" if manifest.labels else "none",
            "error to eager": ", ".join(errors) or "not measured",
            "made by": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
            "files": ", ".join(f"{name} ({entry.size / 2**20:.1f} MiB)" for name, entry in manifest.files.items()),
        }
        return "\n".join(f"{name:<15}{value}" for name, value in lines.items())
