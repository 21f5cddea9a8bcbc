"""--argument on the command line."""

import pytest
from click.testing import CliRunner
from PIL import Image

from zeus_trt.cli import main


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def given(monkeypatch):
    """What the command passes to the library."""
    calls = []
    monkeypatch.setattr("zeus_trt.export.export_with_engines", lambda *_, **named: calls.append(named) or 1 / 0)
    return calls


def test_arguments_reach_the_export(given, tmp_path):
    Image.new("RGB", (6, 4)).save(tmp_path / "cat.png")
    words = ("--argument", f"image={tmp_path / 'cat.png'}", "--argument", "strength=0.5", "--argument", "prompt=a dog")
    call("export", "model", "-o", "bundle", *words)
    arguments = given[0]["arguments"]
    assert arguments["image"].size == (6, 4)
    assert (arguments["strength"], arguments["prompt"]) == (0.5, "a dog")


@pytest.mark.parametrize("text", ["image", "=3", "a b=3"])
def test_what_is_no_argument_is_refused(text):
    done = call("export", "model", "-o", "bundle", "--argument", text)
    assert done.exit_code == 2
    assert "is not an argument such as strength=0.5 or image=cat.png" in done.stderr


def test_a_file_that_does_not_read_is_one_sentence(tmp_path):
    (tmp_path / "cat.png").write_bytes(b"no picture")
    done = call("export", "model", "-o", "bundle", "--argument", f"image={tmp_path / 'cat.png'}")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: image: got ")
    assert "Traceback" not in done.stderr
