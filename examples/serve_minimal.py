"""A bundle in a service, with torch and one backend installed and nothing else: conditioning in, latents out.

    python examples/serve_minimal.py BUNDLE conditioning.safetensors latents.npz --steps 50 --ratio 3

The conditioning is a safetensors or npz file of the denoiser's inputs by name (`zeus-trt inspect BUNDLE` lists them).
A name that begins with `negative.` goes to the unconditional rows of guidance; `noise` is needed where the size of the
latents may vary. No diffusers: the step count must be one of those that the bundle stores.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from zeus_trt.arrays import read_tensors
from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Session


def main() -> None:
    parser = argparse.ArgumentParser(description="Latents from a bundle and its conditioning.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("conditioning", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--ratio", type=int, default=3)
    parser.add_argument("--guidance-scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto")
    asked = parser.parse_args()

    try:
        serve(asked)
    except ZeusError as error:
        sys.exit(f"error: {error}")


def serve(asked: argparse.Namespace) -> None:
    """Reads the conditioning, samples and writes the latents."""
    given = read_tensors(asked.conditioning, "conditioning")
    negative = {name.removeprefix("negative."): given.pop(name) for name in list(given) if name.startswith("negative.")}
    noise = given.pop("noise", None)  # needed where the size of the latents may vary
    with Session(asked.bundle, backend=asked.backend) as session:
        result = session.generate(
            given, plan=session.plan(asked.steps, asked.ratio), num_steps=asked.steps, negative=negative or None,
            guidance_scale=asked.guidance_scale, seed=asked.seed, noise=noise,
        )  # fmt: skip
        print(session)
    np.savez(asked.output, latents=result.latents.cpu().numpy())
    print(result.report)


if __name__ == "__main__":
    main()
