"""An engine that others compiled: what it says of itself, and its place in a bundle."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from zeus_trt import __version__
from zeus_trt.errors import ZeusError
from zeus_trt.export.foreign_model import BATCH, ForeignModel
from zeus_trt.export.foreign_wiring import Wiring
from zeus_trt.export.parameterization import Parameterization
from zeus_trt.files import digest_file
from zeus_trt.runtime.bundle.engine_folder import FOLDER, EngineFile
from zeus_trt.runtime.bundle.engine_profile import Profile, ShapeRange
from zeus_trt.runtime.bundle.engine_record import FILE_NAME, EngineRecord, EngineSpec, Target
from zeus_trt.runtime.bundle.engine_trust import sign
from zeus_trt.runtime.bundle.foreign import Foreign
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.signing_key import make_key
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.engines.engine import Engine
from zeus_trt.runtime.engines.foreign import ForeignEngine, open_inner

if TYPE_CHECKING:
    from zeus_trt.export.foreign_findings import Findings

_MOST = (1 << 31) - 1  # of a size without a limit


@dataclass(frozen=True, kw_only=True)
class CompiledModel(ForeignModel):
    """An engine, and what was read of it.

    Args:
        kind, version: The backend, and the version of its library here.
        stored: The precision.
        target: What it runs on.
        device: Where that is.
        size, sha256: Of its file.
    """

    kind: str
    version: str
    stored: Precision
    target: Target
    device: str
    size: int
    sha256: str
    _opened: dict[int, Engine] = field(default_factory=dict, repr=False, compare=False)

    @property
    def backend(self) -> str:
        return self.kind

    @property
    def digest(self) -> str:
        return self.sha256

    @property
    def precision(self) -> Precision:
        return self.stored

    def compute(
        self, wiring: Wiring, parameterization: Parameterization, inputs: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        foreign = self.describe(wiring, parameterization)
        if foreign.place not in self._opened:
            file = EngineFile(self.path, self._record({}, self.path.name))
            self._opened[foreign.place] = open_inner(foreign, file, self.device)
        return ForeignEngine(self._opened[foreign.place], foreign, wiring.inputs)(**inputs).cpu()

    def complete(self, manifest: Manifest, found: "Findings", folder: Path) -> Manifest:
        for engine in self._opened.values():
            engine.close()
        foreign = replace(self.describe(found.wiring, found.trial.parameterization), verification=found.records)
        record = self._record(_list_ranges(manifest), f"denoiser{self.path.suffix.lower()}")
        place = folder / FOLDER / record.key
        place.mkdir(parents=True)
        shutil.copyfile(self.path, place / record.file)
        if digest_file(place / record.file) != self.sha256:
            raise ZeusError(f"model: got {self.path.name}, which changed meanwhile; expected one file. Try again.")
        (place / FILE_NAME).write_text(sign(record, make_key()).to_json(), encoding="utf-8")
        return replace(manifest, foreign=foreign)

    def describe(self, wiring: Wiring, parameterization: Parameterization) -> Foreign:
        """What a bundle says of it."""
        rank = len(wiring.timestep.axes)
        time = replace(wiring.timestep, axes=(BATCH, *[1] * (rank - 1)) if rank else (), role="timestep")
        specs = (replace(wiring.latents, role="latents"), time, *wiring.conditioning)
        own = {spec.name: spec for spec in specs}
        return Foreign(
            self.kind,
            self.stored,
            self.sha256,
            tuple(own[spec.name] for spec in self.inputs),
            TensorSpec(wiring.output, "float32", wiring.latents.axes, "output"),
            parameterization.border,
            self.outputs.index(wiring.output),
            wiring.by_rows,
        )

    def _record(self, profile: Profile, file: str) -> EngineRecord:
        spec = EngineSpec(
            self.kind, self.version, self.stored, profile, self.target, self.sha256, self.sha256,
            exporter_version=__version__,
        )  # fmt: skip
        return EngineRecord(spec, file, self.size, self.sha256)


def _list_ranges(manifest: Manifest) -> Profile:
    """The shapes of the bundle's inputs that the engine takes."""
    ends = {symbol.name: (symbol.minimum, symbol.observed[0], symbol.maximum or _MOST) for symbol in manifest.symbols}

    def measure(spec: TensorSpec, end: int) -> tuple[int, ...]:
        return tuple(ends[axis][end] if isinstance(axis, str) else axis for axis in spec.axes)

    return {spec.name: ShapeRange(*(measure(spec, end) for end in range(3))) for spec in manifest.inputs}
