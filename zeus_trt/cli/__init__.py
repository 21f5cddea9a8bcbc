"""The command line: each command reads its options and calls one library function."""

from zeus_trt.cli import (  # noqa: F401  (they add themselves)
    adapter,
    build,
    calibrate,
    compare,
    demo,
    export,
    gate,
    generate_batch,
    import_model,
    inspect,
    package,
    plan,
    quantize,
    run,
    serve,
)
from zeus_trt.cli.group import main
from zeus_trt.cli.trust import add_trust_option

add_trust_option(
    build.build,
    calibrate.calibrate,
    compare.compare,
    gate.gate,
    generate_batch.generate_batch,
    import_model.import_model,
    inspect.inspect,
    package.package,
    run.run,
    serve.serve,
)

__all__ = ["main"]
