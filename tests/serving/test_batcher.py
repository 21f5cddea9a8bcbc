"""Requests that share an engine: each as if it were alone."""

import asyncio
import threading

import pytest
import torch
from serving_requests import Gate, coarse, draw, make_labelled
from toy_bundle import DIGITS, LABELS, TEXT, denoise, embed, make_session

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import EnginePair, Session, draw_noise
from zeus_trt.runtime.bundle.engine_profile import ShapeRange
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.engines.engine import EngineInfo
from zeus_trt.serving import Batcher, ServedReport

pytestmark = pytest.mark.usefixtures("one_thread")
FOREVER = 60.0  # no test waits for it
ONE = {"class_labels": torch.tensor([3])}
STEPS = {"num_steps": 50}


def settings(seed=0, rows=1, **more):
    return {"num_steps": 6, "noise": draw_noise((rows, 4, 8, 8), seed), **more}


def list_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("zeus-trt")]


@pytest.mark.parametrize(("max_wait", "count"), [(0.005, 200), (0.0, 40)])
def test_mixed_requests_equal_their_serial_runs_to_the_bit(max_wait, count):
    session = make_labelled()
    asked = [draw(number) for number in range(count)]
    with Batcher(session, max_rows=8, max_wait=max_wait) as batcher:
        futures = [one.submit(batcher) for one in asked]
        results = [future.result(60) for future in futures]
    for one, result in zip(asked, results, strict=True):
        expected = one.run(session)
        assert torch.equal(result.latents, expected.latents), one
        assert isinstance(result.report, ServedReport)
        same = ("plan", "mode", "nfe", "engine_calls", "predictor", "backend")
        assert [getattr(result.report, name) for name in same] == [getattr(expected.report, name) for name in same]
    counters = batcher.counters
    assert (counters.submitted, counters.finished, counters.failed) == (count, count, 0)
    assert counters.rows > counters.calls
    assert not list_threads()


