"""``python -m zeus_trt`` is ``zeus-trt``."""

from zeus_trt.cli import main

main(prog_name="zeus-trt")
