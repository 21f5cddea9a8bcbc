"""Packages of AOTInductor that others compiled: a bundle of one makes what a plain loop over the package makes."""

import functools
import json
import re
import zipfile
from dataclasses import replace

import diffusers
import numpy as np
import pytest
import torch
from foreign_packages import compile_foreign

from zeus_trt.errors import ZeusError
from zeus_trt.export import import_model
from zeus_trt.export.foreign_package import read_package
from zeus_trt.export.parameterization import Parameterization
from zeus_trt.runtime import Bundle, Session, draw_noise
from zeus_trt.runtime.bundle.border import DISCRETE, EDM, FLOW
from zeus_trt.runtime.bundle.manifest import FILE_NAME, Manifest
from zeus_trt.runtime.engines.border import enter, leave

STEPS = 12
BARE = {"latents": "x", "timestep": "noise_level", "parameterization": "edm", "scheduler": "EDMEulerScheduler"}
WHOLE = {"latents": "input_0", "timestep": "input_1", "timestep_is": "sigma", "parameterization": "edm"}
FLOWS = {"latents": "x", "timestep": "level", "timestep_is": "log-sigma", "parameterization": "sample",
         "scheduler": "FlowMatchEulerDiscreteScheduler", "shape": (1, 4, 8)}  # fmt: skip


@pytest.fixture(scope="module")
def package(cached_bundle):
    return functools.cache(functools.partial(compile_foreign, cached_bundle))


def make_bundle(path, output, **options):
    return import_model(path, output, **{"steps": (STEPS,), "trust_engines": True, **options})


def run_plain(scheduler, predict, noise):
    """The loop of a diffusers pipeline; ``predict`` takes what the scheduler passes, and the scheduler."""
    scheduler.set_timesteps(STEPS)
    latents = noise * getattr(scheduler, "init_noise_sigma", 1)
    for timestep in scheduler.timesteps:
        entered = scheduler.scale_model_input(latents, timestep) if hasattr(scheduler, "scale_model_input") else latents
        latents = scheduler.step(predict(entered, timestep, scheduler), timestep, latents).prev_sample
    return latents


def generate(bundle, ratio, noise, inputs=None):
    with Session(bundle) as session:
        return session.generate(inputs or {}, noise=noise, num_steps=STEPS, ratio=ratio)


def close(one, other):
    return float((one - other).norm() / other.norm()) < 1e-5


@pytest.mark.parametrize("scheduler", ["EDMEulerScheduler", "EDMDPMSolverMultistepScheduler"])
def test_a_bare_network_of_edm_is_diffusers_loop_over_its_package_to_the_bit(package, tmp_path, scheduler):
    said = []
    bundle = make_bundle(package("bare"), tmp_path / "b", **BARE | {"scheduler": scheduler}, say=said.append)
    assert not said
    noise, label = draw_noise((3, 1, 4, 4), [0, 1, 2]), torch.tensor([3, 5, 0])
    engine = torch._inductor.aoti_load_package(str(package("bare")))
    plain = run_plain(
        getattr(diffusers, scheduler)(),
        lambda x, t, _: engine(x=x.contiguous(), noise_level=t.expand(3).contiguous(), label=label), noise,
    )  # fmt: skip
    full = generate(bundle, 0, noise, {"label": label})
    assert torch.equal(full.latents, plain)
    for ratio in (2, 3):
        skipped = generate(bundle, ratio, noise, {"label": label})
        assert skipped.report.nfe < full.report.nfe == STEPS
        assert 0 < float((skipped.latents - full.latents).norm() / full.latents.norm()) < 0.5


@pytest.mark.extra
def test_preconditioning_inside_and_one_row_at_a_time(package, tmp_path):
    said = []
    bundle = make_bundle(package("whole"), tmp_path / "b", **WHOLE, say=said.append)
    assert any("a row at a time" in line for line in said)
    assert any("preconditioning inside" in line for line in said)
    noise, engine = draw_noise((3, 1, 4, 4), [0, 1, 2]), torch._inductor.aoti_load_package(str(package("whole")))

    def predict(entered, timestep, scheduler):
        sigma, data = scheduler.sigmas[scheduler.step_index], scheduler.config.sigma_data
        spread = (sigma**2 + data**2).sqrt()
        noisy = entered * spread
        clean = torch.cat([engine(row[None].clone(), True, sigma)[1] for row in noisy])
        return (clean - data**2 / spread**2 * noisy) * spread / (sigma * data)

    assert close(generate(bundle, 0, noise).latents, run_plain(diffusers.EDMEulerScheduler(), predict, noise))
    foreign = bundle.manifest.foreign
    assert (foreign.place, foreign.by_rows, foreign.border.returns) == (1, True, "sample")


