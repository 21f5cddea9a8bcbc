"""Trains a digits model by the recipe of those in examples/models.

python examples/train_digits.py --model digits-unet-flow -o out/digits-unet-flow
"""

import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import torch
from diffusers import DDPMScheduler, DiTTransformer2DModel, ModelMixin, UNet2DModel
from diffusers.training_utils import EMAModel
from torch.nn.functional import mse_loss
from tqdm import tqdm

EXAMPLES = Path(__file__).parent
MODELS = sorted(path.parent.name for path in EXAMPLES.glob("models/*/scheduler"))
NETWORKS = {"unet": (UNet2DModel, 1.5e-3, 1200), "transformer": (DiTTransformer2DModel, 1e-3, 2500)}
"""Folder of the network -> its class, learning rate and number of steps."""

NULL_CLASS = 10


class Flow:
    """x = (1 - s) x0 + s noise, with s = sigmoid(normal); the network learns noise - x0."""

    def draw(self, x0: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns noisy samples and targets, both shaped as ``x0``, and float timesteps 1000 s of shape (batch,)."""
        s, noise = torch.randn(len(x0)).sigmoid(), torch.randn(x0.shape)
        return torch.lerp(x0, noise, s[:, None, None, None]), noise - x0, 1000 * s


class Diffusion:
    """The beta schedule of a scheduler config; the network learns epsilon, v or x0, as the config says."""

    def __init__(self, config: dict):
        self.schedule = DDPMScheduler.from_config(config)

    def draw(self, x0: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns noisy samples and targets, both shaped as ``x0``, and integer timesteps of shape (batch,)."""
        t = torch.randint(self.schedule.config.num_train_timesteps, (len(x0),))
        noise = torch.randn(x0.shape)
        targets = {"epsilon": noise, "v_prediction": self.schedule.get_velocity(x0, noise, t), "sample": x0}
        return self.schedule.add_noise(x0, noise, t), targets[self.schedule.config.prediction_type], t


def read_process(source: Path) -> Flow | Diffusion:
    """The training process that belongs to the scheduler config of a model folder."""
    config = json.loads((source / "scheduler/scheduler_config.json").read_text())
    return Flow() if config["_class_name"].startswith("FlowMatch") else Diffusion(config)


def draw_batches(process: Flow | Diffusion, batch_size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yields (noisy sample, target, timestep, class labels) without end; a tenth of the labels is the null class.

    Everything is drawn on the CPU, so that a seed means the same batches on every device.
    """
    data = np.load(EXAMPLES / "data/digits.npz")
    images, labels = torch.from_numpy(data["x"]), torch.from_numpy(data["y"]).long()
    while True:
        index = torch.randint(len(images), (batch_size,))
        x0 = images[index, None].float() / 127.5 - 1
        dropped = torch.rand(batch_size) < 0.1
        yield *process.draw(x0), labels[index].masked_fill(dropped, NULL_CLASS)


def train(
    model: torch.nn.Module, batches: Iterator[tuple[torch.Tensor, ...]], lr: float, steps: int, device: str
) -> list[float]:
    """Trains ``model`` in place, leaves the EMA weights in it, and returns the loss of every step."""
    # train() also lets diffusers' DiT drop labels to a class 11 of its own, block by block, as the shipped one did.
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=0.01 * lr)
    ema = EMAModel(model.parameters(), decay=0.9995)
    losses = []
    with tqdm(range(steps), unit="step") as bar:
        for step in bar:
            sample, target, timestep, labels = (tensor.to(device) for tensor in next(batches))
            loss = mse_loss(model(sample, timestep, class_labels=labels).sample, target)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            decay.step()
            ema.step(model.parameters())
            losses.append(loss.detach())
            if step % 20 == 0:
                bar.set_postfix(loss=f"{loss:.4f}")
    ema.copy_to(model.parameters())
    return torch.stack(losses).tolist()


def choose_device(text: str) -> str:
    """Resolves ``auto``, and refuses a device that this machine does not have."""
    device = ("cuda" if torch.cuda.is_available() else "cpu") if text == "auto" else text
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise click.ClickException(f"device: got {text}; expected auto, or a device at hand. {reason}") from error
    return device


def save(model: ModelMixin, network: str, source: Path, output: Path) -> None:
    """Writes a model folder with float16 weights and the scheduler of ``source``: all of it or nothing."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as scratch:
        folder = Path(scratch, output.name)
        model.half().save_pretrained(folder / network)
        shutil.copytree(source / "scheduler", folder / "scheduler")
        folder.rename(output)


@click.command(help="Train one of the digits models and save it in diffusers' format.")
@click.option("--model", "name", type=click.Choice(MODELS), required=True, help="Which model; its configs are copied.")
@click.option("--steps", type=click.IntRange(1), help="Training steps.  [default: 1200 for a UNet, 2500 for a DiT]")
@click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:1.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to write; must not exist.")
def main(name: str, steps: int | None, batch_size: int, device: str, seed: int, output: Path) -> None:
    if output.exists():
        raise click.ClickException(f"output: got {output}, which exists; expected a new folder. Choose another.")
    device = choose_device(device)
    source = EXAMPLES / "models" / name
    network = next(folder for folder in NETWORKS if (source / folder).is_dir())
    network_class, lr, usual_steps = NETWORKS[network]
    torch.manual_seed(seed)
    start = time.perf_counter()
    model = network_class.from_config(network_class.load_config(source / network))
    losses = train(model, draw_batches(read_process(source), batch_size), lr, steps or usual_steps, device)
    save(model, network, source, output)
    tenth, seconds = math.ceil(len(losses) / 10), round(time.perf_counter() - start, 1)
    first, last = (float(np.mean(part)) for part in (losses[:tenth], losses[-tenth:]))
    print(json.dumps({"loss_first": first, "loss_last": last, "steps": len(losses), "seconds": seconds}))


if __name__ == "__main__":
    main()
