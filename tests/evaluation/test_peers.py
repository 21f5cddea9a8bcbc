"""Caches beside ZEUS on the digits models: which run, what they cost, and that nothing of them stays."""

import importlib.util

import pytest
import torch
from checkout import MODELS
from diffusers.hooks import HookRegistry, ModelHook

from zeus_trt.comparing import open_compared
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.compare import compare
from zeus_trt.evaluation.comparison import pair_peers
from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.peer import PEERS, Peer, UnsupportedError
from zeus_trt.evaluation.peers import Situation, apply_peer
from zeus_trt.evaluation.variants import Grid, NamedPlan, make_variants
from zeus_trt.zeus_graph import Plan

STEPS = 10


QUICK = ("taylorseer", "pab", "cache-dit")  # one that forecasts, one that reuses, one that is not installed
OTHERS = ("first-block-cache", "taylorseer-lite", "mag-cache", "faster-cache")


@pytest.fixture(
    scope="module",
    params=[pytest.param(QUICK, marks=pytest.mark.extra), pytest.param(OTHERS, marks=pytest.mark.slow)],
    ids=["quick", "others"],
)
def compared(request, digits_bundle, one_thread):
    model = MODELS / "digits-dit-flow"
    subject = open_compared(digits_bundle("dit-flow"), model=model, backends=("eager",), guidance_scale=2.0)
    peers = [peer for name in request.param for peer in Peer.parse(name)]
    variants = make_variants(subject.workload, Grid(("eager",), ratios=(2, 4), steps=(STEPS,), peers=peers))
    return compare(subject, variants, MeasureOptions(num_images=2, rounds=1)), subject


def find_rows(compared, name):
    return [row for row in compared[0].rows if row.peer and row.peer.split()[0] == name]


def test_caches_run_on_the_dit_and_are_weighed(compared):
    names = [name for name in PEERS if name != "cache-dit" and find_rows(compared, name)]
    assert len(names) in (2, 4)
    for name in names:
        gentle, eager = find_rows(compared, name)
        assert gentle.note is eager.note is None
        assert eager.nfe_equivalent <= gentle.nfe_equivalent <= STEPS + 1e-6
        assert eager.nfe_equivalent < STEPS - 0.5
        assert gentle.to_full.latent_error <= eager.to_full.latent_error < 1
        assert eager.to_full.latent_error > 0


def test_the_work_of_the_full_run_is_its_number_of_calls(compared):
    _, subject = compared
    full = make_variants(subject.workload, Grid(("eager",), ratios=(), steps=(STEPS,)))[0]

    from zeus_trt.evaluation.timing import count_flops

    work = count_flops(lambda: subject.workload.run(full.setting, (0, 1)))
    call = count_flops(lambda: subject.module(torch.zeros(4, 1, 32, 32), torch.zeros(4), torch.zeros(4, dtype=int)))
    assert work == STEPS * call


@pytest.mark.skipif(importlib.util.find_spec("cache_dit") is not None, reason="cache-dit is installed")
@pytest.mark.extra
@pytest.mark.parametrize("compared", [QUICK], indirect=True, ids=["quick"])
def test_a_cache_that_is_not_installed_says_so(compared):
    assert {row.note for row in find_rows(compared, "cache-dit")} == {
        "not supported: cache-dit is not installed: pip install cache-dit"
    }


@pytest.mark.extra
@pytest.mark.parametrize("compared", [QUICK], indirect=True, ids=["quick"])
def test_caches_stand_beside_skipped_runs(compared):
    table = pair_peers(compared[0].rows)
    lines = table.texts
    assert len(lines) == 4
    assert all(len(line) == len(table.columns) for line in table.rows)
    light = {line[0]: line[7] for line in lines}
    assert light["pab 2"] == "r = 2, zeus"
    assert pair_peers([row for row in compared[0].rows if not row.peer]) is None


def test_nothing_stays_in_the_module(compared):
    _, subject = compared
    left = {name for part in subject.module.modules() for name in vars(part)} & {"forward", "_diffusers_hook"}
    assert left == set()
    assert not subject.module._forward_pre_hooks


def make_situation(module):
    inputs = torch.zeros(2, 1, 32, 32), torch.full((2,), 500.0), torch.zeros(2, dtype=int)
    return Situation(STEPS, True, 4, True, lambda: module(*inputs)), inputs


def test_hooks_of_the_user_stay(compared):
    class Mine(ModelHook):
        def post_forward(self, module, output):
            return output + 1

    module = compared[1].module
    block = module.transformer_blocks[0]
    situation, inputs = make_situation(module)
    with torch.no_grad():
        plain = module(*inputs).sample
        HookRegistry.check_if_exists_or_initialize(block).register_hook(Mine(), "mine")
        hooked = module(*inputs).sample
        with apply_peer(Peer("first-block-cache", 0.1), module, situation):
            assert list(block._diffusers_hook.hooks) != ["mine"]
        assert list(block._diffusers_hook.hooks) == ["mine"]
        assert torch.equal(module(*inputs).sample, hooked)
        assert not torch.equal(hooked, plain)
        block._diffusers_hook.remove_hook("mine")
        assert torch.equal(module(*inputs).sample, plain)


