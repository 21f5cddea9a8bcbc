"""Engine folders that are broken: reported with the reason, and in nobody's way."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from aot_double import HERE, MANIFEST, edit, refuse, write
from engine_samples import make_record

from zeus_trt.runtime.bundle.engine_folder import AOT_INDUCTOR, ask_engine, describe_engines, list_engines
from zeus_trt.runtime.bundle.engine_record import FILE_NAME, EngineRecord, Target
from zeus_trt.runtime.bundle.engine_trust import is_signed
from zeus_trt.runtime.engines.choose import choose_engine

BROKEN = {
    "no json": b"{",
    "nothing": b"",
    "deep": b"[" * 200_000,
    "huge": b" " * (1 << 20) + b"{}",
    "no text": b"\xff\xfe",
    "another format": b'{"format": 99}',
    "infinity": b'{"format": 1, "size": Infinity}',
    "a long number": b'{"format": 1, "size": ' + b"9" * 400 + b"}",
    "a list": b"[1]",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_record_is_reported_and_breaks_nothing_else(home, engines, loaded, name):
    good = write(engines)
    broken = write(engines, replace(HERE, exporter_version="9")).parent
    (broken / FILE_NAME).write_bytes(BROKEN[name])
    reported = {engine.path: engine for engine in list_engines(engines.path)}
    assert reported[good].reasons == ()
    assert reported[broken].record is None
    assert FILE_NAME in reported[broken].reasons[0]
    assert len(reported[broken].reasons[0]) < 300
    text = describe_engines(engines)
    assert f"{broken.name}, refused: {FILE_NAME}" in text
    assert "runs here" in text
    assert choose_engine(engines, AOT_INDUCTOR, "cpu")[1] == "asked for"
    shutil.rmtree(good.parent)
    refuse(engines, rf"got {broken.name}: {FILE_NAME}.*; expected one for aot-inductor")


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1}, {"size": "6"}, {"size": 1.5}, {"size": True}, {"sha256": 5}, {"spec": []}, {"extra": 1},
        {"build_seconds": "long"}, {"signature": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_of_wrong_types(home, engines, change):
    edit(write(engines), **change)
    (found,) = list_engines(engines.path)
    assert found.record is None
    assert found.reasons[0].startswith(f"{FILE_NAME}: got JSON that does not fit")


@pytest.mark.parametrize(
    "change",
    [
        {"target": {"sms": [], "gpu": None}}, {"target": {"sms": "cpu", "gpu": None}}, {"options": {"a": {}}},
        {"profile": {"sample": {"min": [1], "opt": [1, 1], "max": [1]}}}, {"profile": {"sample": None}}, {"key": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_spec_of_wrong_types(home, engines, change):
    file = write(engines)
    edit(file, spec=json.loads((file.parent / FILE_NAME).read_text())["spec"] | change)
    (found,) = list_engines(engines.path)
    assert found.record is None
    assert "does not fit" in found.reasons[0]


def test_a_size_that_no_memory_holds(home, engines, loaded):
    edit(write(engines), size=2**62)
    refuse(engines, "was changed since it was built", trust_engines=True)


def test_a_changed_engine_does_not_hide_an_older_one(home, engines, loaded):
    old, new = write(engines), write(engines, replace(HERE, exporter_version="9"), data=b"newest")
    os.utime(old.parent, (1, 1))
    new.write_bytes(b"hostil")
    assert choose_engine(engines, AOT_INDUCTOR, "cpu")[0].record.key == HERE.key


def test_engines_that_are_no_folders(home, engines):
    (engines.path / "engines").write_text("nothing")
    assert list_engines(engines.path) == ()
    (engines.path / "engines").unlink()
    (engines.path / "engines" / "empty").mkdir(parents=True)
    (engines.path / "engines" / ".left").mkdir()
    (engines.path / "engines" / "timing.cache").write_text("")
    (found,) = list_engines(engines.path)
    assert (found.path.name, found.reasons) == ("empty", (f"its file {FILE_NAME} is missing",))


def test_a_description_holds_no_control_characters(home, engines):
    spec = replace(HERE, backend_version="2\x1b[2J", target=Target(("cpu-\n\r",)))
    write(engines, spec)
    assert describe_engines(engines).isprintable()


def test_a_record_from_before_signatures_reads():
    record = make_record()
    data = json.loads(record.to_json())
    del data["signature"]
    assert EngineRecord.from_json(json.dumps(data)) == record
    assert not is_signed(record, b"k" * 32)


def test_needs_are_read_off_the_manifest():
    asked = ask_engine(MANIFEST, AOT_INDUCTOR, "cpu")
    assert (asked.graph_sha256, asked.weights_sha256) == (HERE.graph_sha256, HERE.weights_sha256)
