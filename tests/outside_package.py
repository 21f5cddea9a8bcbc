"""A package of somebody else, which offers what docs/rules.md shows by its entry points."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import ROOT

PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")


def read_blocks() -> list[str]:
    """The Python code of the page."""
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def install_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts the package into a folder and that on the path, with two predictors beside that do not load."""
    (folder / "my_package.py").write_text("\n".join(read_blocks()) + "\nnumber = 3\n")
    points = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL).group(1)
    points = re.sub(r'\[project.entry-points."(.*?)"\]', r"[\1]", points).replace('"', "")
    info = folder / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    points = points.replace("gentle =", "broken = my_package:number\nmissing = my_package:nothing\ngentle =")
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("my_package", None)
