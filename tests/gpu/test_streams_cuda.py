"""Threads, each on a stream of its own: graphs captured while others work, and trajectories beside each other."""

import threading
from concurrent.futures import ThreadPoolExecutor

import diffusers
import pytest
import torch
from toy_bundle import SAMPLE, TIMESTEP, make_session

from zeus_trt.runtime import EagerEngine, draw_noise
from zeus_trt.runtime.engines.cuda_graph import CudaGraphs

THREADS = 4


class Toy(torch.nn.Module):
    """Enough work that calls overlap."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convs = torch.nn.Sequential(
            torch.nn.Conv2d(4, 32, 3, padding=1), *(torch.nn.Conv2d(32, 32, 3, padding=1) for _ in range(6)),
            torch.nn.Conv2d(32, 4, 3, padding=1),
        )  # fmt: skip

    def forward(self, sample, timestep):
        return torch.tanh(self.convs(sample) + sample * timestep.reshape(-1, 1, 1, 1) / 1000)


def open_engine(device, graph=True):
    module = Toy().to(device).eval()
    if not graph or device.type == "cuda":
        return EagerEngine(module, (SAMPLE, TIMESTEP), cuda_graph=graph)
    engine = EagerEngine(module, (SAMPLE, TIMESTEP))  # in a dry run the graphs are put in by hand
    engine._lock = threading.Lock()
    engine._run = CudaGraphs(engine._call, engine.info.device, engine._find_addresses)
    return engine


def make_inputs(device, seed):
    size = 32 + 8 * (seed % 6)  # more shapes than an engine keeps graphs
    return {"sample": draw_noise((2, 4, size, size), seed).to(device), "timestep": torch.full((2,), 500.0).to(device)}


def run_threads(work, device, count=THREADS):
    """Each thread on a stream of its own; a deadlock ends in a TimeoutError."""

    def run(number):
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            result = work(number)
            stream.synchronize()
        return result

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count), timeout=120))


@pytest.mark.parametrize("graph", [False, True], ids=["plain", "graph"])
def test_an_engine_shared_by_threads(graph, graphs):
    engine, plain = open_engine(graphs, graph), open_engine(graphs, graph=False)
    seeds = range(4 * THREADS)
    expected = {seed: plain(**make_inputs(graphs, seed)).cpu() for seed in seeds}

    def work(number):
        return [(seed, engine(**make_inputs(graphs, seed))) for seed in [*seeds[number::THREADS]] * 3]

    for results in run_threads(work, graphs):
        for seed, got in results:
            torch.testing.assert_close(got.cpu(), expected[seed], rtol=1e-4, atol=1e-5)


def test_replays_follow_each_other_without_the_host(graphs):
    """One graph, from two streams in turn, nothing waited for between: a replay must not overtake the one before."""
    engine = open_engine(graphs)
    inputs = [{**make_inputs(graphs, 0), "sample": draw_noise((2, 4, 256, 256), seed).to(graphs)} for seed in range(8)]
    plain = open_engine(graphs, graph=False)
    expected = [plain(**one) for one in inputs]
    engine(**inputs[0])
    streams = [torch.cuda.Stream(graphs) for _ in range(2)]
    torch.cuda.synchronize()
    got = []
    for number, one in enumerate(inputs):
        with torch.cuda.stream(streams[number % 2]):
            got.append(engine(**one))
    torch.cuda.synchronize()
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_captures_beside_a_thread_that_allocates(graphs):
    engine, stop, done = open_engine(graphs), threading.Event(), []

    def allocate():
        """Memory of ever other sizes, and waiting for it: what a capture in global mode forbids everyone."""
        while not stop.is_set():
            size = 2**21 + 2**17 * (len(done) % 32)
            done.append(int(torch.ones(size, dtype=torch.int32, device=graphs).sum()) == size)

    def capture():
        try:
            return [engine(**make_inputs(graphs, seed)) for seed in range(40)]  # torch has 32 streams
        finally:
            stop.set()

    results = run_threads(lambda number: capture() if number == 0 else allocate(), graphs, count=2)[0]
    assert done
    assert all(done)
    plain = open_engine(graphs, graph=False)
    for seed, got in enumerate(results):
        torch.testing.assert_close(got, plain(**make_inputs(graphs, seed)), rtol=1e-4, atol=1e-5)


def test_engines_that_capture_at_once(graphs):
    """Torch captures one graph at a time in a process."""
    engines, start = [open_engine(graphs) for _ in range(THREADS)], threading.Barrier(THREADS)
    plain = open_engine(graphs, graph=False)

    def work(number):
        got = []
        try:
            for seed in range(5):
                start.wait(60)
                got.append(engines[number](**make_inputs(graphs, seed)))
        except threading.BrokenBarrierError:
            pass  # another thread failed, and says why
        except Exception:
            start.abort()
            raise
        return got

    for results in run_threads(work, graphs):
        for seed, got in enumerate(results):
            torch.testing.assert_close(got, plain(**make_inputs(graphs, seed)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graph", [False, True], ids=["plain", "graph"])
def test_trajectories_of_threads_are_the_serial_ones(graph, graphs):
    session = make_session(engine=open_engine(graphs, graph), scheduler=diffusers.DPMSolverMultistepScheduler())

    def generate(number):
        noise = draw_noise((2, 4, 32, 32), number)
        mode = ("program", "step")[number % 2]
        return session.generate(plan=session.plan(12, 3), num_steps=12, noise=noise, mode=mode)

    serial = [generate(number) for number in range(THREADS)]
    for one, other in zip(serial, run_threads(generate, graphs), strict=True):
        torch.testing.assert_close(other.latents, one.latents, rtol=1e-4, atol=1e-5)
        assert other.report.plan == one.report.plan
