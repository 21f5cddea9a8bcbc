"""Programs of torch.export that others saved: a bundle of one makes what a plain loop over the program makes."""

import importlib
import io
import json
import sys
import zipfile
from pathlib import Path

import diffusers
import pytest
import torch
from foreign_graphs import MEAN, SPREAD
from torch.export import Dim
from torch.utils import _pytree

from zeus_trt.errors import ZeusError
from zeus_trt.export import import_model
from zeus_trt.runtime import Session, draw_noise

STEPS = 12


class Best(torch.nn.Module):
    """The best denoiser of ``foreign_graphs``, in torch: it returns the clean latents."""

    def forward(self, x, sigma, shift=None, scale=1.0):
        rows = sigma.reshape(-1, 1, 1, 1).to(x.dtype)
        total = SPREAD**2 + rows**2
        clean = (SPREAD**2 * x + rows**2 * MEAN * torch.tanh(MEAN * x / total)) / total
        return clean * scale if shift is None else clean + 0 * shift["text"].mean()


def save(tmp_path, module, *args, shapes=None, **kwargs):
    path = tmp_path / "theirs.pt2"
    torch.export.save(torch.export.export(module, args, kwargs, dynamic_shapes=shapes), path)
    return path


def make_bundle(path, scheduler="EDMEulerScheduler", **options):
    options = {"latents": "x", "timestep": "sigma", "steps": (STEPS,), "trust_engines": True, **options}
    return import_model(path, path.parent / "bundle", scheduler=scheduler, **options)


def run_plain(scheduler, denoise, noise):
    """A diffusers loop over D(x; sigma) of EDM."""
    scheduler.set_timesteps(STEPS)
    latents = noise * scheduler.init_noise_sigma
    for timestep in scheduler.timesteps:
        entered = scheduler.scale_model_input(latents, timestep)
        sigma, data = scheduler.sigmas[scheduler.step_index], scheduler.config.sigma_data
        spread = (sigma**2 + data**2).sqrt()
        noisy = entered * spread
        clean = denoise(noisy, sigma.expand(len(noisy)))
        latents = scheduler.step((clean - data**2 / spread**2 * noisy) * spread / (sigma * data), timestep, latents)[0]
    return latents


@pytest.mark.parametrize("scheduler", ["EDMEulerScheduler", "EDMDPMSolverMultistepScheduler"])
def test_a_bundle_of_a_program_makes_what_a_plain_loop_over_the_program_makes(tmp_path, scheduler):
    batch = Dim("rows", max=64)
    path = save(tmp_path, Best(), torch.zeros(2, 1, 4, 4), torch.ones(2), shapes={"x": {0: batch}, "sigma": {0: batch}})
    said = []
    bundle = make_bundle(path, scheduler, parameterization="edm", say=said.append)
    assert any("preconditioning inside" in line for line in said)
    assert [record.setting for record in bundle.manifest.graphs[0].verification] == [{"reference": "theirs.pt2"}] * 2
    with Session(bundle, backend="onnxruntime") as session:
        noise = draw_noise((3, 1, 4, 4), [0, 1, 2])
        full = session.generate(noise=noise, num_steps=STEPS, ratio=0)
        skipped = session.generate(noise=noise, num_steps=STEPS, ratio=2)
    plain = run_plain(getattr(diffusers, scheduler)(), torch.export.load(path).module(), noise)
    assert float((full.latents - plain).norm() / plain.norm()) < 1e-4
    assert skipped.report.nfe < STEPS
    assert 0 < float((skipped.latents - full.latents).norm() / full.latents.norm()) < 0.5


class Picky(Best):
    def forward(self, x, sigma):
        if x.shape[-1] > 12 or x.shape[-2] % 2:
            raise ValueError
        return super().forward(x, sigma)


