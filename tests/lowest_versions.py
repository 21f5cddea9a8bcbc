"""Prints the oldest version of every package that pyproject.toml allows, for `make test-lowest`."""

import re
from pathlib import Path

import tomllib

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def list_lowest(project: dict) -> list[str]:
    """Requirements such as ``numpy==1.26``: what the package needs, and ONNX Runtime."""
    wanted = [*project["dependencies"], *project["optional-dependencies"]["onnxruntime"]]
    return [re.sub(r">=", "==", requirement) for requirement in wanted if not requirement.startswith("torch>=")]


if __name__ == "__main__":
    print("\n".join(list_lowest(tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"])))
