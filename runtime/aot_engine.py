"""AOTInductor packages as engines."""

from collections.abc import Sequence
from pathlib import Path

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.engine_folder import AOT_INDUCTOR, Needs, find_engine
from zeus_trt.runtime.engine_profile import Profile, check_shapes
from zeus_trt.runtime.manifest import TensorSpec
from zeus_trt.runtime.named_inputs import cast_inputs, measure


class AotEngine:
    """A ``.pt2`` package as a denoiser.

    Args:
        package: The file.
        inputs: Names, types and axes, in the order of the package.
        profile: Shapes it was built for: the package itself takes others, and computes something.
        device: What it was built for.
        run_single_threaded: One call at a time, with nothing that a CUDA graph cannot capture.

    Raises:
        ZeusError: The package does not load.
    """

    backend = AOT_INDUCTOR

    def __init__(
        self,
        package: Path,
        inputs: Sequence[TensorSpec],
        profile: Profile,
        device: str | torch.device = "cpu",
        run_single_threaded: bool = False,
    ):
        self.device = torch.device(device)
        self.profile = profile
        self._axes = {spec.name: spec.axes for spec in inputs}
        self._dtypes = {spec.name: getattr(torch, spec.dtype) for spec in inputs}
        try:
            self._model = torch._inductor.aoti_load_package(
                str(package), run_single_threaded=run_single_threaded, device_index=self.device.index or -1
            )
        except Exception as error:  # torch's loader raises bare RuntimeErrors
            raise ZeusError(
                f"aot-inductor: got {package.name}, which does not load ({str(error).strip().splitlines()[0]}); "
                f"expected a package for torch {torch.__version__} on {device}. Build it again."
            ) from error

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        device: str | torch.device = "cpu",
        precision: str | None = None,
        run_single_threaded: bool = False,
    ) -> "AotEngine":
        """The bundle's package for this machine, checked before it is loaded.

        Raises:
            ZeusError: There is none; the message says why each that is there is refused.
        """
        found = find_engine(bundle.path, Needs.of(bundle.manifest, AOT_INDUCTOR, device, precision=precision))
        return cls(found.path, bundle.manifest.inputs, found.record.spec.profile, device, run_single_threaded)

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Runs the package.

        Args:
            **inputs: By name, batch first; cast to the declared types. A 0-d or (1,) timestep serves every row.

        Returns:
            The model output, a tensor of the caller's own on the engine's device.

        Raises:
            ZeusError: An input is missing, unknown, or of a shape outside the profile.
        """
        cast = cast_inputs(self.backend, inputs, self._dtypes, self.device)
        check_shapes(self.profile, measure(cast, self.profile), self._axes)
        with torch.no_grad():
            output = self._model(*cast.values())
        return output[0] if isinstance(output, list | tuple) else output

    def __repr__(self) -> str:
        return f"AotEngine(device={str(self.device)!r}, inputs={list(self._dtypes)})"
