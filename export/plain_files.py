"""A graph at a place where the onnx package reads its weights."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from zeus_trt.runtime.bundle.onnx_references import list_references


@contextmanager
def without_links(onnx: Path, folder: Path | None = None) -> Iterator[Path]:
    """The graph where each of its files has one name; onnx refuses weights with a second name, and symbolic links.

    Args:
        onnx: The graph, with its weights beside it, as ``Bundle`` has checked.
        folder: Where a copy is made if one of the files has a second name; it goes again at the end.
    """
    names = [onnx.name, *sorted(list_references(onnx))]
    files = {name: onnx.parent / name for name in names}
    if not any(file.is_symlink() or file.stat().st_nlink > 1 for file in files.values()):
        yield onnx
        return
    with TemporaryDirectory(prefix="zeus-trt-", dir=folder) as copy:
        for name, file in files.items():
            Path(copy, name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, Path(copy, name))
        yield Path(copy, onnx.name)