@pytest.mark.extra
def test_limits_halves_and_conditioning_of_a_package(package, tmp_path):
    bundle = make_bundle(package("flow"), tmp_path / "b", **FLOWS)
    assert bundle.manifest.precision == "bf16"
    assert [(spec.name, spec.dtype, spec.axes) for spec in bundle.manifest.inputs] == [
        ("x", "float32", ("batch", 1, "x_2", "x_3")), ("timestep", "float32", ("batch",)),
        ("given.text", "float32", ("batch", "given_text_1", 4)),
    ]  # fmt: skip
    limits = {spec.name: (spec.minimum, spec.multiple_of, spec.maximum) for spec in bundle.manifest.symbols}
    assert limits == {"batch": (1, 1, 64), "x_2": (2, 2, 16), "x_3": (4, 4, 32), "given_text_1": (4, 1, 30)}
    assert [str(relation) for relation in bundle.manifest.relations] == ["x_2 * 4 == x_3 * 2"]
    text, noise = {"given.text": torch.zeros(2, 5, 4)}, draw_noise((2, 1, 6, 12), 0)
    engine = torch._inductor.aoti_load_package(str(package("flow")))

    def predict(entered, timestep, scheduler):
        level = (timestep / 1000).log().expand(2).reshape(2, 1, 1, 1).bfloat16()
        given = {"text": torch.zeros(2, 5, 4, dtype=torch.bfloat16)}
        return (entered - engine(x=entered.bfloat16(), level=level, given=given).float()) / (timestep / 1000)

    plain = run_plain(diffusers.FlowMatchEulerDiscreteScheduler(), predict, noise)
    assert close(generate(bundle, 0, noise, text).latents, plain)
    with Session(bundle) as session:
        for shape, message in (
            ((1, 1, 7, 16), "x_2: got 7; expected a multiple of 2"), ((1, 1, 18, 36), "up to 16"),
            ((1, 1, 8, 12), "expected x_2 [*] 4 == x_3 [*] 2"),
        ):  # fmt: skip
            with pytest.raises(ZeusError, match=message):
                session.generate({"given.text": text["given.text"][:1]}, noise=torch.zeros(shape), num_steps=4, ratio=0)
        with pytest.raises(ZeusError, match=r"expected 2..16, which this engine was built for"):
            session.engine(**{"x": torch.zeros(1, 1, 18, 36), "timestep": 1.0, "given.text": text["given.text"][:1]})


def test_the_border_in_torch_is_that_of_float64():
    times = {EDM: [-1.5, 0.2, 1.1], FLOW: [999.0, 400.5, 2.0], DISCRETE: [0.0, 400.5, 999.0]}
    kinds = {EDM: ("edm", "sample", "v"), FLOW: ("flow", "sample"), DISCRETE: ("epsilon", "v", "sample")}
    sigmas = tuple(np.geomspace(0.03, 157, 1000).tolist())
    latents, output = draw_noise((2, 3, 2, 4, 4), 0)
    for schedule, names in kinds.items():
        rows = torch.tensor(times[schedule])
        wide = rows.double().numpy().reshape(3, 1, 1, 1)
        for returns in names:
            for reads in ("timestep", "sigma", "log-sigma"):
                ours = Parameterization(schedule, returns, reads, sigmas=sigmas)
                entered, time = enter(ours.border, latents, rows)
                noisy, made = latents.double().numpy(), output.double().numpy()
                found = [(entered, ours.scale_input(noisy, wide)), (time, ours.read_time(rows.double().numpy())),
                         (leave(ours.border, output, latents, rows), ours.read_output(made, noisy, wide))]  # fmt: skip
                for one, expected in found:
                    assert np.allclose(one.double().numpy(), expected, rtol=2e-6, atol=1e-6), (schedule, returns, reads)


def test_an_engine_that_was_imported_elsewhere_needs_trust(package, tmp_path, monkeypatch):
    with pytest.raises(ZeusError, match=r"model: got bare\.pt2, a compiled engine: that runs code of whoever wrote it"):
        make_bundle(package("bare"), tmp_path / "b", **BARE, trust_engines=None)
    bundle = make_bundle(package("bare"), tmp_path / "b", **BARE)
    Session(Bundle.open(bundle.path)).close()
    monkeypatch.setenv("ZEUS_TRT_DATA_HOME", str(tmp_path / "other"))
    with pytest.raises(ZeusError, match=r"not built on this machine.*Import the engine where it shall run"):
        Session(bundle)
    Session(bundle, trust_engines=True).close()
    [engine] = bundle.path.glob("engines/*/denoiser.pt2")
    engine.write_bytes(engine.read_bytes()[:-1] + b"x")
    with pytest.raises(ZeusError, match="was changed since it was built"):
        Session(bundle, trust_engines=True)


