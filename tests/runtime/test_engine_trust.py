"""Engines from anywhere: native code that is never loaded unless this machine built it, or the user says so."""

import os
import resource
import shutil
import tempfile
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace

import pytest
import torch
from aot_double import HERE, MANIFEST, edit, refuse, write
from click.testing import CliRunner
from engine_samples import ASKED, make_record, write_engine

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle, Session
from zeus_trt.runtime.bundle import engine_file
from zeus_trt.runtime.bundle.engine_folder import AOT_INDUCTOR, find_engine, list_engines
from zeus_trt.runtime.bundle.engine_record import FILE_NAME, Target
from zeus_trt.runtime.bundle.engine_trust import check_trust, is_signed, sign, trust_engines
from zeus_trt.runtime.bundle.manifest import FileEntry, graph_name
from zeus_trt.runtime.bundle.signing_key import make_key
from zeus_trt.runtime.engines.choose import choose_engine, open_engine
from zeus_trt.scratch import NEW, PREFIX


def test_an_engine_that_was_built_here_is_loaded(home, engines, loaded):
    write(engines)
    engine, reason = choose_engine(engines, AOT_INDUCTOR, "cpu")
    assert reason == "asked for"
    assert engine.record.key == HERE.key
    assert [data for data, *_ in loaded] == [b"engine"]


def test_an_engine_from_elsewhere_is_not_loaded(home, engines, loaded):
    write(engines, signed=False)
    reason = (
        rf"got {HERE.key}: not built on this machine; .*zeus-trt build .*set trust_engines \(ZEUS_TRT_TRUST_ENGINES=1\)"
    )
    refuse(engines, reason)
    make_key()  # with a key of its own the machine knows it no better
    refuse(engines, reason)
    with pytest.raises(ZeusError, match=reason):
        open_engine(engines, AOT_INDUCTOR, "cpu")
    assert loaded == []


def test_the_key_of_another_machine_is_another(home, engines, loaded, tmp_path_factory, monkeypatch):
    write(engines)
    monkeypatch.setenv("ZEUS_TRT_DATA_HOME", str(tmp_path_factory.mktemp("another")))
    refuse(engines, "not built on this machine")
    make_key()
    refuse(engines, "not built on this machine")
    assert loaded == []


def test_looking_makes_no_key(home, engines):
    write(engines, signed=False)
    list_engines(engines.path)
    assert list(home.iterdir()) == []


def test_every_way_to_trust(home, engines, loaded, monkeypatch):
    write(engines, signed=False)
    assert choose_engine(engines, AOT_INDUCTOR, "cpu", trust_engines=True)[1] == "asked for"
    assert open_engine(engines, AOT_INDUCTOR, "cpu", True).backend == AOT_INDUCTOR
    with trust_engines():
        assert open_engine(engines, AOT_INDUCTOR, "cpu").backend == AOT_INDUCTOR
        refuse(engines, "not built on this machine", trust_engines=False)
    refuse(engines, "not built on this machine")
    monkeypatch.setenv("ZEUS_TRT_TRUST_ENGINES", "1")
    assert open_engine(engines, AOT_INDUCTOR, "cpu").backend == AOT_INDUCTOR
    refuse(engines, "not built on this machine", trust_engines=False)
    assert len(loaded) == 4


@pytest.mark.parametrize("value", ["2", "false", "01", " 1"])
def test_a_variable_that_says_neither_is_refused(monkeypatch, value):
    monkeypatch.setenv("ZEUS_TRT_TRUST_ENGINES", value)
    with pytest.raises(ZeusError, match=r"ZEUS_TRT_TRUST_ENGINES: got .*; expected 0 or 1"):
        check_trust(None)


@pytest.mark.parametrize("value", ["no", 1, 0, "True"])
def test_trust_is_a_bool(engines, value):
    refuse(engines, "trust_engines: got .*; expected True, False or None", trust_engines=value)


@pytest.mark.parametrize(("value", "trusts"), [("", False), ("0", False), ("1", True)])
def test_the_variable(monkeypatch, value, trusts):
    monkeypatch.setenv("ZEUS_TRT_TRUST_ENGINES", value)
    assert check_trust(None) is trusts
    assert check_trust(False) is False