def test_what_a_program_asks_of_its_sizes_is_asked_of_its_bundle(tmp_path):
    rows, high, wide = Dim("rows", max=16), Dim("half", max=8), Dim.AUTO
    path = save(
        tmp_path, Picky(), torch.zeros(2, 1, 8, 8), torch.ones(2),
        shapes={"x": {0: rows, 2: 2 * high, 3: wide}, "sigma": {0: rows}},
    )  # fmt: skip
    bundle = make_bundle(path)
    limits = {spec.name: (spec.observed, spec.multiple_of, spec.maximum) for spec in bundle.manifest.symbols}
    assert limits == {"batch": ((1, 2), 1, 16), "x_2": ((8, 16), 2, 16), "x_3": ((8, 4), 1, 12)}
    with Session(bundle, backend="onnxruntime") as session:
        assert session.generate(noise=torch.zeros(1, 1, 10, 7), num_steps=4, ratio=0).latents.shape == (1, 1, 10, 7)
        for shape, message in (((1, 1, 9, 8), "x_2: got 9; expected a multiple of 2"), ((1, 1, 8, 13), "up to 12")):
            with pytest.raises(ZeusError, match=message):
                session.generate(noise=torch.zeros(shape), num_steps=4, ratio=0)


class Tall(Best):
    def forward(self, x, sigma):
        return super().forward(x, sigma) if x.shape[-2] > x.shape[-1] else x


def test_a_condition_of_two_sizes_is_a_relation(tmp_path):
    shapes = {"x": {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}, "sigma": {0: Dim.AUTO}}
    bundle = make_bundle(save(tmp_path, Tall(), torch.zeros(2, 1, 12, 8), torch.ones(2), shapes=shapes))
    assert [str(relation) for relation in bundle.manifest.relations] == ["x_2 > x_3"]
    with Session(bundle, backend="onnxruntime") as session, pytest.raises(ZeusError, match="expected x_2 > x_3"):
        session.generate(noise=torch.zeros(1, 1, 8, 8), num_steps=4, ratio=0)


class Answer(Best):
    """As its like return: two tensors, of which the second is the picture."""

    def forward(self, x, sigma, shift=None, scale=1.0):
        return {"mean": x.mean(), "sample": super().forward(x, sigma, shift, scale)}


@pytest.mark.parametrize(
    ("module", "args", "kwargs", "dtypes"),
    [
        (Best(), (torch.zeros(1, 1, 4, 4), torch.tensor(1.0)), {}, ["float32"] * 2),
        (Best(), (torch.zeros(1, 1, 4, 4), torch.tensor([3])), {"scale": 1.0}, ["float32"] * 2),
        (Answer(), (torch.zeros(1, 1, 4, 4), torch.ones(1)), {"shift": {"text": torch.ones(1, 3)}}, ["float32"] * 3),
        (Best(), (torch.zeros(1, 1, 4, 4).half(), torch.ones(1)), {}, ["float32"] * 2),
    ],
    ids=["scalar", "integer", "several", "half"],
)
def test_however_its_inputs_and_outputs_are_written(tmp_path, module, args, kwargs, dtypes):
    bundle = make_bundle(save(tmp_path, module, *args, **kwargs))
    assert [spec.dtype for spec in bundle.manifest.inputs] == dtypes
    assert [spec.axes[0] for spec in bundle.manifest.inputs] == ["batch"] * len(dtypes)
    x, times = torch.randn(2, 1, 4, 4), torch.tensor([0.2, -0.3])
    sigma = (4 * times).exp()
    sigma = sigma.round() if args[1].dtype == torch.int64 else sigma
    more = {"shift_text": torch.ones(2, 3)} if len(dtypes) == 3 else {}
    with Session(bundle, backend="onnxruntime") as session:
        together = session.engine(x=x, timestep=times, **more)
        noisy = x * ((8 * times).exp() + 0.25).sqrt().reshape(-1, 1, 1, 1)
        clean = Best()(noisy.to(args[0].dtype), sigma).float()
    data2, true = 0.25, (4 * times).exp().reshape(-1, 1, 1, 1)
    spread = (true**2 + data2).sqrt()
    expected = (clean - data2 / spread**2 * noisy) * spread / (true * 0.5)
    assert torch.allclose(together, expected, atol=2e-2 if args[0].dtype == torch.half else 1e-5)


