"""Where things lie in the checkout."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "examples" / "models"


def edit_json(path: Path, **changes) -> None:
    """Changes fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