def test_another_engine_beside_the_manifest_is_refused(package, tmp_path):
    bundle = make_bundle(package("bare"), tmp_path / "b", **BARE)
    foreign = replace(bundle.manifest.foreign, sha256="0" * 64)
    other = Bundle(bundle.path, replace(bundle.manifest, foreign=foreign))
    with pytest.raises(ZeusError, match="built from another graph than the bundle's"):
        Session(other, trust_engines=True)


def test_manifests_of_engines_are_read_and_checked(package, tmp_path):
    bundle = make_bundle(package("bare"), tmp_path / "b", **BARE)
    text = (bundle.path / FILE_NAME).read_bytes()
    assert Manifest.from_json(text) == bundle.manifest
    assert "relative error to bare.pt2 at most" in bundle.manifest.describe()
    foreign = json.loads(text)["foreign"]
    inputs = bundle.manifest.foreign.inputs
    for changed, reason in (
        ({"backend": "onnxruntime"}, "backend 'onnxruntime'"),
        ({"place": -1}, "wrong place"),
        ({"border": {**foreign["border"], "reads": "alpha"}}, "not one of sigma, timestep, log-sigma"),
        ({"border": {**foreign["border"], "sigma_data": 0.0}}, "not positive"),
        ({"inputs": foreign["inputs"][:1]}, "not one input of latents and one of the time"),
        ({"inputs": foreign["inputs"][:2]}, "has other inputs than it says"),
        ({"by_row": True}, "unknown field foreign.by_row"),
    ):
        data = {**json.loads(text), "foreign": {**foreign, **changed}}
        with pytest.raises(ZeusError, match=reason):
            Manifest.from_json(_seal(data))
    assert [spec.role for spec in inputs] == ["latents", "timestep", "conditioning"]


def _seal(data):
    from zeus_trt.runtime.bundle.manifest import DIGEST, seal

    return seal({name: value for name, value in data.items() if name != DIGEST})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"AOTI_DEVICE_KEY": "cpu"', '"AOTI_DEVICE_KEY": "cuda"', "for cuda on linux.*; expected one for a device of"),
        ('"AOTI_MACHINE": "x86_64"', '"AOTI_MACHINE": "riscv64"', "for cpu on linux riscv64"),
        (r"4 != (\w+_stride.2)", r"1 != \1", "input x of another layout than the usual"),
        (r"{(s\d+), 1L, 4L, 4L}", r"{1L + \1, 1L, 4L, 4L}", r"input x of an axis of 1L [+] s\d+ numbers"),
        ("assert_size_stride", "assert_nothing", "input x of an axis of unknown numbers"),
        ("dtype_int64", "dtype_complex64", "input label of complex64; expected contiguous"),
        ("static void check_input_", "static void checks_", "its code has 0 inputs"),
        (r"^{.*}$", "[]", "which does not read .AttributeError"),
        ("data/aotinductor/model/", "data/aotinductor/other/", "no code and metadata of one model"),
    ],
)
def test_what_nothing_can_pass_is_refused_before_it_runs(package, tmp_path, old, new, message):
    """The words of a package are changed, not its library, which is not loaded."""
    changed, seen = tmp_path / "changed.pt2", 0
    with zipfile.ZipFile(package("bare")) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            content, count = source.read(name), 0
            if name.endswith((".cpp", ".json")):
                content, count = re.subn(old.encode(), new.encode(), content)
            place, moved = re.subn(old, new, name)
            target.writestr(place, content)
            seen += count + moved
    assert seen
    with pytest.raises(ZeusError, match=message):
        read_package(changed, "x")


def test_a_package_that_fails_is_one_sentence(package, tmp_path, monkeypatch):
    bundle = make_bundle(package("bare"), tmp_path / "b", **BARE)
    with Session(bundle) as session:

        def fail(**inputs):
            raise RuntimeError("no memory")

        monkeypatch.setattr(session.engine._inner, "_run", fail)
        with pytest.raises(
            ZeusError, match=r"aot-inductor: got an engine that fails .RuntimeError: no memory.; expected an output"
        ):
            session.engine(x=torch.zeros(1, 1, 4, 4), timestep=0.0, label=torch.tensor([1]))
