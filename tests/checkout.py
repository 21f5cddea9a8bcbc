"""Where things lie in the checkout."""

import json
from pathlib import Path

from zeus_trt.runtime.bundle.manifest import DIGEST, seal

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "examples" / "models"


def edit_json(path: Path, **changes) -> None:
    """Changes fields of a JSON file; a manifest gets the digest of its new content."""
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(seal(data) if data.pop(DIGEST, None) else json.dumps(data))
