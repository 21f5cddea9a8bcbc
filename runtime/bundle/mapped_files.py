"""Files that an engine maps into memory instead of copying them: a change on the disk would change its weights."""

import os
from collections.abc import Iterable
from pathlib import Path

from zeus_trt.errors import ZeusError


class MappedFiles:
    """Open files, and what they looked like at the start. A file that is replaced or deleted stays as it was mapped.

    Args:
        paths: The files.
    """

    def __init__(self, paths: Iterable[Path]):
        self._files = [path.open("rb", buffering=0) for path in paths]
        self._states = [_describe(file.fileno()) for file in self._files]

    def check(self) -> None:
        """Raises ZeusError where a file was written since."""
        for file, state in zip(self._files, self._states, strict=True):
            if _describe(file.fileno()) != state:
                raise ZeusError(
                    f"engine: got {file.name}, which was written while the engine used it; expected the file that was "
                    "opened. Open the session again, and replace files of a bundle by a rename."
                )

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()
        self._files, self._states = [], []


def _describe(descriptor: int) -> tuple[int, int]:
    state = os.fstat(descriptor)
    return state.st_size, state.st_mtime_ns
