"""Graphs that others exported: what a bundle of them makes is what a plain loop over the graph itself makes."""

import diffusers
import numpy as np
import onnx
import pytest
import torch
from foreign_graphs import DATA, find_clean, write_foreign

from zeus_trt.errors import ZeusError
from zeus_trt.export import import_model
from zeus_trt.runtime import Session, draw_noise

EDM = (diffusers.EDMEulerScheduler, diffusers.EDMDPMSolverMultistepScheduler)
STEPS = 12


def make_bundle(tmp_path, kind, time, *, parameterization=None, timestep_is=None, scheduler=None, said=None, **changes):
    options = {name: changes.pop(name) for name in ("shape", "inputs") if name in changes}
    say = [].append if said is None else said.append
    path = write_foreign(tmp_path / f"{kind.replace(' ', '-')}.onnx", kind, time, **changes)
    return import_model(
        path, tmp_path / "bundle", latents="x", timestep="t", timestep_is=timestep_is, steps=(STEPS,),
        parameterization=parameterization, scheduler=scheduler, say=say, **options,
    )  # fmt: skip


def run_plain(scheduler, predict, noise):
    """The loop of a diffusers pipeline; ``predict`` takes what the scheduler passes, and the scheduler."""
    scheduler.set_timesteps(STEPS)
    latents = noise * getattr(scheduler, "init_noise_sigma", 1)
    for timestep in scheduler.timesteps:
        entered = scheduler.scale_model_input(latents, timestep) if hasattr(scheduler, "scale_model_input") else latents
        latents = scheduler.step(predict(entered, timestep, scheduler), timestep, latents).prev_sample
    return latents


def generate(bundle, ratio=0, rows=3, **settings):
    with Session(bundle, backend="onnxruntime", **settings) as session:
        noise = draw_noise((rows, 1, 4, 4), list(range(rows)))
        return session.generate(noise=noise, num_steps=STEPS, ratio=ratio), noise, session.engine


def predict_edm(entered, timestep, scheduler):
    """F of the float64 denoiser, by eq. 7 of Karras et al."""
    sigma = float(scheduler.sigmas[scheduler.step_index])
    noisy = entered.double().numpy() * np.hypot(sigma, DATA)
    clean = find_clean(noisy, 1.0, sigma)
    output = (clean - DATA**2 / (sigma**2 + DATA**2) * noisy) / (sigma * DATA / np.hypot(sigma, DATA))
    return torch.from_numpy(output).float()


def predict_discrete(kind):
    def predict(entered, timestep, scheduler):
        kept = float(scheduler.alphas_cumprod[int(timestep)])
        a, b = kept**0.5, (1 - kept) ** 0.5
        noisy = entered.double().numpy()
        clean = find_clean(noisy, a, b)
        noise = (noisy - a * clean) / b
        return torch.from_numpy({"epsilon": noise, "v": a * noise - b * clean, "sample": clean}[kind]).float()

    return predict


def predict_flow(entered, timestep, scheduler):
    sigma = float(timestep) / 1000
    noisy = entered.double().numpy()
    return torch.from_numpy((noisy - find_clean(noisy, 1 - sigma, sigma)) / sigma).float()


def close(one, other):
    return float((one - other).norm() / other.norm()) < 1e-4


@pytest.mark.parametrize("scheduler", EDM)
@pytest.mark.parametrize(
    ("kind", "time", "parameterization", "timestep_is"),
    [
        ("whole", "sigma", "edm", "sigma"),
        ("whole", "log-sigma", "sample", "log-sigma"),
        ("bare", "c_noise", "edm", None),
        ("bare", "sigma", "edm", "sigma"),
        ("bare", "log-sigma", None, "log-sigma"),
    ],
)
def test_edm_graphs_run_with_both_edm_schedulers(tmp_path, scheduler, kind, time, parameterization, timestep_is):
    said = []
    bundle = make_bundle(
        tmp_path, kind, time, parameterization=parameterization, timestep_is=timestep_is,
        scheduler=scheduler.__name__, said=said,
    )  # fmt: skip
    full, noise, _ = generate(bundle)
    assert close(full.latents, run_plain(scheduler(), predict_edm, noise))
    for ratio in (2, 3):
        skipped, _, _ = generate(bundle, ratio)
        assert skipped.report.nfe < full.report.nfe == STEPS
        assert 0 < float((skipped.latents - full.latents).norm() / full.latents.norm()) < 0.5
    assert any("preconditioning inside" in line for line in said) == (kind == "whole" and parameterization == "edm")


