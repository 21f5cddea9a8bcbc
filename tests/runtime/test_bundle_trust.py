"""What is not listed is not read, and what was checked is what is used."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkout import edit_json
from small_bundle import STEPS, list_file, make_graph, write_bundle

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine, Session
from zeus_trt.zeus_graph import SolverProgram

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def bundle(tmp_path):
    return write_bundle(tmp_path / "bundle")


def sample(bundle: Path | Bundle, num_steps: int = STEPS) -> torch.Tensor:
    with Session(bundle, backend="onnxruntime") as session:
        noise = torch.ones(1, 1, 4, 4)
        return session.generate(plan=session.plan(num_steps, 1), num_steps=num_steps, noise=noise).latents


def test_the_small_bundle_runs(bundle):
    assert sample(bundle).isfinite().all()


def test_a_solver_that_is_not_listed_is_not_read(bundle):
    expected = sample(bundle, 4)  # traced for this run
    solver = SolverProgram.load(bundle / "solvers" / f"{STEPS}.json").to_json()
    (bundle / "solvers" / "4.json").write_text(json.dumps({**solver, "num_steps": 4}))
    assert not Bundle.open(bundle).has_solver(4)
    assert torch.equal(sample(bundle, 4), expected)


def test_only_listed_files_can_be_read(bundle):
    (bundle / "notes.json").write_text("{}")
    with pytest.raises(ZeusError, match=r"got no notes.json in the manifest"):
        Bundle.open(bundle).read("notes.json")


@pytest.mark.parametrize("name", ["graphs/fp32/denoiser.onnx", "scheduler/scheduler_config.json"])
def test_required_files_are_listed(bundle, name):
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    for kept in ({}, {other: entry for other, entry in files.items() if other != name}):
        edit_json(bundle / "manifest.json", files=kept)
        with pytest.raises(ZeusError, match=f"files lack .*{name}"):
            Bundle.open(bundle)


def test_weights_that_the_graph_reads_are_listed(bundle):
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    del files["graphs/fp32/denoiser.onnx.data"]
    edit_json(bundle / "manifest.json", files=files)
    with pytest.raises(ZeusError, match=r"a graph that reads denoiser\.onnx\.data"):
        Bundle.open(bundle)


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/hostname", "other.data", "./denoiser.onnx.data", "a\x1b[2J\nb"]
)
def test_a_graph_reads_no_file_but_the_listed_ones(bundle, location):
    (bundle.parent / "secret").write_bytes(b"\0" * 64)
    (bundle / "graphs/fp32/denoiser.onnx").write_bytes(make_graph(location).SerializeToString())
    list_file(bundle, "graphs/fp32/denoiser.onnx")
    with pytest.raises(ZeusError, match="a graph that reads") as caught:
        Bundle.open(bundle)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/hostname", "a/../../secret", "a\\..\\secret", "C:secret", "", "a//b", "./a", "a/.", "a\nb"],
)
def test_names_stay_in_the_folder(bundle, name):
    (bundle.parent / "secret").write_bytes(b"secret")
    list_file(bundle, name, bundle.parent / "secret")
    with pytest.raises(ZeusError, match="no path inside the folder"):
        Bundle.open(bundle)


@pytest.mark.parametrize("name", ["graphs/fp32/denoiser.onnx.data", "scheduler/scheduler_config.json", "manifest.json"])
def test_links_do_not_leave_the_folder(bundle, name):
    outside = bundle.parent / "outside"
    shutil.move(bundle / name, outside)
    (bundle / name).symlink_to(outside)
    with pytest.raises(ZeusError, match=r"a link leads to|without a readable manifest"):
        Bundle.open(bundle)


def test_a_linked_folder_inside_does_not_leave_either(bundle):
    shutil.move(bundle / "solvers", bundle.parent / "solvers")
    (bundle / "solvers").symlink_to(bundle.parent / "solvers", target_is_directory=True)
    with pytest.raises(ZeusError, match="a link leads to"):
        Bundle.open(bundle)


def test_links_inside_and_a_link_to_the_folder_are_fine(bundle):
    expected = sample(bundle)
    folder = bundle / "graphs/fp32"
    (folder / "weights").mkdir()
    shutil.move(folder / "denoiser.onnx.data", folder / "weights" / "data")
    (folder / "denoiser.onnx.data").symlink_to(Path("weights") / "data")
    link = bundle.parent / "link"
    link.symlink_to(bundle, target_is_directory=True)
    assert torch.equal(sample(link), expected)


def test_a_link_to_itself_is_refused(bundle):
    (bundle / "graphs/fp32/denoiser.onnx.data").unlink()
    (bundle / "graphs/fp32/denoiser.onnx.data").symlink_to("denoiser.onnx.data")
    with pytest.raises(ZeusError, match=r"denoiser\.onnx\.data"):
        Bundle.open(bundle)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_no_file(bundle):
    (bundle / "graphs/fp32/denoiser.onnx.data").unlink()
    os.mkfifo(bundle / "graphs/fp32/denoiser.onnx.data")
    with pytest.raises(ZeusError, match=r"without graphs/fp32/denoiser\.onnx\.data"):
        Bundle.open(bundle)


def flip(path: Path) -> None:
    """Changes a byte in place: size, inode and modification time stay."""
    state = path.stat()
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def replace(path: Path) -> None:
    """Puts another file of the same size and times into its place."""
    other = Path(shutil.copy2(path, path.with_name("other")))
    flip(other)
    os.replace(other, path)


@pytest.mark.parametrize("change", [flip, replace])
@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("graphs/fp32/denoiser.onnx", lambda opened: opened.graph()),
        ("graphs/fp32/denoiser.onnx.data", lambda opened: opened.graph()),
        ("graphs/fp32/denoiser.onnx.data", sample),
        ("scheduler/scheduler_config.json", lambda opened: opened.scheduler_config),
        (f"solvers/{STEPS}.json", lambda opened: opened.read_solver(STEPS)),
        (f"solvers/{STEPS}.json", sample),
    ],
)
def test_a_file_that_changed_after_opening_is_refused(bundle, name: str, use: Callable, change: Callable):
    opened = Bundle.open(bundle)
    change(bundle / name)
    with pytest.raises(ZeusError, match="other content"):
        use(opened)


def test_a_file_that_was_only_touched_is_taken(bundle):
    opened = Bundle.open(bundle)
    os.utime(bundle / "graphs/fp32/denoiser.onnx")
    assert opened.graph() == bundle / "graphs/fp32/denoiser.onnx"


def test_the_manifest_finds_its_own_changes(bundle):
    manifest = bundle / "manifest.json"
    data = json.loads(manifest.read_text())
    for change in ({"prediction_type": "v_prediction"}, {"manifest_sha256": "0" * 64}, {"manifest_sha256": None}):
        manifest.write_text(json.dumps({**data, **change}))
        with pytest.raises(ZeusError, match=r"manifest_sha256.*Export the model again"):
            Bundle.open(bundle)
    del data["manifest_sha256"]  # as an older zeus-trt wrote it
    manifest.write_text(json.dumps(data))
    with pytest.raises(ZeusError, match=r"got no manifest_sha256.*made by an older zeus-trt. Export the model again"):
        Bundle.open(bundle)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": []}, "do not begin with latents"),
        ({"guidance": "psychic"}, "guidance is 'psychic'"),
        ({"graphs": []}, "no graph"),
        ({"graphs": [{"precision": "fp32"}, {"precision": "fp32"}]}, "two of one precision"),
        ({"graphs": [{"precision": "fp4"}]}, "fp4"),
        ({"graphs": [{"precision": "fp16"}]}, "files lack graphs/fp16/denoiser.onnx"),
        ({"constant_axis": 9}, "constant_axis"),
        ({"constant_axis": 1}, "constant_axis and the role"),
        ({"output": {"name": "model_output", "dtype": "float32", "axes": ["batch", 2]}}, "other axes than the latents"),
        ({"output": {"name": "model_output", "dtype": "float16", "axes": ["batch", 2]}}, "type than float32"),
        ({"symbols": []}, "no symbol batch"),
        ({"symbols": [{"name": "batch", "observed": [2]}] * 2}, "two of one name"),
        ({"symbols": [{"name": "batch", "observed": [0]}]}, "batch has the size 0"),
        ({"symbols": [{"name": "batch", "observed": [2], "multiple_of": 2**40}]}, "the size 1099511627776"),
        ({"symbols": [{"name": "batch", "observed": [2], "scale": "1/0"}]}, "no fraction"),
        ({"symbols": [{"name": "batch", "observed": [2], "unit": "1e999999999"}]}, "no fraction"),
        ({"symbols": [{"name": "batch", "observed": [2], "factors": ["width"]}]}, "no symbol width"),
        ({"symbols": [{"name": "batch", "observed": [2], "factors": ["batch"]}]}, "factor of itself"),
        (
            {"symbols": [{"name": n, "observed": [2], "factors": [f]} for n, f in (("batch", "b"), ("b", "c"), "cb")]},
            "the symbol b is a factor of itself",
        ),
        ({"labels": {"count": 10, "null": 11}}, "null label 11"),
        ({"weights_sha256": "none"}, "weights_sha256"),
        ({"output": {"name": "model_output", "dtype": "nn", "axes": ["batch"]}}, "unknown dtype 'nn'"),
        ({"files": {"graphs/fp32/denoiser.onnx": {"size": -1, "sha256": "0" * 64}}}, "no size and digest"),
        ({"files": {"graphs/fp32/denoiser.onnx": {"size": 1, "sha256": "0"}}}, "no size and digest"),
        ({"surprise": 1}, "unknown field surprise"),
        ({"timestep_scale": "1"}, "timestep_scale"),
        (
            {"graphs": [{"precision": "fp32", "verification": [
                {"backend": "", "shape": [], "dtype": "", "max_error": -1, "relative_error": 0}]}]},
            "an error that is no number from 0 on",
        ),
    ],
)  # fmt: skip
def test_parts_of_a_manifest_fit_each_other(bundle, changes, said):
    edit_json(bundle / "manifest.json", **changes)
    with pytest.raises(ZeusError, match=said):
        Bundle.open(bundle)


def test_no_field_of_a_manifest_reaches_the_terminal_raw(bundle):
    evil = "a\x1b[2J\n\u202eb"
    edit_json(bundle / "manifest.json", model=evil, denoiser_class=evil, prediction_type=evil, versions={evil: evil})
    opened = Bundle.open(bundle)
    assert all(line.isprintable() for line in opened.describe().split("\n"))
    assert opened.manifest.describe().isprintable()
    assert opened.describe().count("\n") == Bundle.open(write_bundle(bundle.parent / "other")).describe().count("\n")


def test_a_solver_with_another_matrix_is_another_solver(bundle):
    """Its fingerprint covers all: who changes a matrix and lists the file anew is found out."""
    file = bundle / "solvers" / f"{STEPS}.json"
    data = json.loads(file.read_text())
    data["matrices"][1][0][0] += 1e-12
    file.write_text(json.dumps(data))
    list_file(bundle, f"solvers/{STEPS}.json")
    with pytest.raises(ZeusError, match="fingerprint is that of another program"):
        Session(Bundle.open(bundle)).plan(STEPS, 1)


def test_weights_that_are_written_while_in_use_are_refused(bundle):
    """ONNX Runtime maps them: without a look at the file, the next image would be another one."""
    engine = OnnxRuntimeEngine(Bundle.open(bundle).graph())
    given = {"sample": torch.ones(1, 1, 4, 4), "timestep": torch.zeros(1)}
    expected = engine(**given)
    os.replace(
        shutil.copy(bundle / "graphs/fp32/denoiser.onnx.data", bundle / "copy"),
        bundle / "graphs/fp32/denoiser.onnx.data",
    )
    assert torch.equal(engine(**given), expected)  # replaced by a rename: the mapped file is still there
    engine.close()
    engine = OnnxRuntimeEngine(Bundle.open(bundle).graph())
    with (bundle / "graphs/fp32/denoiser.onnx.data").open("r+b") as file:
        file.write(b"\0" * 64)
    with pytest.raises(ZeusError, match="written while the engine used it"):
        engine(**given)
    engine.close()