def test_calls_of_a_closed_set_are_full():
    """32 requests of one shape: calls at most 1.1 times the rows by the capacity."""
    gate = Gate()
    with Batcher(make_labelled(gate), max_rows=8, max_wait=FOREVER) as batcher:
        futures = [
            batcher.submit(ONE, **(settings(k, ratio=(0, 2, 3, 4)[k // 2 % 4], guidance_scale=1.0 + k % 2) | STEPS))
            for k in range(32)
        ]
        reports = [future.result(60).report for future in futures]
    assert max(gate.rows) == 8
    assert len(gate.rows) == batcher.counters.calls <= 1.1 * -(-sum(gate.rows) // 8)
    assert all(report.shared_calls <= report.nfe * 2 and 1 <= report.mean_rows <= 8 for report in reports)
    assert sum(gate.rows) == sum(report.nfe * (1 + k % 2) for k, report in enumerate(reports))


def test_calls_are_counted_before_they_are_made():
    session = make_labelled()
    for one in map(draw, range(40)):
        run = session.prepare(one.conditioning, **one.settings)
        assert run.trajectory.count_calls() == run.run().report.engine_calls, one


def test_a_request_alone_waits_for_nobody():
    gate = Gate()
    with Batcher(make_labelled(gate), max_rows=8, max_wait=FOREVER) as batcher:
        report = batcher.submit(ONE, **settings(ratio=0)).result(30).report
    assert gate.rows == [1] * 6
    assert (report.shared_calls, report.mean_rows) == (0, 1.0)


def test_only_full_steps_take_places():
    gate = Gate()
    with Batcher(make_labelled(gate), max_rows=4, max_wait=FOREVER) as batcher:
        futures = [batcher.submit(ONE, **settings(ratio=ratio, num_steps=50)) for ratio in (0, 4)]
        assert [future.result(60).report.nfe for future in futures] == [50, 22]
    assert sum(gate.rows) == 72


def test_letters_do_not_mix():
    def double(**inputs):
        letters.append(("Q", len(inputs["sample"])))
        return coarse(**inputs)

    letters: list = []
    plans = ["FQXRQXF", "FQXRQXF", "FFXRQXF"]
    session = make_labelled(EnginePair(denoise, double))
    with Batcher(session, max_rows=8, max_wait=FOREVER) as batcher:
        futures = [batcher.submit(ONE, **settings(k, plan=plan, num_steps=7)) for k, plan in enumerate(plans)]
        results = [future.result(30) for future in futures]
    assert sum(rows for _, rows in letters) == 5
    for k, (plan, result) in enumerate(zip(plans, results, strict=True)):
        assert torch.equal(result.latents, session.generate(ONE, **settings(k, plan=plan, num_steps=7)).latents)


def test_constant_inputs_are_shared_only_where_they_are_equal():
    from zeus_trt.runtime.bundle.tensor_spec import TensorSpec

    def shifted(sample, timestep, ids):
        calls.append(len(sample))
        return denoise(sample, timestep) + ids.sum()

    calls: list = []
    session = make_session(TensorSpec("ids", "float32", (3,)), engine=shifted)
    asked = [settings(k, ratio=0) for k in range(4)]
    given = [{"ids": torch.full((3,), float(k // 2))} for k in range(4)]
    with Batcher(session, max_rows=8, max_wait=FOREVER) as batcher:
        futures = [batcher.submit(ids, **one) for ids, one in zip(given, asked, strict=True)]
        made = [future.result(30).latents for future in futures]
    assert max(calls) <= 2
    for ids, one, latents in zip(given, asked, made, strict=True):
        assert torch.equal(latents, session.generate(ids, **one).latents)


def test_calls_are_padded_to_the_sizes_that_are_given_or_built():
    gate = Gate()
    with Batcher(make_labelled(gate), max_rows=8, batch_sizes=(4, 8)) as batcher:
        made = batcher.submit(ONE, **settings()).result(30).latents
    assert {*gate.rows} == {4}
    assert batcher.counters.padding == 3 * batcher.counters.rows
    assert torch.equal(made, make_labelled().generate(ONE, **settings()).latents)
    gate = Gate()
    shape = ShapeRange((2, 4, 8, 8), (2, 4, 8, 8), (3, 4, 8, 8))
    gate.info = EngineInfo("toy", Precision.FP32, torch.device("cpu"), {"sample": shape}, 0)
    with Batcher(make_labelled(gate), max_rows=8) as batcher:
        batcher.submit({"class_labels": torch.arange(8)}, **settings(rows=8)).result(30)
        batcher.submit(ONE, **settings()).result(30)
    assert {*gate.rows} == {2, 3}
    with pytest.raises(ZeusError, match=r"^max_rows: got batches of 1 to 1 rows; expected .* 2 to 3\."):
        Batcher(make_labelled(gate), max_rows=1)
    assert not list_threads()


def test_an_engine_may_answer_every_call_in_one_buffer():
    buffer = torch.zeros(8, 4, 8, 8)

    def stingy(**inputs):
        output = denoise(**inputs)
        for name in ("sample", "timestep"):
            inputs[name].fill_(torch.nan)
        return buffer[: len(output)].copy_(output)

    asked = [settings(k, rows=1 + k % 3, ratio=k % 4) for k in range(12)]
    given = [{"class_labels": torch.arange(1 + k % 3)} for k in range(12)]
    with Batcher(make_labelled(stingy), max_rows=8) as batcher:
        futures = [batcher.submit(labels, **one) for labels, one in zip(given, asked, strict=True)]
        made = [future.result(30).latents for future in futures]
    for labels, one, latents in zip(given, asked, made, strict=True):
        assert torch.equal(latents, make_labelled().generate(labels, **one).latents)


def test_progress_is_told_step_by_step():
    seen: list = []
    with Batcher(make_labelled()) as batcher:
        result = batcher.submit(ONE, on_step=seen.append, **settings(ratio=2)).result(30)
    assert [step.index for step in seen] == [*range(6)]
    assert torch.equal(seen[-1].latents, result.latents)


def test_requests_are_awaited_and_a_cancelled_task_cancels_its_request():
    async def ask(batcher):
        results = await asyncio.gather(*(batcher.generate(ONE, **settings(k)) for k in range(5)))
        gate.opened.clear()
        gate.entered.clear()
        task = asyncio.create_task(batcher.generate(ONE, **settings()))
        await asyncio.to_thread(gate.entered.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.opened.set()
        return results

    gate = Gate()
    with Batcher(make_labelled(gate)) as batcher:
        results = asyncio.run(ask(batcher))
    for k, result in enumerate(results):
        assert torch.equal(result.latents, make_labelled().generate(ONE, **settings(k)).latents)
    assert batcher.counters.cancelled == 1


def test_other_sessions_share_its_engine():
    batcher = Batcher(make_session(TEXT), max_rows=4)
    other = Session(batcher.session.bundle, engine=batcher.engine, scheduler=batcher.session.solver.scheduler)
    text = {"encoder_hidden_states": embed(1)}
    noise = draw_noise((2, 4, 8, 8), 0)
    with batcher:
        made = [one.generate(text, num_steps=5, noise=noise).latents for one in (other, batcher.session)]
    expected = make_session(TEXT).generate(text, num_steps=5, noise=noise).latents
    assert all(torch.equal(one, expected) for one in made)
    with pytest.raises(ZeusError, match="closed batcher"):
        other.generate(text, num_steps=5, noise=noise)


@pytest.mark.parametrize(
    "wrong",
    [{"max_rows": 0}, {"max_wait": -1}, {"max_wait": float("nan")}, {"max_queue": 0}, {"batch_sizes": [0]},
     {"max_rows": 2, "batch_sizes": [4]}],
)  # fmt: skip
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ZeusError, match=r"^(max_rows|max_wait|max_queue|batch_sizes): got"):
        Batcher(make_session(LABELS, labels=DIGITS), **wrong)
    assert not list_threads()
