"""Pictures in bulk, in this process: what is made, kept, made again, refused."""

import json
import threading
from dataclasses import replace

import pytest
from batch_requests import ask, write
from checkout import edit_json
from click.testing import CliRunner
from small_bundle import make_manifest, write_bundle
from toy_bundle import DIGITS

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.generating import generate_batch
from zeus_trt.pictures import encode_image
from zeus_trt.request_file import read_requests
from zeus_trt.serving.image_request import ImageRequest, read_request
from zeus_trt.serving.limits import Limits
from zeus_trt.serving_model import ServedModel

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("batch") / "small")


def call(*words):
    return CliRunner().invoke(main, ["generate-batch", *map(str, words)])


def test_makes_each_picture_once(bundle, tmp_path):
    asked = ask(4)
    file, out = write(tmp_path / "asked.jsonl", *asked), tmp_path / "deep" / "out"
    done = call(bundle, file, "-o", out)
    assert done.exit_code == 0, done.output
    assert "4 made, 0 kept, 0 failed" in done.stdout
    model = ServedModel(str(bundle), max_rows=1).open()
    for one in asked:
        fields = {name: value for name, value in one.items() if name != "id"}
        made = model.submit(read_request(fields, Limits())).result()
        assert (out / f"{one['id']}.png").read_bytes() == encode_image(made.images[0])
        assert json.loads((out / f"{one['id']}.json").read_text())["report"]["nfe"] == made.report.nfe
    model.close()
    (out / "p0.png").write_bytes(b"cut")
    (out / "p1.json").unlink()
    edit_json(out / "p2.json", sha256="0")
    asked[3]["seed"] = 99
    result = generate_batch(ServedModel(str(bundle)), write(file, *asked, {**asked[3], "id": "new"}), out)
    assert sorted(result.made) == ["new", "p0", "p1", "p2", "p3"]
    again = call(bundle, file, "-o", out, "--json")
    assert json.loads(again.stdout) == {"made": [], "kept": 5, "failed": {}}


def test_a_request_that_fails_is_listed_and_leaves_the_others(bundle, tmp_path):
    asked = ask(3)
    asked[1] = {"id": "bad", "steps": 4, "plan": "FF"}  # another length than the schedule
    done = call(bundle, write(tmp_path / "asked.jsonl", *asked), "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert "bad: plan: got" in done.stdout
    assert "2 made, 0 kept, 1 failed" in done.stdout
    assert "requests: got 1 that failed, bad first" in done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["p0.json", "p0.png", "p2.json", "p2.png"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "../x"}', "id: got '../x'"),
        ('{"id": ".."}', "id: got '..'"),
        ('{"id": "a/b"}', "id: got 'a/b'"),
        ('{"id": ""}', "id: got ''"),
        ("{}", "id: got None"),
        ('{"id": "P0"}', "id: got P0 again"),
        ("[1]", "expected a JSON object"),
        ("{", "no strict JSON"),
        ('{"id": "x", "colour": 1}', "unknown field colour"),
        ('{"id": "x", "steps": "4"}', "steps"),
        ('{"id": "x", "steps": 0}', "steps: got 0"),
        ('{"id": "x", "plan": "/etc/plan.json"}', "plan: got"),
        ('{"id": "x", "plan": "FF", "ratio": 1}', "ratio: got it beside a plan"),
        ('{"id": "x", "prompt": "a cat"}', "prompt: got it for a model without prompts"),
        ('{"id": "x", "label": 3}', "label: got one"),
        ('{"id": "x", "guidance_scale": 1e999}', "not finite"),
        ('{"id": "x", "n": 2}', "n: got 2; expected a whole number from 1 to 1"),
        ('{"id": "x", "size": "9x4"}', "size: got 9x4; expected 4x4"),
        ('{"id": "x", "min_psnr": 30, "ratio": 1}', "min_psnr: got it beside"),
        ('{"id": "x", "stream": true}', "stream: got it in a file"),
    ],
)
def test_a_bad_line_is_named_before_anything_runs(bundle, tmp_path, line, words):
    file = write(tmp_path / "asked.jsonl", {"id": "p0"})
    file.write_text(file.read_text() + "\n" + line)
    done = call(bundle, file, "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert "line 3 of asked.jsonl: " in done.stderr
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


def test_reads_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, of the extra [ray], is not installed")
    from pyarrow import parquet

    rows = [{"id": "a", "label": None, "steps": 4}, {"id": "b", "label": 3, "steps": 5}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "asked.parquet")
    manifest = replace(make_manifest(), labels=DIGITS)
    one, other = read_requests(tmp_path / "asked.parquet", manifest)
    assert (one.request, other.request) == (ImageRequest(steps=4, seed=0), ImageRequest(label=3, steps=5, seed=0))
    (tmp_path / "asked.parquet").write_bytes(b"no table")
    with pytest.raises(ZeusError, match="expected Parquet"):
        read_requests(tmp_path / "asked.parquet", manifest)


def test_an_interrupt_leaves_whole_pictures_and_no_thread(bundle, tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    file = write(tmp_path / "asked.jsonl", *ask(12, steps=300))
    with pytest.raises(KeyboardInterrupt):
        generate_batch(ServedModel(str(bundle), max_rows=1), file, tmp_path / "out", on_picture=interrupt)
    names = sorted(path.suffix for path in (tmp_path / "out").iterdir())
    assert names == [".json", ".png"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("zeus-trt-request")]
    assert len(generate_batch(ServedModel(str(bundle)), file, tmp_path / "out").made) == 11
