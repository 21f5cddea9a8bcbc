"""Triton model repositories, and their models on a double of Triton; test_triton_server.py runs a real one."""

import json
import re
import runpy
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from engine_samples import SPEC, write_engine
from small_bundle import STEPS, write_bundle
from toy_bundle import GUIDANCE, LABELS, TEXT, TensorSpec, make_manifest
from triton_double import InferenceResponse, Request, make_arguments, use_module

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.export.triton import package_triton
from zeus_trt.export.triton_config import Served, find_max_rows, write_denoiser, write_sampler
from zeus_trt.runtime import Session
from zeus_trt.runtime.bundle.precision import Precision

IDS = TensorSpec("img_ids", "float32", ("length", 3), "size")
FILL = TensorSpec("length", "int64", (), value="length")
LETTERS = "FFFFXRFXRFXRFXFXFFFF"
MIXED = "FFQQXRFXRQXRFXQXFFFF"
ONNX = Served({"backend": "onnxruntime", "default_model_filename": "denoiser.onnx"}, {})


@pytest.fixture
def small(tmp_path):
    return write_bundle(tmp_path / "small")


@pytest.fixture(scope="module")
def tiny(quantized_tiny, tmp_path_factory):
    """A class-conditional bundle with a graph in 8 bits, and its repository."""
    output = tmp_path_factory.mktemp("triton") / "models"
    package_triton(quantized_tiny, output, denoiser_backend="python", max_rows=4)
    return quantized_tiny, output


class Server:
    """The double's models: calls of the denoiser reach it one by one, as a batcher without patience makes them."""

    def __init__(self, repository, patch):
        self.rows = {"denoiser": [], "quantized": []}
        use_module(patch, self._call)
        self.models = {folder.name: self._open(folder) for folder in repository.iterdir()}
        self.denoiser, self.sampler = self.models["denoiser"], self.models["sampler"]

    def ask(self, *requests):
        """The responses of each request."""
        self.sampler.execute(requests)
        self.sampler.finalize()
        assert all(request.sender.is_done for request in requests)
        return [request.sender.responses for request in requests]

    def _open(self, folder):
        model = runpy.run_path(str(folder / "1" / "model.py"))["TritonPythonModel"]()
        config = (folder / "config.pbtxt").read_text()
        model.initialize(
            make_arguments(folder, dict(re.findall(r'key: "(\w+)", value { string_value: "(.*?)"', config)))
        )
        return model

    def _call(self, model, request):
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        self.rows[model].append(len(arrays["sample"]))
        flat = {name: array[:, 0] if name != "sample" else array for name, array in arrays.items()}  # config's reshape
        return self.models[model].execute([Request(**flat)])[0]


@pytest.fixture
def server(tiny, monkeypatch):
    return Server(tiny[1], monkeypatch)


def parse(text):
    """The config as Triton's published protobuf reads it."""
    published = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="pip install tritonclient[grpc]")
    from google.protobuf import text_format

    return text_format.Parse(text, published.ModelConfig())


def ask(**settings):
    """A request with one value in each setting."""
    kinds = {"num_steps": np.int32, "ratio": np.int32, "every": np.int32, "seed": np.int64, "plan": object}
    arrays = {name: np.array([value], kinds.get(name, np.float64)) for name, value in settings.items()}
    return Request(class_labels=np.array([1, 3]), **{"num_steps": np.array([20], np.int32), **arrays})


def read_error(responses):
    (response,) = responses
    return response.error().message()


@pytest.mark.parametrize("conditioning", [(), (LABELS,), (TEXT, GUIDANCE)])
def test_batched_config_is_what_triton_publishes(conditioning):
    manifest = make_manifest(*conditioning)
    config = parse(write_denoiser(manifest, ONNX, find_max_rows(manifest, 16), 500))
    assert (config.name, config.backend, config.max_batch_size) == ("denoiser", "onnxruntime", 16)
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [spec.name for spec in config.input] == [spec.name for spec in manifest.inputs]
    assert (list(config.input[0].dims), list(config.output[0].dims)) == ([4, -1, -1], [4, -1, -1])
    assert config.input[1].dims == [1]
    assert config.input[1].HasField("reshape")
    assert not config.input[1].reshape.shape


def test_sampler_config_is_what_triton_publishes():
    config = parse(write_sampler(make_manifest(TEXT, GUIDANCE), 16, 8))
    required = [spec.name for spec in config.input if not spec.optional]
    assert config.model_transaction_policy.decoupled
    assert config.max_batch_size == 0
    assert required == ["encoder_hidden_states"]
    assert {"negative_encoder_hidden_states", "noise", "seed", "plan", "guidance"} <= {i.name for i in config.input}
    assert config.parameters["trajectories"].string_value == "8"


@pytest.mark.parametrize("conditioning", [(IDS,), (FILL,)])
def test_batcher_is_off_where_an_input_has_no_rows(conditioning):
    manifest = make_manifest(*conditioning)
    config = parse(write_denoiser(manifest, ONNX, find_max_rows(manifest, 16), 500))
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == [-1, 4, -1, -1]


