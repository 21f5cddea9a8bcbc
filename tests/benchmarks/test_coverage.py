"""The coverage of diffusers: that a class is built and tried, and that the page says what was found."""

import json
import sys

import diffusers
import pytest
from checkout import ROOT

DOCS, RESULTS = ROOT / "docs" / "coverage.md", ROOT / "benchmarks" / "results" / "coverage.json"


@pytest.fixture
def coverage(monkeypatch):
    """The modules of the script."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import coverage_checks
    import coverage_table

    yield coverage_checks, coverage_table
    for name in [name for name in sys.modules if name.startswith("coverage_")]:
        del sys.modules[name]


def test_a_class_is_built_from_its_components_and_tried(coverage, tmp_path, one_thread):
    checks, _ = coverage
    *_, found = checks.check(diffusers.FluxPipeline, ["twin"], tmp_path)
    assert (found["runs"], found["equal"], found["skips"]) == (True, True, True), found.get("reason")
    assert "X" in found["plan"]


def test_the_reason_of_a_no_is_what_was_raised(coverage, tmp_path):
    checks, table = coverage
    *_, found = checks.check(diffusers.FluxPriorReduxPipeline, ["twin"], tmp_path)
    assert "runs" not in found
    assert "expected a diffusers pipeline with a scheduler" in found["reason"]
    assert (
        table.count({"FluxPriorReduxPipeline": {**found, "stages": ["twin"]}})["with a scheduler and a denoiser"] == 0
    )


def test_the_page_is_made_of_the_results(coverage):
    known = json.loads(RESULTS.read_text())
    assert DOCS.read_text() == coverage[1].write(known)
    assert known["counts"] == coverage[1].count(known["classes"])
    assert all(found.get("skips") or found["reason"] for found in known["classes"].values())


def test_the_readme_has_the_counts_of_the_results():
    counts = json.loads(RESULTS.read_text())["counts"]
    sentence = (
        "Of the {with a scheduler and a denoiser} pipeline classes of diffusers 0.42 that have a sampling loop, "
        "{skip at ratio 2} skip steps, {export} export, and {engine in the twin} run with the exported engine"
    ).format_map(counts)
    assert sentence in " ".join((ROOT / "README.md").read_text().split())
