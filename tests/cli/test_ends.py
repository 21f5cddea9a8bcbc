"""How commands end: JSON alone on stdout, exit codes, signals, and what is said of faults."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from tiny_subjects import write_unlabelled

from zeus_trt.cli import main
from zeus_trt.cli.build import say as say_in_a_build
from zeus_trt.cli.build import show_progress
from zeus_trt.cli.command import hold_signals, say, warn
from zeus_trt.cli.options import progress
from zeus_trt.errors import ZeusError
from zeus_trt.export import export_model
from zeus_trt.sampling import Made

REPORT = {
    "nfe": 3,
    "plan": "FFXRF",
    "backend": "double",
    "total_seconds": 1.0,
    "engine_seconds": 0.5,
    "mode": "step",
    "reason": "asked for",
}


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def bundle(export_tiny):
    return export_tiny().path


@pytest.mark.parametrize(
    "words",
    [
        "export MODEL -o OUT/bundle --steps 5",
        "verify BUNDLE MODEL",
        "inspect BUNDLE",
        "doctor",
        "plan --steps 20",
        "run BUNDLE --steps 6 --num-images 1 -o OUT/a.png",
        "compare BUNDLE --steps 4 --ratios 2 --num-images 1 --rounds 1 --metrics psnr",
        "calibrate BUNDLE --steps 6 --num-trajectories 1 --num-validation 1 --num-held-out 1 --budget 4 -o OUT/a.json",
    ],
    ids=lambda words: words.split()[0],
)
def test_stdout_is_json_alone(bundle, tiny_model, tmp_path, words):
    places = {"MODEL": tiny_model, "BUNDLE": bundle}
    words = [places.get(word, word.replace("OUT", str(tmp_path))) for word in words.split()]
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\n") == 1
    assert isinstance(json.loads(done.stdout, parse_constant=pytest.fail), dict)
    assert done.stderr.strip()


def test_every_command_has_the_common_options():
    for command in main.commands.values():
        assert {"--json", "--quiet", "--verbose", "--debug"} <= {flag for o in command.params for flag in o.opts}


def test_what_a_library_prints_and_numbers_that_json_lacks(monkeypatch):
    class Printing:
        def describe(self, *args):
            print("printed")
            return "text"

        def to_json(self, *args):
            return {"a": float("nan"), "b": (1.5, float("inf"))}

    monkeypatch.setattr("zeus_trt.planning.make_plan", lambda **options: Printing())
    done = call("plan", "--json")
    assert json.loads(done.stdout) == {"a": None, "b": [1.5, None]}
    assert done.stderr == "printed\ntext\n"
    assert call("plan").stdout == "printed\ntext\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "Interrupted."),
        (ZeusError("plan: got it."), 1, "Error: plan: got it.\n"),
        (click.UsageError("no"), 2, "Error: no"),
        (RuntimeError("one\ntwo"), 1, "got a RuntimeError (one); expected no such error, which is a fault of zeus-trt"),
        (AssertionError(), 1, "got a AssertionError; expected no such error"),
        (MemoryError(), 1, "memory: got too little"),
        (ModuleNotFoundError("no", name="tqdm"), 1, "package: got no module tqdm"),
        (OSError(28, "No space left on device", "a.png"), 1, "file: got a.png (No space left on device)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_exit_codes(monkeypatch, error, code, said):
    def fail(**options):
        raise error

    monkeypatch.setattr("zeus_trt.planning.make_plan", fail)
    done = call("plan")
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        for words in (("plan", "--debug"), ("--debug", "plan")):
            assert "Traceback" in call(*words).stderr


BAD = "a\x1b[31m\n\u202eb"


@pytest.mark.parametrize(
    "words",
    [
        [f"--{BAD}"], [BAD], ["plan", f"--{BAD}"], ["plan", BAD], ["plan", "--steps", BAD], ["plan", "--window", BAD],
        ["plan", "--plan", f"{BAD}.json"], ["plan", "--scheduler", BAD], ["run", BAD, "-o", "a.png"],
        ["run", "none", "-o", BAD], ["export", BAD, "-o", "b"], ["inspect", BAD], ["compare", BAD],
        ["calibrate", BAD, "-o", "a.json", "--budget", "5"], ["build", BAD, "--backend", BAD],
    ],
    ids=range(15),
)  # fmt: skip
def test_nothing_that_was_typed_moves_the_cursor(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call(*words)
    assert done.exit_code in (1, 2)
    assert "a\\x1b[31m" in done.stderr
    assert done.stderr.replace("\n", "").isprintable()


def test_errors_of_the_system_are_escaped(monkeypatch):
    def fail(**options):
        raise OSError(28, "No space left", BAD)

    monkeypatch.setattr("zeus_trt.planning.make_plan", fail)
    assert call("plan").stderr.startswith("Error: file: got a\\x1b[31m\\n\\u202eb (No space left)")


def test_a_written_file_is_named_on_one_line(capsys):
    say(BAD)
    warn(BAD)
    say_in_a_build(BAD)
    assert "a\\x1b[31m\\n" in Made(Path(BAD), SimpleNamespace(**REPORT)).describe()
    assert capsys.readouterr().err.replace("\n", "").isprintable()


CLOSED = """
import os
from zeus_trt.cli import main
main(["plan", "--steps", "5", "-o", "plan.png"], standalone_mode=False)
assert os.readlink("/proc/self/fd/2") == os.devnull
"""


def test_closed_streams_are_no_error(tmp_path):
    words = [sys.executable, "-c", CLOSED]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", *words], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_signal_during_imports_waits_for_their_end():
    done = []

    def work():
        with hold_signals():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


SLEEPER = """
import subprocess, sys, time
from pathlib import Path
from zeus_trt import planning
from zeus_trt.cli import main
from zeus_trt.files import write_folder_atomically

