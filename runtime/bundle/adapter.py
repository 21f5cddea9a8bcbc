"""An adapter beside a bundle's graphs: what it adds to which parameter of the denoiser."""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.counts import show

FORMAT = 1
FOLDER = "adapters"
FILE_NAME = "adapter.json"
FACTORS = "factors.safetensors"

_THING = "adapter"
_ADVICE = "Make the adapter again: `zeus-trt adapter BUNDLE FILE -o NAME --overwrite`."
_NAME = re.compile(r"[A-Za-z0-9_][\w-]{0,63}", re.ASCII)  # a folder and a module of peft: no dot
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_name(name: Any) -> str:
    """A name that a folder and an adapter of diffusers can have; raises ZeusError for any other."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ZeusError(
            f"adapter: got the name {show(name)}; expected up to 64 letters, digits, - and _, not - first. Change it."
        )
    return name


def place_of(name: str) -> str:
    """The folder of an adapter in its bundle."""
    return f"{FOLDER}/{name}"


def list_names(files: Collection[str]) -> tuple[str, ...]:
    """The adapters among the files of a bundle, by name."""
    folder, file = f"{FOLDER}/", f"/{FILE_NAME}"
    found = (name for name in files if name.startswith(folder) and name.endswith(file))
    return tuple(sorted(name.removeprefix(folder).removesuffix(file) for name in found))


@dataclass(frozen=True)
class Adapter:
    """An adapter of a bundle.

    A parameter changes by ``scaling * up @ down``, in the shape of the parameter, or by ``scaling * delta``: tensors of
    the file of factors, under the parameter's name and a dot before these words.

    Args:
        name: As in the pipeline that it stands for.
        scale: As ``set_adapters`` takes it; the factors of ``scaling`` hold it already.
        sha256: Digest of its weights and scales, as ``digest_weights`` makes it.
        scaling: Per parameter, what its change is multiplied with.
    """

    name: str
    scale: float
    sha256: str
    scaling: Mapping[str, float]

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.scaling or not self.scale or not all(map(math.isfinite, (self.scale, *self.scaling.values()))):
            raise ValueError("it changes nothing, or has a scale that is 0 or no number")
        if not _DIGEST.fullmatch(self.sha256):
            raise ValueError("its sha256 is no digest")

    @property
    def scales(self) -> dict[str, float]:
        """Its scale by its name."""
        return {self.name: self.scale}

    def to_json(self) -> str:
        """The adapter as JSON text."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, content: bytes) -> "Adapter":
        """Reads what ``to_json`` wrote; raises ZeusError for anything else."""
        data = strict_json.decode(content, _THING, advice=_ADVICE)
        strict_json.check_format(data, FORMAT, _THING, advice=_ADVICE)
        del data["format"]
        return strict_json.build(data, cls, _THING, advice=_ADVICE)


class Factors:
    """The tensors of an adapter.

    Args:
        names: Their names.
        read: Gives the tensor of a name.
    """

    def __init__(self, names: Collection[str], read: Callable[[str], torch.Tensor]):
        self._names, self._read = {*names}, read

    def multiply(self, parameter: str, scaling: float) -> torch.Tensor:
        """The change of a parameter, float32, in a shape of as many numbers: (rows, -1), or as it is stored.

        Raises:
            ZeusError: The file lacks it, or its factors do not fit each other.
        """
        names = [[f"{parameter}.delta"], [f"{parameter}.up", f"{parameter}.down"]]
        stored = next((kind for kind in names if {*kind} <= self._names), None)
        parts = [self._read(name).float() for name in stored or ()]
        if len(parts) == 2 and (any(part.ndim != 2 for part in parts) or parts[0].shape[1] != parts[1].shape[0]):
            parts = []
        if not parts:
            raise ZeusError(f"adapter: got no fitting factors of {parameter}; expected those of its record. {_ADVICE}")
        return scaling * (parts[0] @ parts[1] if len(parts) == 2 else parts[0])


@contextmanager
def open_factors(path: Path) -> Iterator[Factors]:
    """Opens a file of factors within a block; raises ZeusError if it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as tensors:
            yield Factors(tensors.keys(), tensors.get_tensor)
    except (SafetensorError, OSError) as error:
        raise ZeusError(f"adapter: got {path}, which cannot be read ({error}); expected its file. {_ADVICE}") from error