@pytest.mark.parametrize("name", ["first-block-cache", "taylorseer", "mag-cache", "faster-cache"])
def test_a_unet_is_not_supported_and_untouched(name):
    from zeus_trt.export.loading import load_pipeline

    module = load_pipeline(MODELS / "digits-unet-flow").denoiser
    situation, _ = make_situation(module)
    with pytest.raises(UnsupportedError), apply_peer(Peer.parse(name)[0], module, situation):
        pass
    assert not {name for part in module.modules() for name in vars(part)} & {"forward", "_diffusers_hook"}


def test_peers_are_read():
    assert Peer.parse("pab=3") == (Peer("pab", 3.0),)
    assert [peer.value for peer in Peer.parse("taylorseer")] == [3, 5]
    with pytest.raises(ZeusError, match="expected some of first-block-cache, taylorseer"):
        Peer.parse("tea")
    with pytest.raises(ZeusError, match="expected a number"):
        Peer.parse("pab=fast")


def make_rows(name, peers, digits_bundle, **grid):
    subject = open_compared(digits_bundle(name), model=MODELS / f"digits-{name}", backends=("eager",))
    parsed = [peer for text in peers for peer in Peer.parse(text)]
    variants = make_variants(subject.workload, Grid(("eager",), steps=(STEPS,), peers=parsed, **grid))
    options = MeasureOptions(2, 1, ("psnr",), reference=False, trajectories=False)
    return {row.label: row for row in compare(subject, variants, options).rows}


@pytest.mark.extra
def test_caches_run_below_plans(digits_bundle, one_thread):
    rows = make_rows("dit-flow", ["pab=2", "mag-cache=1", "sada=4"], digits_bundle, ratios=(0, 2), compose=True)
    assert [label for label in rows if "+" in label] == ["r = 2 + pab 2", "r = 2 + mag-cache 1"]
    plan = rows["r = 2"]
    for cache in ("pab 2", "mag-cache 1"):
        both = rows[f"r = 2 + {cache}"]
        assert both.note is None
        assert (both.plan, both.nfe) == (plan.plan, plan.nfe)
        assert both.nfe_equivalent < plan.nfe_equivalent
        assert both.nfe_equivalent < rows[cache].nfe_equivalent
        assert both.speedup_bound == pytest.approx(STEPS / both.nfe_equivalent)
        assert "#" not in both.marks


def test_taylorseer_lite_is_a_line_through_the_last_two_outputs(digits_bundle, one_thread):
    def make(count):
        full = [step for step in range(count) if step < 3 or (step - 4) % 3 == 0 or step == count - 1]
        return Plan.from_full_steps(count, full).with_predictor("lagrange-2@index")

    plan = NamedPlan("line", make)
    steps = STEPS + 1  # so that diffusers' hooks run the last step too
    subject = open_compared(digits_bundle("dit-flow"), model=MODELS / "digits-dit-flow", backends=("eager",))
    grid = Grid(("eager",), ratios=(), steps=(steps,), plans=[plan], peers=Peer.parse("taylorseer-lite=3"))
    line, lite = make_variants(subject.workload, grid)[1:]
    latents = subject.workload.run(line.setting, (0, 1)).latents
    situation = Situation(steps, True, 4, True, lambda: None)
    with apply_peer(lite.peer, subject.module, situation):
        forecast = subject.workload.run(lite.setting, (0, 1)).latents
    torch.testing.assert_close(forecast, latents, atol=1e-4, rtol=1e-4)


def test_criteria_run_on_a_unet_and_count_their_calls(digits_bundle, one_thread):
    peers = ["adaptive-diffusion=0.05", "sada=4", "deepcache", "teacache"]
    rows = make_rows("unet-flow", peers, digits_bundle, ratios=(0,))
    for label in ("adaptive-diffusion 0.05", "sada 4"):
        row = rows[label]
        assert row.nfe == row.plan.count("F") < STEPS
        assert row.nfe_equivalent == pytest.approx(row.nfe)
        assert row.marks.strip("~") == ""
    assert rows["deepcache 3"].note.startswith("not supported: its package, deepcache 0.1.1")
    assert rows["teacache 0.2"].note.startswith("not supported: diffusers does not have it")


def test_sada_is_for_flows():
    situation = Situation(STEPS, True, 4, False, lambda: None)
    with (
        pytest.raises(UnsupportedError, match="predict a flow"),
        apply_peer(Peer("sada", 4), torch.nn.Identity(), situation),
    ):
        pass


def test_taylorseer_lite_finds_its_layers_or_says_so():
    from zeus_trt.export.loading import load_pipeline

    module = load_pipeline(MODELS / "digits-unet-flow").denoiser
    lite, (situation, _) = Peer("taylorseer-lite", 3), make_situation(module)
    with pytest.raises(UnsupportedError, match="UNet2DModel has not"), apply_peer(lite, module, situation):
        pass
