"""What is found out of a denoiser that others exported or compiled, by running it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zeus_trt.export.foreign_model import BATCH
from zeus_trt.export.foreign_trial import Trial
from zeus_trt.export.foreign_wiring import Wiring
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec
from zeus_trt.runtime.bundle.verification import Verification


@dataclass(frozen=True)
class Findings:
    """What is known of a denoiser after it has run.

    Args:
        trial: With what it returns, as it was measured.
        wiring: With the sizes fixed that it takes no others of, and the way its rows are called.
        seen: Two sizes of each other axis, at which it was verified.
        records: Of these.
    """

    trial: Trial
    wiring: Wiring
    seen: Mapping[str, tuple[int, int]]
    records: tuple[Verification, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The first of the sizes that were seen."""
        return {name: pair[0] for name, pair in self.seen.items()}

    @property
    def symbols(self) -> tuple[SymbolSpec, ...]:
        """The sizes that vary, with what the denoiser says of them."""
        said = {spec.name: spec for spec in self.wiring.symbols}
        return tuple(
            replace(said.get(name, SymbolSpec(name, ())), observed=observed) for name, observed in self.seen.items()
        )


def find_out(trial: Trial, wiring: Wiring, sizes: Mapping[str, int], say: Callable[[str], Any]) -> Findings:
    """Runs a denoiser at its sizes, and compares it with the formulas of its border.

    Args:
        trial: The denoiser, and what it is said to return.
        wiring: Which of its tensors is which.
        sizes: A size for every name among the axes.
        say: Called with a sentence on what was found.

    Raises:
        ZeusError: It fails, or its output is not finite, has another shape than the latents, or disagrees.
    """
    wiring = trial.settle(wiring, sizes)
    if wiring.by_rows:
        say("the denoiser takes a row at a time: its bundle calls it for each")
    others = {BATCH: 2 * sizes[BATCH]} | trial.find_others(wiring, sizes)
    fixed = {name: size for name, size in sizes.items() if name not in others}
    for name, size in fixed.items():
        say(f"{name}: the denoiser takes no other size than {size}")
    if trial.parameterization.returns == "edm" and trial.is_whole(wiring, sizes):
        say("the denoiser has EDM's preconditioning inside: it returns clean latents")
        trial = replace(trial, parameterization=replace(trial.parameterization, returns="sample"))
    wiring = wiring.fix(fixed)
    seen = {name: (sizes[name], other) for name, other in others.items()}
    records = [trial.verify(wiring, {name: pair[place] for name, pair in seen.items()}) for place in (0, 1)]
    return Findings(trial, wiring, seen, tuple(records))
