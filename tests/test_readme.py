"""README and docs show only what works: each of their commands and code blocks is run here."""

import importlib.util
import itertools
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import pytest
from checkout import ROOT
from click.testing import CliRunner

from zeus_trt.cli import main

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README, *(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))]
SHARED = ("digits", "tiny-sd", "tiny-sd-bundle")  # many commands read them, and the fixture ``share`` copies them
REPEATED = (  # the first is how the fixture ``digits_bundle`` exports; the others differ from another in little
    "zeus-trt export examples/models/digits-unet-flow -o digits",
    "zeus-trt export tiny-sd -o tiny-sd-bundle --size 128x128", "bundle = export_model(",
    "zeus_trt.export(unet", "zeus-trt export tiny-sd -o guided-bundle",
    "zeus-trt compare digits --model examples/models/digits-unet-flow",
)  # fmt: skip
WRITERS = ("examples/tiny_pipeline.py", "-o", "--output")  # the word behind one of these is what a command writes


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", "\n".join(PAGES), re.MULTILINE | re.DOTALL)


def commands():
    lines = "".join(blocks("bash")).replace("\\\n", " ").splitlines()
    found = [line.split("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
    return list(dict.fromkeys(found))  # a page may repeat what another made


def chain_commands():
    """Commands in the order of the pages; one that reads what another wrote is with it, unless that is shared."""
    chains, writers = [], {}
    for command in commands():
        words = shlex.split(command)
        if words[0] == "make":
            continue
        chain = next((writers[word] for word in words if word in writers), None)
        if chain is None:
            chains.append(chain := [])
        chain.append(command)
        writers |= dict.fromkeys(find_written(words) - set(SHARED), chain)
    return chains


def find_written(words):
    """The names that commands write."""
    return {word for before, word in itertools.pairwise(words) if before in WRITERS}


def mark(text):
    """Marks a text as extra; what takes long and is run in another form anyway as slow."""
    whole = text if isinstance(text, str) else text[0]  # a code block, or a chain of commands
    marks = pytest.mark.slow if any(line in whole for line in REPEATED) else pytest.mark.extra
    return pytest.param(text, marks=marks, id=whole.strip().splitlines()[-1][:60])


def run_command(command, monkeypatch):
    """Runs a command in this process, in the current folder; returns what it printed."""
    program, *words = shlex.split(command)
    if program == "zeus-trt":
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, f"{command}\n{done.output}"
        return done.stdout
    assert program == "python"
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(words[0], run_name="__main__")
    return ""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder like a checkout, as far as the commands look at it; the current one."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def share(folder, digits_bundle, tiny_pipeline, export_tiny_pipeline):
    """Copies what commands and code blocks share, as far as a text names it and does not write it."""
    makers = {
        "digits": lambda: digits_bundle("unet-flow"), "tiny-sd": lambda: tiny_pipeline,
        "tiny-sd-bundle": lambda: export_tiny_pipeline().path,
    }  # fmt: skip
    assert tuple(makers) == SHARED

    def copy(words):
        for name in set(SHARED) & set(words):
            shutil.copytree(makers[name](), folder / name)

    return copy


@pytest.mark.parametrize("chain", map(mark, chain_commands()))
def test_commands_work(chain, folder, share, digits_bundle, monkeypatch):
    if any("tensorrt-rtx" in command for command in chain) and not importlib.util.find_spec("tensorrt_rtx_bindings"):
        pytest.skip("needs tensorrt-rtx-cu13-bindings")
    words = [word for command in chain for word in shlex.split(command)]
    written = find_written(words)
    share(set(words) - written)
    if "demo" in words:  # which makes a bundle like any other; one of the same versions is kept
        shutil.copytree(digits_bundle("unet-flow"), folder / "demo" / "bundle")
    for command in chain:
        run_command(command, monkeypatch)
    assert all((folder / name).exists() for name in written)


@pytest.mark.parametrize("target", [c.removeprefix("make ") for c in commands() if c.startswith("make ")])
def test_make_targets_exist(target):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_command_is_left_out():
    assert all(any(line in text for text in PAGES) for line in REPEATED)
    assert sum(map(len, chain_commands())) > 20
    for command in commands():
        assert command.split()[0] in {"zeus-trt", "make", "python"}, command


@pytest.mark.parametrize("code", map(mark, blocks("python")))
def test_code_blocks_run(folder, share, code):
    share(re.findall(r'"([\w-]+)"', code))
    exec(compile(code, "README.md", "exec"), {})


def test_printed_plan_is_what_the_command_prints(folder, monkeypatch):
    command = next(command for command in commands() if command.startswith("zeus-trt plan"))
    assert run_command(command, monkeypatch) in README


def test_table_has_the_nfe_and_quality_of_the_recorded_run():
    recorded = json.loads((ROOT / "benchmarks" / "results" / "demo.json").read_text())
    for row in recorded["rows"]:
        psnr = "equal" if row["psnr_db"] is None else f"{row['psnr_db']:.1f}"
        assert re.search(rf"\| {row['ratio']} \| {row['nfe']} \| .*\| {psnr} \|", README), row


def test_links_lead_to_files():
    for place, text in zip([ROOT, *[ROOT / "docs"] * (len(PAGES) - 1)], PAGES, strict=True):
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)\)", prose):
            assert "://" in target or (place / target).exists(), target
