"""Every family, exported and built for real by TensorRT-RTX, which needs no GPU for it."""

import pytest
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.export.build import build_engine
from zeus_trt.export.profile import make_profile
from zeus_trt.runtime.bundle.engine_folder import list_engines
from zeus_trt.runtime.engines.tensorrt_module import import_tensorrt

RTX, GPUS = "tensorrt-rtx", ("sm_89", "sm_120")
QUICK = {("dit", "fp32"), ("wan", "fp32"), ("flux", "bf16")}  # the others repeat them with other graphs
HALVES = [(name, precision) for name in ("sd15", "sdxl", "sd3", "flux", "wan") for precision in ("fp16", "bf16")]
CASES = [
    pytest.param(*case, marks=pytest.mark.extra if case in QUICK else pytest.mark.slow, id="-".join(case))
    for case in [*((name, "fp32") for name in FAMILIES), *HALVES]
]
OBSERVED = {  # factor of the timesteps, how the pipeline guides, and the most rows
    "dit": (1.0, "batched", 8), "sd15": (1.0, "batched", 8), "sana": (1.0, "batched", 8),
    "flux": (0.001, "embedded", 4), "wan": (1.0, "sequential", 4), "wan22-ti2v": (1.0, "sequential", 4),
}  # fmt: skip

try:
    import_tensorrt(RTX)
    import polygraphy  # noqa: F401
except (ZeusError, ImportError) as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_builds_with_a_dynamic_profile(name, precision, family_bundle):
    bundle = family_bundle(name, precision)
    manifest = bundle.manifest
    if name in OBSERVED:
        largest = make_profile(manifest)[manifest.latents.name].max[0]
        assert (manifest.timestep_scale, manifest.guidance, largest) == OBSERVED[name]
    records = [build_engine(bundle, RTX, gpu=gpu, precision=precision) for gpu in GPUS]
    for record, gpu in zip(records, GPUS, strict=True):
        assert (record.spec.target.sms, record.spec.precision) == ((gpu,), precision)
        for spec in manifest.inputs:
            shapes = record.spec.profile[spec.name]
            moving = [place for place, axis in enumerate(spec.axes) if isinstance(axis, str)]
            assert all(shapes.min[place] < shapes.max[place] for place in moving)
    assert sorted(engine.record.key for engine in list_engines(bundle.path)) == sorted(r.key for r in records)
    print(f"{name} {precision}: {', '.join(f'{record.build_seconds} s' for record in records)}")