def test_batcher_keeps_to_the_limit_of_the_graph():
    manifest = make_manifest()
    batch, *others = manifest.symbols
    assert find_max_rows(replace(manifest, symbols=(replace(batch, maximum=6), *others)), 16) == 6


def test_repository_has_the_graph_and_the_solvers(small, tmp_path):
    files = package_triton(small, tmp_path / "models")
    assert files == (
        "denoiser/1/denoiser.onnx", "denoiser/1/denoiser.onnx.data", "denoiser/config.pbtxt",
        "sampler/1/bundle/manifest.json", "sampler/1/bundle/scheduler/scheduler_config.json",
        f"sampler/1/bundle/solvers/{STEPS}.json", "sampler/1/model.py", "sampler/config.pbtxt",
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt"])
def test_quantized_graph_or_engine_is_a_model_beside_the_denoiser(tmp_path, backend):
    bundle, output = write_bundle(tmp_path / "bundle", int8=0.2), tmp_path / "models"
    file = {"onnxruntime": "denoiser.onnx", "tensorrt": "model.plan"}[backend]
    write_engine(bundle, replace(SPEC, backend="tensorrt", precision=Precision.FP32, options={}))
    if backend == "tensorrt":
        assert not [name for name in package_triton(bundle, output, denoiser_backend=backend) if "quantized" in name]
        write_engine(bundle, replace(SPEC, backend="tensorrt", precision=Precision.INT8, options={}), b"int8")
        assert "quantized" not in (output / "sampler/config.pbtxt").read_text()
    files = package_triton(bundle, output, denoiser_backend=backend, overwrite=output.exists())
    assert {f"{name}/1/{file}" for name in ("denoiser", "quantized")} <= set(files)
    configs = [(output / name / "config.pbtxt").read_text() for name in ("denoiser", "quantized")]
    assert configs[0].replace('"denoiser"', '"quantized"', 1) == configs[1]
    assert '{ key: "quantized", value { string_value: "quantized" } }' in (output / "sampler/config.pbtxt").read_text()
    package_triton(bundle, output, precision="int8", overwrite=True)
    assert {path.name for path in output.iterdir()} == {"denoiser", "sampler"}


@pytest.mark.parametrize(
    ("backend", "line", "file"),
    [
        ("tensorrt", 'platform: "tensorrt_plan"', "denoiser/1/model.plan"),
        ("aot-inductor", 'value { string_value: "aot-inductor" }', "denoiser/1/bundle/engines/{}/denoiser.engine"),
    ],
)
def test_engine_of_the_bundle_is_served(small, tmp_path, backend, line, file):
    spec = replace(SPEC, backend=backend, precision=Precision.FP32, options={})
    engine = write_engine(small, spec)
    files = package_triton(small, tmp_path / "models", denoiser_backend=backend)
    config = (tmp_path / "models/denoiser/config.pbtxt").read_text()
    assert file.format(engine.parent.name) in files
    assert line in config
    assert "max_batch_size: 4" in config  # that of the engine's profile
    engine.write_bytes(b"other!")
    with pytest.raises(ZeusError, match="was changed since it was built"):
        package_triton(small, tmp_path / "again", denoiser_backend=backend)


def test_only_a_repository_of_ours_is_replaced(small, tmp_path):
    output = tmp_path / "models"
    package_triton(small, output)
    with pytest.raises(ZeusError, match="which exists"):
        package_triton(small, output)
    package_triton(small, output, overwrite=True, max_rows=3)
    assert "max_batch_size: 3" in (output / "denoiser/config.pbtxt").read_text()
    (output / "mine").mkdir()
    with pytest.raises(ZeusError, match="other content than the models"):
        package_triton(small, output, overwrite=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"denoiser_backend": "tensorrt"}, "no tensorrt engine in fp32"),
        ({"denoiser_backend": "aot-inductor"}, "no aot-inductor engine in fp32"),
        ({"denoiser_backend": "openvino"}, "expected one of onnxruntime, tensorrt, python, aot-inductor"),
        ({"precision": "fp16"}, "graphs in fp32"),
        ({"max_rows": 0}, "at least 1"),
    ],
)
def test_wrong_words_leave_nothing(small, tmp_path, settings, words):
    with pytest.raises(ZeusError, match=words):
        package_triton(small, tmp_path / "models", **settings)
    assert not (tmp_path / "models").exists()


def test_command_says_what_it_wrote(small, tmp_path):
    done = CliRunner().invoke(main, ["package", str(small), "--triton", "-o", str(tmp_path / "models"), "--json"])
    assert "denoiser/1/denoiser.onnx" in json.loads(done.stdout)["files"], done.output