CHANGES = {
    "file": {"file": "other.pt2"},
    "size": {"size": 7},
    "sha256": {"sha256": sha256(b"hostile").hexdigest()},
    "build_seconds": {"build_seconds": 9.0},
    "signature": {"signature": "0" * 64},
    "no signature": {"signature": ""},
    "signature of other text": {"signature": "\u00e9" * 64},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_signature_covers_every_field(home, engines, loaded, name):
    file = write(engines)
    (file.parent / "other.pt2").write_bytes(b"engine")
    edit(file, **CHANGES[name])
    refuse(engines, "not built on this machine")
    assert loaded == []


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "fp16"}, {"backend_version": "1"}, {"exporter_version": "9"}, {"options": {"tf32": True}},
        {"graph_sha256": "c" * 64}, {"weights_sha256": "c" * 64}, {"target": Target(("sm_1",))}, {"profile": {}},
    ],
    ids=str,
)  # fmt: skip
def test_a_signature_covers_the_spec(change):
    record = sign(make_record(HERE), b"k" * 32)
    assert is_signed(record, b"k" * 32)
    assert not is_signed(replace(record, spec=replace(HERE, **change)), b"k" * 32)
    assert not is_signed(record, b"l" * 32)


def test_a_record_over_another_file(home, engines, loaded):
    good = write(engines)
    hostile = write(engines, replace(HERE, exporter_version="9"), data=b"hostile", signed=False)
    shutil.copy(good.parent / FILE_NAME, hostile.parent / FILE_NAME)
    good.write_bytes(b"hostil")  # as long as it was
    refuse(engines, "was changed since it was built")
    shutil.rmtree(good.parent)
    refuse(engines, f"{hostile.parent.name}: its record is that of {HERE.key}")
    assert loaded == []


def test_a_signed_engine_in_another_bundle(home, engines, loaded, tmp_path_factory):
    write(engines)
    other = tmp_path_factory.mktemp("other")
    shutil.copytree(engines.path / "engines", other / "engines")
    files = {graph_name("fp32"): FileEntry(1, "c" * 64)}
    refuse(Bundle(other, replace(MANIFEST, files=files)), "built from another graph")
    refuse(Bundle(other, replace(MANIFEST, weights_sha256="c" * 64)), "built from other weights")
    assert loaded == []


@pytest.mark.parametrize("name", ["../denoiser.pt2", "/etc/passwd", "..", ".", "", "a/b.pt2", "a\\b.pt2", "a\0b"])
def test_a_file_that_is_not_beside_its_record(home, engines, loaded, name):
    file = write(engines)
    edit(file, file=name)
    refuse(engines, "is not beside its record", trust_engines=True)
    assert loaded == []


@pytest.mark.parametrize("link", ["file", "record", "folder"])
def test_links_that_leave_the_bundle(home, engines, loaded, tmp_path_factory, link):
    file = write(engines)
    outside = tmp_path_factory.mktemp("outside")
    moved = {"file": file, "record": file.parent / FILE_NAME, "folder": file.parent}[link]
    moved.rename(outside / moved.name)
    moved.symlink_to(outside / moved.name)
    refuse(engines, "is outside of the bundle", trust_engines=True)
    moved.unlink()
    moved.symlink_to(moved.name)  # in a circle
    refuse(engines, "got no aot-inductor engine|cannot be found", trust_engines=True)
    assert loaded == []


def test_a_pipe_is_not_waited_for(home, engines, loaded):
    file = write(engines)
    for name, reason in ((file, "is no file"), (file.parent / FILE_NAME, "is no file")):
        name.unlink()
        os.mkfifo(name)
        refuse(engines, reason, trust_engines=True)
    assert loaded == []


def test_a_file_that_is_swapped_while_it_is_opened(home, engines, loaded, monkeypatch):
    file = write(engines)
    real = engine_file._open

    def swap(path):
        if path == file:
            file.unlink()
            file.write_bytes(b"hostil")
        return real(path)

    monkeypatch.setattr(engine_file, "_open", swap)
    refuse(engines, "was changed since it was built")
    assert loaded == []


def test_what_was_checked_is_what_is_loaded(home, engines, loaded, monkeypatch):
    """The file changes right before torch opens a path: torch has its own copy, where nobody else writes."""
    file = write(engines)
    double = torch._inductor.aoti_load_package

    def load(path, **options):
        file.write_bytes(b"hostil")
        return double(path, **options)

    monkeypatch.setattr(torch._inductor, "aoti_load_package", load)
    choose_engine(engines, AOT_INDUCTOR, "cpu")
    ((data, path, mode),) = loaded
    assert data == b"engine"
    assert path != str(file)
    assert mode == 0o700
    assert not os.path.exists(path)


