"""An engine's record and file for tests; the file holds no engine."""

from hashlib import sha256

from zeus_trt.runtime.bundle.engine_profile import ShapeRange
from zeus_trt.runtime.bundle.engine_record import FILE_NAME, EngineRecord, EngineSpec, Target
from zeus_trt.runtime.bundle.engine_trust import sign
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.signing_key import make_key

SPEC = EngineSpec(
    backend="tensorrt",
    backend_version="11.4.0.1",
    precision=Precision.FP16,
    profile={"sample": ShapeRange((1, 4, 8, 8), (2, 4, 8, 8), (4, 4, 8, 8)), "timestep": ShapeRange((1,), (2,), (4,))},
    target=Target(("sm_86",), "NVIDIA RTX A6000"),
    graph_sha256="a" * 64,
    weights_sha256="b" * 64,
    options={"optimization_level": 3, "version_compatible": False, "hardware_compatible": False},
    exporter_version="0.1.0",
)
ASKED = EngineSpec("tensorrt", "11.4.0.1", Precision.FP16, {}, Target(("sm_86",)), "a" * 64, "b" * 64)


def make_record(spec=SPEC, data=b"engine", seconds=1.5):
    return EngineRecord(spec, "denoiser.engine", len(data), sha256(data).hexdigest(), seconds)


def write_engine(bundle, spec=SPEC, data=b"engine", signed=True):
    """An engine in a bundle's folder, as if built here; its bytes are never deserialised here."""
    record = make_record(spec, data)
    if signed:
        record = sign(record, make_key())
    folder = bundle / "engines" / record.key
    folder.mkdir(parents=True)
    (folder / record.file).write_bytes(data)
    (folder / FILE_NAME).write_text(record.to_json())
    return folder / record.file