def test_requests_with_other_plans_equal_program_mode(tiny, server):
    settings = [
        {**plan, "seed": 5 + scale, "guidance_scale": float(scale)}
        for scale in (1, 2)
        for plan in ({"ratio": 0}, {"ratio": 2}, {"ratio": 4}, {"plan": LETTERS}, {"plan": MIXED})
    ]
    with Session(tiny[0]) as session:
        for one, responses in zip(settings, server.ask(*(ask(**one) for one in settings)), strict=True):
            labels = {"class_labels": torch.tensor([1, 3])}
            expected = session.generate(labels, mode="program", num_steps=20, **one)
            found = responses[-1].tensors
            assert torch.equal(torch.from_numpy(found["latents"].as_numpy()), expected.latents)
            assert found["progress"].as_numpy().tolist() == [expected.report.nfe] * 2
    assert sorted(server.rows["quantized"]) == [2] * MIXED.count("Q") + [4] * MIXED.count("Q")


def test_q_needs_a_quantized_denoiser(small, tmp_path, monkeypatch):
    package_triton(small, tmp_path / "models", denoiser_backend="python")
    server = Server(tmp_path / "models", monkeypatch)
    ((response,),) = server.ask(Request(num_steps=np.array([STEPS]), plan=np.array(["FQXRF"], object)))
    assert "got Q for a repository without a quantized denoiser" in response.error().message()
    assert not server.rows["denoiser"]


def test_sampler_needs_no_diffusers(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    ((response,),) = server.ask(ask(ratio=0))
    assert not response.has_error()


def test_more_rows_than_a_call_takes_are_split(server):
    request = Request(class_labels=np.array([0, 1, 2]), num_steps=np.array([20]), guidance_scale=np.array([2.0]))
    ((response,),) = server.ask(request)
    assert len(response.tensors["latents"].as_numpy()) == 3
    assert set(server.rows["denoiser"]) == {4, 2}


def test_latents_are_streamed_where_asked(server):
    (responses,) = server.ask(ask(ratio=4, every=3))
    progress = [response.tensors["progress"].as_numpy().tolist() for response in responses]
    assert progress == [[3, 9], [6, 9], [9, 9]]


def test_trajectory_ends_when_its_client_has_gone(server):
    gone = ask(ratio=0, every=1)
    gone.sender._patience = 2
    (responses,) = server.ask(gone)
    assert len(responses) == 2
    assert len(server.rows["denoiser"]) < 20


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"plan": "FFXX"}, "got X as the last step"),
        ({"plan": "plan.json"}, "expected the letters F"),
        ({"plan": "F" * 19}, "19"),
        ({"plan": "{}"}, "format"),
        ({"plan": b"\xff"}, "expected the letters F"),
        ({"num_steps": 7}, "expected one of 20, 30, 50, whose solvers the bundle stores"),
        ({"num_steps": -1}, "num_steps"),
        ({"ratio": 1, "plan": LETTERS}, "beside a"),
        ({"every": -1}, "expected a number of full steps"),
        ({"guidance_scale": float("nan")}, "guidance_scale"),
    ],
)
def test_fault_of_a_request_is_its_own(server, settings, words):
    wrong, right = server.ask(ask(**settings), ask(ratio=4))
    assert words in read_error(wrong)
    assert not right[0].has_error()


def test_wrong_shapes_are_refused(server):
    two = Request(class_labels=np.array([1, 2, 3]), seed=np.array([1, 2]), num_steps=np.array([20]))
    noise = Request(class_labels=np.array([1]), noise=np.zeros((1, 1, 4, 4), np.float32), num_steps=np.array([20]))
    many = Request(class_labels=np.array([1]), num_steps=np.array([20, 30]))
    errors = [read_error(responses) for responses in server.ask(two, noise, many)]
    assert "got 2 seeds; expected 3" in errors[0]
    assert "noise: got 4" in errors[1]
    assert "got 2 values" in errors[2]


def test_error_of_the_denoiser_reaches_the_client(server):
    server.denoiser.finalize()
    assert "error from the model denoiser" in read_error(server.ask(ask(ratio=4))[0])


def test_joined_requests_are_one_call_of_the_engine(server):
    calls = []
    engine = server.denoiser._engine
    server.denoiser._engine = lambda **inputs: (calls.append(len(inputs["sample"])), engine(**inputs))[1]
    sample = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)).numpy()
    parts = [
        Request(sample=sample[rows], timestep=np.full(n, 9.0, np.float32), class_labels=np.arange(n))
        for rows, n in ((slice(0, 1), 1), (slice(1, 3), 2))
    ]
    answers = server.denoiser.execute(parts)
    assert calls == [3]
    assert [len(answer.tensors["model_output"].as_numpy()) for answer in answers] == [1, 2]
    assert isinstance(answers[0], InferenceResponse)


def test_numpy_that_the_server_was_not_built_for_is_refused(tiny, monkeypatch):
    server = Server(tiny[1], monkeypatch)
    monkeypatch.setattr("triton_double.Tensor.as_numpy", lambda tensor: np.broadcast_to(tensor._array[:1], 3))
    with pytest.raises(ZeusError, match=r"reads \[1, 2, 3\] as \[1, 1, 1\]"):
        server._open(tiny[1] / "sampler")
