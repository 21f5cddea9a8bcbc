"""The serving benchmark with a simulated engine that takes no time: that it runs, and what it counts."""

import runpy

import pytest
from checkout import ROOT

from zeus_trt.runtime import Session

BENCH = runpy.run_path(str(ROOT / "benchmarks" / "serving.py"))


def test_rows_and_bound_are_those_of_the_plans(flow_session, monkeypatch):
    engine = BENCH["SimulatedEngine"]
    for name in ("A", "B"):
        monkeypatch.setitem(engine.__call__.__globals__, name, 0.0)
    row = BENCH["bench"](Session(flow_session.bundle, engine=engine()), "r = 0 and r = 4", 2, 1, 2)
    assert row["engine"] == "simulation"
    assert row["rows"] == 50 + 22
    assert row["bound_over_full"] == pytest.approx(100 / 72, abs=1e-3)
    assert row["calls"] <= 72
    assert {*row["batcher_over"]} == {"serial", "static_batches", "batcher_full"}
