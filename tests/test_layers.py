"""Who may import whom, and what may be absent."""

import ast
import subprocess
import sys

import pytest
from checkout import ROOT

OPTIONAL = ("diffusers", "onnx", "onnxruntime", "transformers", "tensorrt", "polygraphy", "torchmetrics", "PIL")


def run_without(modules, code):
    """Runs ``code`` in a fresh interpreter where ``modules`` cannot be imported."""
    blocked = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in modules)
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False)


def test_imports_without_optional_packages_and_names_what_is_missing():
    code = (
        "import zeus_trt.zeus_graph\nimport zeus_trt.runtime\nprint('imported')\n"
        "from pathlib import Path\nzeus_trt.runtime.OnnxRuntimeEngine(Path('x'))"
    )
    done = run_without(OPTIONAL, code)
    assert done.stdout == "imported\n", done.stderr
    assert "pip install onnxruntime" in done.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom zeus_trt.cli import main\nmain(['--help'], standalone_mode=False)\n"
        "assert not {'torch', 'numpy', 'diffusers', 'onnx', 'rich', 'tqdm'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("zeus_graph", ("runtime", "serving", "export", "evaluation", "calibration")),
        ("runtime", ("serving", "export", "evaluation", "calibration")),
        ("serving", ("export", "evaluation", "calibration", "cli")),
        ("export", ("evaluation", "calibration")),
        ("evaluation", ("calibration",)),
    ],
)
def test_layers(folder, forbidden):
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            for name in (module, *names, *(f"{module}.{name}" for name in names)):
                assert not any(name.startswith(f"zeus_trt.{other}") for other in forbidden), f"{file}: {name}"
