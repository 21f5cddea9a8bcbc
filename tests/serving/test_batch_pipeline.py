"""Pictures in bulk by a pipeline whose requests share the engine of its bundle."""

import pytest
from batch_requests import write

from zeus_trt.errors import ZeusError
from zeus_trt.generating import generate_batch
from zeus_trt.serving_model import ServedModel

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]


def test_prompts_make_pictures(export_tiny_pipeline, tiny_pipeline, tmp_path):
    asked = [{"id": f"p{k}", "prompt": "a red square", "seed": k, "steps": 3 + k, "ratio": 1} for k in range(3)]
    file = write(tmp_path / "asked.jsonl", *asked, {"id": "none", "steps": 3})
    with pytest.raises(ZeusError, match="engine: got nothing for a pipeline"):
        generate_batch(ServedModel(str(tiny_pipeline)), file, tmp_path / "out")
    model = ServedModel(str(tiny_pipeline), str(export_tiny_pipeline().path))
    result = generate_batch(model, file, tmp_path / "out")
    assert sorted(result.made) == ["p0", "p1", "p2"]
    assert result.failed["none"].startswith("prompt: got nothing")
    assert len({(tmp_path / "out" / f"p{k}.png").read_bytes() for k in range(3)}) == 3
