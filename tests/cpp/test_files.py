"""The C++ readers accept what Python accepts, and refuse in Python's words."""

import hashlib
import json
import random
import subprocess

import pytest
from cpp_driver import compile_source
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from golden_files import GOLDEN
from tiny_subjects import write_calibrated

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Manifest
from zeus_trt.runtime.bundle.manifest import DIGEST
from zeus_trt.zeus_graph import Plan, SamplingProgram, fold, json_file, load_plan, trace

PROGRAM = json.loads((GOLDEN / "sampling_program.json").read_text())
MANIFEST = json.loads((GOLDEN / "bundle" / "manifest.json").read_text())
ADVICE = "Check the path, or make the sampling program again."


def read_in_cpp(kind, texts) -> list[str]:
    done = subprocess.run(
        [str(compile_source("read.cpp")), kind], input="".join(f"{text}\n" for text in texts), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def read_program(text) -> str:
    try:
        SamplingProgram.from_json(strict_json.decode(text.encode(), "sampling program", advice=ADVICE))
    except ZeusError as error:
        return str(error)
    return "ok"


def read_manifest(text) -> str:
    try:
        Manifest.from_json(text)
    except ZeusError as error:
        return str(error)
    return "ok"


def change(**fields) -> str:
    """The golden program with other fields, and the fingerprint of its new content."""
    data = {name: value for name, value in {**PROGRAM, **fields}.items() if value is not None}
    content = {name: value for name, value in data.items() if name != "fingerprint"}
    return json.dumps({**data, "fingerprint": json_file.digest(content)})


@pytest.mark.extra
def test_programs_that_python_folds_are_read(tmp_path):
    write_calibrated(tmp_path / "plan.json")
    calibrated = load_plan(tmp_path / "plan.json")
    programs = [
        fold(trace(scheduler, len(plan)), plan)
        for scheduler in (FlowMatchEulerDiscreteScheduler(), UniPCMultistepScheduler())
        for plan in (
            calibrated,
            Plan.uniform(50, 4),
            Plan.uniform(7, 0),
            Plan("FQXRQ"),
            Plan("FFXRF").with_predictor("lagrange-2"),
        )
    ]
    assert read_in_cpp("program", [json.dumps(program.to_json()) for program in programs]) == ["ok"] * len(programs)


def test_numbers_are_digested_as_python_writes_them():
    bits = random.Random(0)
    numbers = [0.0, -0.0, 5e-324, 1e-5, 0.0001, 9999999999999998.0, 1e16, 1.7976931348623157e308, 2**53 + 2.0, 123456.0]
    numbers += [bits.uniform(-1, 1) * 10.0 ** bits.randint(-30, 30) for _ in range(300)]
    texts = [change(first_input=number, init_noise_sigma=-number) for number in numbers]
    assert read_in_cpp("program", texts) == ["ok"] * len(texts)


@pytest.mark.parametrize(
    "text",
    [
        change(format=2),
        change(format=None),
        change(format="1"),
        change(steps=[0, 1, 3]),
        change(timesteps=[1.0, 2.0]),
        change(matrices=PROGRAM["matrices"][::-1]),
        change(matrices=[*PROGRAM["matrices"][:2], PROGRAM["matrices"][0]]),
        change(more=1),
        change(solver=None, plan=None),
        change(steps=["0", 1, 4]),
        change(solver=5),
        change(first_input=[1.0]),
        change(timesteps=None),
        json.dumps({**PROGRAM, "fingerprint": "0" * 64}),
        json.dumps({**PROGRAM, "first_input": 1.0}),
        json.dumps(PROGRAM).replace("157.4072723388672", "1e999"),
        json.dumps(PROGRAM).replace("157.4072723388672", "157407272338867200000"),
        json.dumps(PROGRAM).replace('"format": 1', '"format": 1, "format": 1'),
        "[" * 70 + "]" * 70,
    ],
)
def test_a_program_is_refused_in_the_words_of_python(text):
    expected = read_program(text)
    assert expected != "ok"
    assert read_in_cpp("program", [text]) == [expected]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"format": 1},
        {"guidance_factor": "x"},
        {"inputs": MANIFEST["inputs"][:1]},
        {"more": 1},
        {"graphs": []},
        {"files": {}},
        {"files": {**MANIFEST["files"], "../x": {"size": 1, "sha256": "0" * 64}}},
        {"files": {**MANIFEST["files"], "x": {"size": 1 << 40, "sha256": "0" * 64}}},
        {"inputs": [{**MANIFEST["inputs"][0], "axes": ["batch", 1 << 31, 4, 4]}, MANIFEST["inputs"][1]]},
        {"inputs": [{**MANIFEST["inputs"][0], "axes": ["other", 1, 4, 4]}, MANIFEST["inputs"][1]]},
        {"output": {**MANIFEST["output"], "dtype": "float16"}},
        {"labels": {"count": 10, "null": 11}},
        {"symbols": []},
        {"symbols": [{**MANIFEST["symbols"][0], "more": 1}]},
        {"foreign": {}},
    ],
)
def test_a_manifest_is_read_as_in_python(changes):
    own = {name: value for name, value in {**MANIFEST, **changes}.items() if name != DIGEST}
    text = json.dumps({DIGEST: "0" * 64, **own})  # on one line, with the digest of that
    text = text.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest(), 1)
    expected, (found,) = read_manifest(text), read_in_cpp("manifest", [text])
    assert (found == "ok") == (expected == "ok") == (not changes)
    assert found.startswith("manifest: got ") or found == "ok"


def test_mutated_programs_have_the_verdict_of_python():
    """All but the predictor, which only its name is read of: the program was folded with it."""
    bits = random.Random(1)
    values = [None, True, 0, -1, 1, 1.5, 1e300, "", "FXF", [], {}, [[1.0, 2.0]], [1, [2]]]
    texts = []
    for _ in range(400):
        data = json.loads(json.dumps(PROGRAM))
        spot, key = data, bits.choice([name for name in data if name != "predictor"])
        while isinstance(spot[key], list | dict) and spot[key] and bits.random() < 0.8:
            spot = spot[key]
            key = bits.choice(list(spot) if isinstance(spot, dict) else range(len(spot)))
        spot[key] = bits.choice(values)
        content = {name: value for name, value in data.items() if name != "fingerprint"}
        texts.append(json.dumps({**data, "fingerprint": json_file.digest(content)} if bits.random() < 0.8 else data))
    found = read_in_cpp("program", texts)
    for text, one in zip(texts, found, strict=True):
        assert (one == "ok") == (read_program(text) == "ok"), f"{text}\n{one}\n{read_program(text)}"
