"""Values of a pipeline's arguments and of a model's inputs, as the command line gives them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError

_MOST_BYTES = 1 << 28


def read_argument(name: str, text: str) -> Any:
    """A file's content, a JSON value, or the words themselves.

    Args:
        name: The argument, for messages.
        text: A file that exists (``.json``, ``.npy``, ``.npz`` with one array, or a picture), or a value.

    Returns:
        A PIL image in RGB, a tensor, what the JSON says, or ``text``.

    Raises:
        ZeusError: A file that does not read.
    """
    file = Path(text)
    if not _is_file(file):
        try:
            return json.loads(text)
        except ValueError:
            return text
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        if file.suffix == ".json":
            return json.loads(file.read_text(encoding="utf-8"))
        return _read_array(file) if file.suffix in (".npy", ".npz") else _read_picture(file)
    except Exception as error:  # json, numpy and PIL each raise their own
        raise ZeusError(
            f"{name}: got {file}, which does not read ({error}); expected a picture, JSON, .npy, or .npz with one "
            "array. Choose another file."
        ) from error


def read_inputs(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """A model's conditioning by name: a mapping as it is, or texts such as ``label=3`` and ``text=text.npy``.

    Raises:
        ZeusError: A text of another form, a name that comes twice, or a file that is missing or does not read.
    """
    if isinstance(given, Mapping):
        return dict(given)
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            raise ZeusError(f"inputs: got {text!r}; expected each as NAME=VALUE or NAME=FILE.npy, once. Change it.")
        found[name] = read_argument(name, value)
        if isinstance(found[name], str):
            raise ZeusError(f"inputs: got {text!r}; expected numbers, or a file that exists. Change it.")
    return found


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except (OSError, ValueError):  # no name that a file can have
        return False


def _read_array(file: Path) -> Any:
    import numpy as np
    import torch

    loaded = np.load(file, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return torch.from_numpy(loaded)
    with loaded:
        if len(loaded.files) != 1:
            raise ValueError(f"it holds {len(loaded.files)} arrays")
        return torch.from_numpy(loaded[loaded.files[0]])


def _read_picture(file: Path) -> Any:
    from PIL import Image

    with Image.open(file) as opened:
        return opened.convert("RGB")
