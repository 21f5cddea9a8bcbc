"""Files of requests for `generate-batch`."""

import json


def write(path, *requests):
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return path


def ask(count, **fields):
    return [{"id": f"p{k}", "seed": k, "steps": 3 + k % 3, "ratio": k % 3, **fields} for k in range(count)]