def test_copies_of_dead_processes_go(home, engines, loaded, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, other = tmp_path / f"{PREFIX}dead", tmp_path / "other"
    for folder in (dead / NEW, other):
        folder.mkdir(parents=True)
        (folder / "denoiser.pt2").write_bytes(b"engine")
    write(engines)
    choose_engine(engines, AOT_INDUCTOR, "cpu")
    assert len(loaded) == 1
    assert list(tmp_path.glob("**/*.pt2")) == [other / "denoiser.pt2"]


@pytest.mark.parametrize("words", ["", " \n", "one\ntwo"])
def test_a_package_that_does_not_load(home, engines, monkeypatch, words):
    def fail(*args, **options):
        raise RuntimeError(words)

    write(engines)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", fail)
    refuse(engines, rf"which does not load \(RuntimeError{': one two' if words.strip() else ''}\); expected a package")


def test_a_key_that_cannot_be_used_is_said(home, engines, loaded, caplog):
    write(engines)
    (home / "engine.key").chmod(0o644)
    with pytest.raises(ZeusError):  # the graph of this bundle is a double: nothing else runs
        choose_engine(engines, "auto", "cpu")
    assert "has mode 644; expected a file of yours of mode 600" in caplog.text
    assert loaded == []


def test_no_room_for_the_copy(home, engines, loaded):
    write(engines)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))  # as a full disk does
    try:
        refuse(engines, r"got no room for a copy of denoiser\.engine \(File too large\); expected 0 MiB .*set TMPDIR")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert loaded == []


def test_tensorrt_reads_a_plan_once(home, double, tmp_path, monkeypatch):
    from zeus_trt.runtime.engines import tensorrt as tensorrt_engine

    file = write_engine(tmp_path)
    found, got = find_engine(tmp_path, ASKED), []
    real = tensorrt_engine.read_engine

    def read(path, record):
        data = real(path, record)
        file.write_bytes(b"hostil")
        return data

    monkeypatch.setattr(tensorrt_engine, "read_engine", read)
    deserialize = double.deserialize
    monkeypatch.setattr(double, "deserialize", lambda data: [got.append(data), deserialize(data)][1])
    manifest = SimpleNamespace(inputs=(), output=SimpleNamespace(name="model_output"), symbols=())
    tensorrt_engine.TensorRTEngine(found, manifest, device="cpu")
    assert got == [b"engine"]
    with pytest.raises(ZeusError, match="was changed since it was built"):
        tensorrt_engine.TensorRTEngine(found, manifest, device="cpu")


def test_tensorrt_refuses_what_was_not_built_here(home, double, tmp_path):
    from zeus_trt.runtime.engines.tensorrt import TensorRTEngine

    write_engine(tmp_path, signed=False)
    with pytest.raises(ZeusError, match="not built on this machine"):
        find_engine(tmp_path, ASKED)
    (listed,) = list_engines(tmp_path)
    with pytest.raises(ZeusError, match="not built on this machine"):
        TensorRTEngine(listed, MANIFEST, device="cpu")
    assert find_engine(tmp_path, ASKED, trust=True).reasons == ()


@pytest.fixture
def hostile(digits_bundle, tmp_path, home):
    """A real bundle, with an engine in it that this machine did not build."""
    path = shutil.copytree(digits_bundle("unet-flow"), tmp_path / "from anywhere")
    manifest = Bundle.open(path).manifest
    spec = replace(HERE, graph_sha256=manifest.files[graph_name("fp32")].sha256, weights_sha256=manifest.weights_sha256)
    write_engine(path, spec, b"hostile", signed=False)
    return path


def test_a_session_takes_another_backend_and_says_why(hostile, loaded, caplog):
    with Session(hostile, device="cpu") as session:
        assert session.backend == "onnxruntime"
        assert "not built on this machine" in session.backend_reason
        assert "not built on this machine" in caplog.text
    assert loaded == []
    with pytest.raises(ZeusError, match=r"not built on this machine.*zeus-trt build .*or set trust_engines"):
        Session(hostile, backend=AOT_INDUCTOR, device="cpu")
    assert loaded == []
    with Session(hostile, trust_engines=True, device="cpu") as session:
        assert session.backend == AOT_INDUCTOR
    assert [data for data, *_ in loaded] == [b"hostile"]


def test_commands_load_nothing_that_was_not_built_here(hostile, loaded, tmp_path):
    words = ["run", str(hostile), "--steps", "2", "--ratio", "0", "--num-images", "1", "-o", str(tmp_path / "a.png")]
    done = CliRunner().invoke(main, words)
    assert "call onnxruntime" in done.output
    refused = CliRunner().invoke(main, [*words, "--backend", AOT_INDUCTOR])
    assert refused.exit_code == 1
    assert "not built on this machine" in refused.output
    compared = CliRunner().invoke(main, ["compare", str(hostile), "--backend", AOT_INDUCTOR, "--steps", "2"])
    assert compared.exit_code == 1
    assert "not built on this machine" in compared.output
    assert "refused: not built on this machine" in CliRunner().invoke(main, ["inspect", str(hostile)]).output
    assert loaded == []
    CliRunner().invoke(main, [*words, "--trust-engines"])
    assert [data for data, *_ in loaded] == [b"hostile"]
    assert check_trust(None) is False  # the option ends with its command