@pytest.mark.parametrize("scheduler", EDM)
def test_ratio_0_is_the_plain_loop_over_the_bundles_engine_to_the_bit(tmp_path, scheduler):
    bundle = make_bundle(tmp_path, "whole", "sigma", parameterization="edm", timestep_is="sigma", scheduler=scheduler())
    with Session(bundle, backend="onnxruntime") as session:
        noise = draw_noise((2, 1, 4, 4), 0)
        full = session.generate(noise=noise, num_steps=STEPS, ratio=0)
        plain = run_plain(scheduler(), lambda x, t, _: session.engine(x=x, timestep=t.expand(len(x))), noise)
    assert torch.equal(full.latents, plain)


@pytest.mark.parametrize(
    ("kind", "time", "parameterization", "timestep_is"),
    [
        ("epsilon", "index", "epsilon", "timestep"),
        ("epsilon", "sigma", "epsilon", "sigma"),
        ("v", "log-sigma", "v", "log-sigma"),
        ("x0", "index", "sample", "timestep"),
    ],
)
def test_graphs_of_a_table_of_betas(tmp_path, kind, time, parameterization, timestep_is):
    prediction = {"epsilon": "epsilon", "v": "v_prediction", "sample": "sample"}[parameterization]
    scheduler = diffusers.DDIMScheduler(clip_sample=False, prediction_type="epsilon")
    bundle = make_bundle(
        tmp_path, kind, time, parameterization=parameterization, timestep_is=timestep_is, scheduler=scheduler
    )
    full, noise, _ = generate(bundle)
    plain = diffusers.DDIMScheduler(clip_sample=False, prediction_type=prediction)
    assert close(full.latents, run_plain(plain, predict_discrete(parameterization), noise))
    assert bundle.manifest.prediction_type == prediction
    assert generate(bundle, 2)[0].report.nfe < STEPS


@pytest.mark.parametrize(
    ("kind", "time", "parameterization", "timestep_is"),
    [
        ("flow", "sigma", "flow", "sigma"),
        ("flow", "thousandths", None, None),
        ("flow x0", "sigma", "sample", "sigma"),
        ("flow", "log-sigma", "flow", "log-sigma"),
    ],
)
def test_graphs_of_flow_matching(tmp_path, kind, time, parameterization, timestep_is):
    bundle = make_bundle(
        tmp_path, kind, time, parameterization=parameterization, timestep_is=timestep_is,
        scheduler="FlowMatchEulerDiscreteScheduler",
    )  # fmt: skip
    full, noise, _ = generate(bundle)
    assert close(full.latents, run_plain(diffusers.FlowMatchEulerDiscreteScheduler(), predict_flow, noise))
    assert generate(bundle, 3)[0].report.nfe < STEPS


@pytest.mark.parametrize(
    "changes",
    [
        {"times": ""},  # a scalar
        {"times": "1"},
        {"times": "steps"},  # another name, though it takes rows
        {"times": "n,1,1,1"},
        {"latents": "1,1,4,4", "times": "1"},
        {"latents": "1,1,4,4", "times": ""},
        {"external": True},
        {"after": "flat = Neg(made) last = Identity(made)", "outputs": "float[n,1,4,4] y, float[n,1,4,4] flat"},
        {"after": "two = Concat<axis = 1>(made, made) last = Identity(made)",
         "outputs": "float[n,2,4,4] two, float[n,1,4,4] y"},
        {"opset": 12},
    ],
    ids=str,
)  # fmt: skip
def test_however_its_axes_and_outputs_are_written(tmp_path, changes):
    """Rows at different times in one call too: each is what it is alone."""
    if changes.get("opset") == 12:  # older operators: axes are attributes
        changes = {**changes, "times": ""}
    bundle = make_bundle(
        tmp_path,
        "whole",
        "sigma",
        parameterization="edm",
        timestep_is="sigma",
        scheduler="EDMEulerScheduler",
        **changes,
    )
    full, noise, _ = generate(bundle)
    assert close(full.latents, run_plain(diffusers.EDMEulerScheduler(), predict_edm, noise))
    with Session(bundle, backend="onnxruntime") as session:
        times = torch.tensor([-1.0, 0.0, 0.8])
        together = session.engine(x=noise, timestep=times)
        alone = [session.engine(x=noise[k : k + 1], timestep=times[k : k + 1]) for k in range(3)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-6)


