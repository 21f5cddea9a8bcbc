"""A menu of calibrated plans without files."""

from zeus_trt.runtime.menu import Menu
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan, Measured

STEPS = 8
PLANS = {"FFXXXXXF": 20.0, "FFXXFXXF": 30.0, "FFXXFXFF": 29.0, "FFFFFXFF": 40.0}


def calibrate(session, plan, psnr_db, guidance_scale=1.0):
    """What a calibration of the session's solver would leave."""
    found = Measured(Plan(plan), psnr_db)
    fingerprint = session.solver.program(STEPS).fingerprint
    workload = {"weights_sha256": session.bundle.manifest.weights_sha256, "guidance_scale": guidance_scale}
    return CalibratedPlan(
        found, True, psnr_db, (found,), STEPS, "default", fingerprint, "toy", workload, {"held_out": (0, 1)},
        {"recording": 1, "measuring": 1},
    )  # fmt: skip


def offer_plans(session, **options):
    """Gives a session of a toy a menu without files."""
    session.menu = Menu(session.bundle)
    session.menu.__dict__["_known"] = tuple(calibrate(session, *one, **options) for one in PLANS.items())
    return session
