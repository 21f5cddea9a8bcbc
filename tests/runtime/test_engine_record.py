"""Engine records: their key, why an engine is refused, and finding the one that fits."""

import os
from dataclasses import replace

import pytest
from engine_samples import ASKED, SPEC, make_record, write_engine

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.engine_folder import find_engine, list_engines
from zeus_trt.runtime.bundle.engine_profile import ShapeRange
from zeus_trt.runtime.bundle.engine_record import FILE_NAME, EngineRecord, Target, explain

CHANGES = {
    "backend": "tensorrt-rtx",
    "backend_version": "11.5.0.0",
    "precision": "fp32",
    "profile": {**SPEC.profile, "timestep": ShapeRange((1,), (2,), (8,))},
    "target": Target(("sm_90",), "NVIDIA H100"),
    "graph_sha256": "c" * 64,
    "weights_sha256": "d" * 64,
    "options": {**SPEC.options, "optimization_level": 5},
    "exporter_version": "0.2.0",
}
WORDS = {
    "backend": "built by tensorrt, asked for tensorrt-rtx",
    "backend_version": "built by version 11.4.0.1 of its library, this one is 11.5.0.0",
    "precision": "built in fp16, asked for fp32",
    "profile": "built for timestep 1..4 (best at 2), asked for 1..8 (best at 2)",
    "target": "built for sm_86 (NVIDIA RTX A6000), asked for sm_90 (NVIDIA H100)",
    "graph_sha256": "built from another graph than the bundle's (aaaaaaaaaaaa, now cccccccccccc)",
    "weights_sha256": "built from other weights than the bundle's (bbbbbbbbbbbb, now dddddddddddd)",
    "options": "built with optimization_level 3, asked for 5",
    "exporter_version": "built by zeus-trt 0.1.0, this one is 0.2.0",
}


def test_round_trip():
    record = make_record()
    assert EngineRecord.from_json(record.to_json()) == record
    assert EngineRecord.from_json(record.to_json()).key == record.key


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_changes_the_key_and_says_why(name):
    changed = replace(SPEC, **{name: CHANGES[name]})
    assert changed.key != SPEC.key
    assert explain(SPEC, changed) == (WORDS[name],)


def test_every_field_is_tested():
    assert set(CHANGES) == set(vars(SPEC))


def test_build_seconds_do_not_change_the_key():
    assert make_record(seconds=1.0).key == make_record(seconds=2.0, data=b"other").key
    assert explain(SPEC, SPEC) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no strict JSON"),
        ("[]", "got format None"),
        ('{"format": 99}', "got format 99; expected 2. Update zeus-trt"),
        ('{"format": 2, "spec": {}}', "does not fit"),
    ],
)
def test_unreadable_records(text, message):
    with pytest.raises(ZeusError, match=message):
        EngineRecord.from_json(text)


def ask(**changes):
    """Why the sample's engine does not serve a question that differs in this."""
    return explain(SPEC, replace(ASKED, **changes))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"backend": "tensorrt-rtx"}, WORDS["backend"]),
        ({"backend_version": "11.5.0.0"}, WORDS["backend_version"]),
        ({"target": Target(("sm_90",))}, "built for sm_86 (NVIDIA RTX A6000), this GPU is sm_90"),
        ({"graph_sha256": "c" * 64}, WORDS["graph_sha256"]),
        ({"weights_sha256": "d" * 64}, WORDS["weights_sha256"]),
        ({"precision": "fp32"}, WORDS["precision"]),
        (
            {"profile": {"sample": ShapeRange(*((6, 4, 8, 8),) * 3)}},
            "sample 1..4x4x8x8 (best at 2x4x8x8), asked for 6x",
        ),
        ({"profile": {"labels": ShapeRange(*((6,),) * 3)}}, "built for labels absent, asked for 6"),
    ],
)
def test_refused_in_words(change, reason):
    (found,) = ask(**change)
    assert reason in found


def test_options_and_tuning_do_not_matter_where_it_runs():
    assert ask() == ask(profile={"sample": ShapeRange(*((3, 4, 8, 8),) * 3)}) == ()
    assert explain(replace(SPEC, options={}, exporter_version="9"), ASKED) == ()


@pytest.mark.parametrize(
    ("built", "here", "loads"),
    [("11.4.0", "11.5.0", True), ("11.4.0", "11.3.9", False), ("10.9.0", "11.0.0", False), ("11.9.0", "11.10.0", True)],
)
def test_version_compatible_engines_load_in_later_versions_of_their_major(built, here, loads):
    spec = replace(SPEC, backend_version=built, options={"version_compatible": True})
    assert (explain(spec, replace(ASKED, backend_version=here)) == ()) is loads


@pytest.mark.parametrize(("sm", "runs"), [("sm_80", True), ("sm_90", True), ("sm_120", True), ("sm_75", False)])
def test_hardware_compatible_engines_run_from_ampere_on(sm, runs):
    spec = replace(SPEC, options={"hardware_compatible": True})
    assert (explain(spec, replace(ASKED, target=Target((sm,)))) == ()) is runs


def test_several_targets():
    spec = replace(SPEC, target=Target(("sm_89", "sm_120")))
    assert explain(spec, replace(ASKED, target=Target(("sm_120",)))) == ()
    assert explain(spec, ASKED) == ("built for sm_89, sm_120, this GPU is sm_86",)


def test_finds_the_newest_that_fits(tmp_path):
    write_engine(tmp_path, replace(SPEC, target=Target(("sm_90",))))
    old = write_engine(tmp_path)
    new = write_engine(tmp_path, replace(SPEC, options={"optimization_level": 5}))
    os.utime(old.parent, (1, 1))
    assert find_engine(tmp_path, ASKED).path == new
    assert len(list_engines(tmp_path)) == 3


def test_a_changed_file_is_never_returned(tmp_path):
    write_engine(tmp_path).write_bytes(b"EnginE")
    with pytest.raises(ZeusError, match=r"its file denoiser.engine was changed since it was built.*zeus-trt build"):
        find_engine(tmp_path, ASKED)


def test_none_fits(tmp_path):
    with pytest.raises(ZeusError, match=r"got no tensorrt engine; expected one for tensorrt 11\.4\.0\.1 on sm_86"):
        find_engine(tmp_path, ASKED)
    write_engine(tmp_path).unlink()
    with pytest.raises(ZeusError, match="is missing"):
        find_engine(tmp_path, ASKED)
    with pytest.raises(ZeusError, match=r"built for sm_86 \(NVIDIA RTX A6000\), this GPU is sm_90"):
        find_engine(tmp_path, replace(ASKED, target=Target(("sm_90",))))


def test_an_unreadable_record_is_passed_over(tmp_path):
    good = write_engine(tmp_path)
    (tmp_path / "engines" / "other").mkdir()
    (tmp_path / "engines" / "other" / FILE_NAME).write_text("{")
    assert find_engine(tmp_path, ASKED).path == good