def test_a_time_that_only_the_first_row_has_is_read_row_by_row(tmp_path):
    said = []
    body = "zero = Constant<value_ints = [0]>() gone = Cast<to = 1>(x) last = Identity(made)"
    make_bundle(tmp_path, "whole", "sigma", timestep_is="sigma", scheduler="EDMEulerScheduler", after=body, said=said)
    assert not any("a row at a time" in line for line in said)
    model = onnx.load(tmp_path / "whole.onnx")
    first = onnx.helper.make_node("Gather", ["wide", "zero_place"], ["first"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero_place"))
    for node in model.graph.node:
        node.input[:] = ["first" if name == "wide" else name for name in node.input]
    model.graph.node.insert(3, first)
    onnx.save(model, tmp_path / "first.onnx")
    bundle = import_model(
        tmp_path / "first.onnx", tmp_path / "second", latents="x", timestep="t", timestep_is="sigma",
        scheduler="EDMEulerScheduler", steps=(), say=said.append,
    )  # fmt: skip
    assert any("a row at a time" in line for line in said)
    full, noise, _ = generate(bundle)
    assert close(full.latents, run_plain(diffusers.EDMEulerScheduler(), predict_edm, noise))


def test_integer_timesteps_are_rounded_and_halves_are_cast(tmp_path):
    bundle = make_bundle(
        tmp_path, "epsilon", "index", scheduler=diffusers.DDIMScheduler(clip_sample=False), time_dtype="int64",
        dtype="float16",
    )  # fmt: skip
    assert [spec.dtype for spec in bundle.manifest.inputs] == ["float32", "float32"]
    with Session(bundle, backend="onnxruntime") as session:
        noise = draw_noise((2, 1, 4, 4), 0)
        above, below = (session.engine(x=noise, timestep=torch.tensor([time, time])) for time in (400.6, 401.4))
    assert torch.equal(above, below)
    full, noise, _ = generate(bundle)
    plain = run_plain(diffusers.DDIMScheduler(clip_sample=False), predict_discrete("epsilon"), noise)
    assert float((full.latents - plain).norm() / plain.norm()) < 1e-2


def test_sizes_that_the_graph_leaves_open(tmp_path):
    options = {"parameterization": "edm", "timestep_is": "sigma", "scheduler": "EDMEulerScheduler"}
    with pytest.raises(ZeusError, match=r"shape: got nothing for x float32 \(batch, 1, h, w\)"):
        make_bundle(tmp_path, "whole", "sigma", latents="n,1,h,w", **options)
    with pytest.raises(ZeusError, match=r"shape: got 3,4,6; expected that of x float32 \(batch, 1, h, w\)"):
        make_bundle(tmp_path, "whole", "sigma", latents="n,1,h,w", shape=(3, 4, 6), **options)
    bundle = make_bundle(tmp_path, "whole", "sigma", latents="n,1,h,w", shape=(1, 4, 6), **options)
    assert {symbol.name: symbol.observed for symbol in bundle.manifest.symbols} == {
        "batch": (1, 2), "h": (4, 8), "w": (6, 12),
    }  # fmt: skip
    with Session(bundle, backend="onnxruntime") as session:
        made = session.generate(noise=draw_noise((1, 1, 10, 3), 0), num_steps=4, ratio=0)
    assert made.latents.shape == (1, 1, 10, 3)


def test_a_size_that_is_dynamic_by_name_alone_becomes_fixed(tmp_path):
    said = []
    fixed = "size = Constant<value_ints = [-1, 1, 4, 4]>() last = Reshape(made, size)"
    bundle = make_bundle(
        tmp_path, "whole", "sigma", latents="n,1,h,w", shape=(1, 4, 4), after=fixed, timestep_is="sigma",
        scheduler="EDMEulerScheduler", said=said,
    )  # fmt: skip
    assert bundle.manifest.latents.axes == ("batch", 1, 4, 4)
    assert "h: the denoiser takes no other size than 4" in said


def test_conditioning_is_read_from_the_graph(tmp_path):
    after = "up = Reshape(shift, column) more0 = Add(made, up) mean = ReduceMean<keepdims = 0>(text) "
    after += "last = Add(more0, mean)"
    bundle = make_bundle(
        tmp_path, "flow", "sigma", parameterization="flow", timestep_is="sigma", after=after,
        more=("int32[n] level", "float[n] shift", "float[n,length,3] text"), inputs={"shift": 0.5},
    )  # fmt: skip
    assert [(spec.name, spec.dtype, spec.axes) for spec in bundle.manifest.inputs[2:]] == [
        ("level", "int32", ("batch",)), ("shift", "float32", ("batch",)), ("text", "float32", ("batch", "length", 3)),
    ]  # fmt: skip
    names = {"latents": "x", "timestep": "t", "parameterization": "flow"}
    with pytest.raises(ZeusError, match="inputs: got level, which is no tensor of int32"):
        import_model(tmp_path / "flow.onnx", tmp_path / "other", **names, inputs={"level": 0.5})


def test_wrong_names_list_the_inputs_of_the_graph(tmp_path):
    path = write_foreign(tmp_path / "whole.onnx", "whole", "sigma")
    for names, option in (({"latents": "sample"}, "latents"), ({"timestep": "sigma"}, "timestep")):
        with pytest.raises(ZeusError, match=rf"^{option}: got .*x float32 \(n, 1, 4, 4\); t float32 \(n\)"):
            import_model(path, tmp_path / "bundle", **{"latents": "x", "timestep": "t", **names})
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameterization": "edm", "scheduler": "EulerDiscreteScheduler"}, "parameterization: got edm with Euler"),
        ({"parameterization": "epsilon", "scheduler": "EDMEulerScheduler"}, "diffusers calls epsilon there is edm"),
        ({"parameterization": "score"}, "parameterization: got 'score'; expected one of epsilon, v, flow, sample, edm"),
        ({"timestep_is": "alpha"}, "timestep_is: got 'alpha'; expected one of sigma, timestep, log-sigma"),
        ({"scheduler": "NoScheduler"}, "scheduler: got class 'NoScheduler'"),
        ({"scheduler": "nowhere/at/all"}, "scheduler: got nowhere/at/all; expected a scheduler's config"),
        ({"latents": "t"}, "timestep: got 't', which is the latents"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence_and_leaves_nothing(tmp_path, options, message):
    path = write_foreign(tmp_path / "whole.onnx", "whole", "sigma")
    with pytest.raises(ZeusError, match=message):
        import_model(path, tmp_path / "bundle", **{"latents": "x", "timestep": "t", **options})
    assert [entry.name for entry in tmp_path.iterdir()] == ["whole.onnx"]


def test_graphs_that_answer_badly_are_refused(tmp_path):
    options = {"parameterization": "edm", "timestep_is": "sigma"}
    with pytest.raises(ZeusError, match="got an output y of numbers that are not finite for latents of"):
        make_bundle(tmp_path, "whole", "sigma", after="low = Neg(wide) bad = Log(low) b2 = Reshape(bad, column) "
                    "last = Add(made, b2)", **options)  # fmt: skip
    with pytest.raises(ZeusError, match=r"got an output y of shape \(3, 2, 4, 4\) for latents of \(3, 1, 4, 4\)"):
        make_bundle(tmp_path, "whole", "sigma", after="last = Concat<axis = 1>(made, made)", outputs="float[n,2,4,4] y",
                    **options)  # fmt: skip
    with pytest.raises(ZeusError, match=r"latents: got x float32 .4, 1, 4, 4., a batch of 4; expected an axis that is"):
        make_bundle(tmp_path, "whole", "sigma", latents="4,1,4,4", **options)
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(ZeusError, match=r"model: got .*broken\.onnx, which does not read"):
        import_model(tmp_path / "broken.onnx", tmp_path / "bundle", latents="x", timestep="t")