def work(**options):
    with write_folder_atomically(Path("folder")):
        subprocess.run(["sh", "-c", "echo begun >&2; exec sleep 60"])

planning.make_plan = work
main(["plan"])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_children_and_leaves_nothing(tmp_path, number, code):
    child = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while "begun" not in child.stderr.readline():
        assert child.poll() is None
    sleepers = _wait_for_child(child.pid)
    time.sleep(0.1)  # until subprocess has seen its child begin: before, it does not kill it
    child.send_signal(number)
    assert child.wait(30) == code
    child.stderr.close()
    assert list(tmp_path.iterdir()) == []
    for _ in range(1000):  # the kernel ends them in its own time
        if not any(_is_running(pid) for pid in sleepers):
            return
        time.sleep(0.01)
    pytest.fail(f"{sleepers} go on")


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_for_child(pid):
    file = Path(f"/proc/{pid}/task/{pid}/children")
    if not file.exists():
        pytest.skip("needs /proc/PID/task/PID/children, to see the child of a child")
    while not (found := file.read_text().split()):
        time.sleep(0.01)
    return found


def test_progress_in_a_pipe_is_lines(capsys, monkeypatch):
    monkeypatch.setattr("zeus_trt.cli.options.LINE_SECONDS", 0)
    with progress(None) as bar:
        bar.update(3)
        bar.update()
    with show_progress() as on_progress:
        for done in (0.1, 0.2):
            on_progress("Reading the graph", done)
    said = capsys.readouterr().err
    assert "\r" not in said
    assert [line.split(" calls")[0] for line in said.splitlines()] == ["3", "4", "4", "Reading the graph ..."]


def test_quiet_says_nothing_and_verbose_why(bundle, tmp_path):
    words = ("run", bundle, "--steps", 4, "--num-images", 1, "-o", tmp_path / "a.png")
    assert call(*words, "-q").stderr == call("-q", *words).stderr == ""
    assert "calls in" in call(*words).stderr
    assert "runs onnxruntime: " in call(*words, "-v").stderr


def test_tracebacks_of_modular_blocks_are_logged_with_verbose_alone(monkeypatch):
    blocks, heard = logging.getLogger("diffusers.modular_pipelines.modular_pipeline"), []
    monkeypatch.setattr("zeus_trt.doctor.find_version", lambda name: heard.append(blocks.isEnabledFor(logging.ERROR)))
    call("doctor")
    assert set(heard) == {False}
    heard.clear()
    call("doctor", "-v")
    assert set(heard) == {True}
    assert blocks.isEnabledFor(logging.ERROR)


def test_the_diagnosis_fits_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, call("doctor").stdout.splitlines())) <= 80


def test_both_packages_of_onnxruntime_are_found(monkeypatch):
    monkeypatch.setattr("zeus_trt.doctor.find_version", lambda name: "1.0")
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in " ".join(call("doctor").stdout.split())


def test_completion_knows_the_commands(monkeypatch):
    environment = {**os.environ, "_ZEUS_TRT_COMPLETE": "bash_complete", "COMP_WORDS": "zeus-trt ca", "COMP_CWORD": "1"}
    code = "from zeus_trt.cli import main; main(prog_name='zeus-trt')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "plain,calibrate"


def test_compare_without_labels_takes_no_guidance(tmp_path, cached_bundle):
    made = cached_bundle("unlabelled", lambda path: export_model(write_unlabelled(tmp_path / "model"), path))
    common = (made, "--steps", 4, "--num-images", 1)
    done = call("compare", *common, "--ratios", "2", "--rounds", 1, "--metrics", "psnr", "--json")
    assert done.exit_code == 0, done.output
    assert call("run", *common, "-o", tmp_path / "a.png").exit_code == 0
    for command in (("run", *common, "-o", tmp_path / "b.png"), ("compare", *common)):
        assert "--guidance-scale: got 3 for a model without" in call(*command, "--guidance-scale", 3).stderr
        assert "got one for a model without class labels" in call(*command, "--label", 1).stderr