def test_a_program_that_returns_an_object_is_read_where_its_class_can_be_imported(tmp_path, monkeypatch):
    (tmp_path / "own_output.py").write_text("from dataclasses import dataclass\nimport torch\n"
        "@dataclass\nclass Made:\n    sample: torch.Tensor\n"
        "torch.export.register_dataclass(Made, serialized_type_name='own_output.Made')\n")  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    made = importlib.import_module("own_output").Made

    class Object(Best):
        def forward(self, x, sigma):
            return made(super().forward(x, sigma))

    path = save(tmp_path, Object(), torch.zeros(1, 1, 4, 4), torch.ones(1))
    _pytree._deregister_pytree_node(made)  # as in a process that never imported it
    monkeypatch.delitem(sys.modules, "own_output")
    assert make_bundle(path, parameterization="edm").manifest.output.axes == ("batch", 1, 4, 4)


def test_a_graph_that_does_not_do_what_the_program_does_is_refused(tmp_path):
    """A network that was exported in training mode: its dropout differs from run to run."""

    class Training(Best):
        def forward(self, x, sigma):
            return torch.nn.functional.dropout(super().forward(x, sigma), 0.9, training=True)

    path = save(tmp_path, Training(), torch.zeros(1, 1, 4, 4), torch.ones(1))
    with pytest.raises(ZeusError, match=r"verification: got a relative error of .* to theirs\.pt2"):
        make_bundle(path, parameterization="edm")
    assert [entry.name for entry in tmp_path.iterdir()] == ["theirs.pt2"]


class Mark:
    """Leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_a_program_is_not_read_without_trust_since_reading_it_runs_code(tmp_path):
    path = save(tmp_path, Best(), torch.zeros(1, 1, 4, 4), torch.ones(1))
    poisoned, mark = tmp_path / "poisoned.pt2", tmp_path / "mark"
    stored = io.BytesIO()
    torch.save(Mark(str(mark)), stored)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(poisoned, "w") as archive:
        for name in whole.namelist():
            content = whole.read(name)
            if name.endswith("model_weights_config.json"):
                entry = {"path_name": "weight_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
                content = json.dumps({"config": {"more": entry}}).encode()
            archive.writestr(name.replace("theirs/", "poisoned/"), content)
        archive.writestr("poisoned/data/weights/weight_0", stored.getvalue())
    with pytest.raises(ZeusError, match=r"model: got poisoned\.pt2, which torch loads with pickle: that runs code"):
        make_bundle(poisoned, trust_engines=None)
    assert not mark.exists()
    with pytest.raises(ZeusError, match=r"poisoned\.pt2"):
        make_bundle(poisoned)
    assert mark.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"nothing", r"which does not read \(.*File is not a zip file.*\); expected a program of torch.export"),
        ({"a/models/model.json": "{}"}, "which does not read"),
        ({"a/models/one.json": "{}", "a/models/two.json": "{}"}, "it has 2 programs"),
        (
            {"a/data/aotinductor/model/x.so": ""},
            r"other\.pt2, which does not read .it has no code and metadata of one model",
        ),
    ],
)
def test_what_is_no_program_is_one_sentence(tmp_path, content, message):
    path = tmp_path / "other.pt2"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in content.items():
                archive.writestr(name, text)
    with pytest.raises(ZeusError, match=message):
        make_bundle(path)
    assert not (tmp_path / "bundle").exists()


def test_sizes_that_are_inputs_are_refused(tmp_path):
    class Sized(Best):
        def forward(self, x, sigma, count):
            return super().forward(x, sigma) * count

    path = save(tmp_path, Sized(), torch.zeros(1, 1, 4, 4), torch.ones(1), 5,
                shapes={"x": None, "sigma": None, "count": Dim.DYNAMIC})  # fmt: skip
    with pytest.raises(ZeusError, match="model: got the input count of SymInt; expected tensors of numbers"):
        make_bundle(path)
