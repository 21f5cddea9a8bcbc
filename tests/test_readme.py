"""README and docs show only what works: each of their commands and code blocks is run here."""

import importlib.util
import json
import re
import runpy
import shlex
import subprocess
import sys

import pytest
from checkout import ROOT
from click.testing import CliRunner

from zeus_trt.cli import main

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README, *(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", "\n".join(PAGES), re.MULTILINE | re.DOTALL)


def commands():
    lines = "".join(blocks("bash")).replace("\\\n", " ").splitlines()
    found = [line.split("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
    return list(dict.fromkeys(found))  # a page may repeat what another made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder like a checkout, as far as the commands look at it."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.fixture(scope="module")
def after_commands(folder):
    """Runs every command of README and docs, in order, in one folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = {}
        for command in commands():
            if "tensorrt-rtx" in command and not importlib.util.find_spec("tensorrt_rtx_bindings"):
                continue
            if command.startswith("zeus-trt"):
                done[command] = CliRunner().invoke(main, shlex.split(command)[1:])
            if command.startswith("python"):
                words = shlex.split(command)[1:]
                patch.setattr(sys, "argv", words)
                runpy.run_path(words[0], run_name="__main__")
    return done


def test_commands_work(after_commands):
    assert len(after_commands) >= 7
    for command, result in after_commands.items():
        assert result.exit_code == 0, f"{command}\n{result.output}"


@pytest.mark.parametrize("target", [c.removeprefix("make ") for c in commands() if c.startswith("make ")])
def test_make_targets_exist(target):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_command_is_left_out():
    for command in commands():
        assert command.split()[0] in {"zeus-trt", "make", "python"}, command


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.strip().splitlines()[-1][:40])
def test_code_blocks_run(after_commands, folder, monkeypatch, code):
    monkeypatch.chdir(folder)
    exec(compile(code, "README.md", "exec"), {})


def test_printed_plan_is_what_the_command_prints(after_commands):
    printed = next(result.stdout for command, result in after_commands.items() if command.startswith("zeus-trt plan"))
    assert printed in README


def test_table_has_the_nfe_and_quality_of_the_recorded_run():
    recorded = json.loads((ROOT / "benchmarks" / "results" / "demo.json").read_text())
    for row in recorded["rows"]:
        psnr = "equal" if row["psnr_db"] is None else f"{row['psnr_db']:.1f}"
        assert re.search(rf"\| {row['ratio']} \| {row['nfe']} \| .*\| {psnr} \|", README), row


def test_links_lead_to_files():
    for place, text in zip([ROOT, *[ROOT / "docs"] * (len(PAGES) - 1)], PAGES, strict=True):
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert "://" in target or (place / target).exists(), target
