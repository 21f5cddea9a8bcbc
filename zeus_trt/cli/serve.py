"""Serving."""

from pathlib import Path

import click

from zeus_trt.cli.command import say
from zeus_trt.cli.group import main
from zeus_trt.cli.options import Number, input_option
from zeus_trt.cli.ray import RAY_OPTIONS, ray_options, read_ray

_LIMITS = ("images", "steps", "pixels", "streams", "seconds")

_count = click.IntRange(1)


@main.command(needs=dict.fromkeys(RAY_OPTIONS[1:], "ray"))
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; others need --api-key.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 for a free one.")
@click.option("--api-key", help="What clients must send as Authorization: Bearer. Better set by its variable.")
@click.option("--public", is_flag=True, help="Let anyone who reaches the server ask it, without a key.")
@click.option("--engine", type=click.Path(path_type=Path), help="For pipelines: the bundle, which runs.")
@click.option("--dtype", type=click.Choice(["fp32", "fp16", "bf16"]), help="For pipelines.  [default: fp32]")
@input_option
@click.option("--backend", default="auto", show_default=True, help="Engine, such as aot-inductor.")
@click.option("--device", help="Where it runs.  [default: a GPU if there is one]")
@click.option("--max-rows", type=_count, default=8, show_default=True, help="Most rows of a call; guidance takes two.")
@click.option("--max-wait", type=Number(0, 60), default=0.02, show_default=True, help="Seconds a call waits for rows.")
@click.option("--max-queue", type=_count, default=256, show_default=True, help="Requests that wait for their begin.")
@click.option("--max-adapters", type=_count, default=4, show_default=True, help="Adapters with open engines at a time.")
@click.option("--max-images", type=_count, default=8, show_default=True, help="Pictures of a request.")
@click.option("--max-steps", type=_count, default=200, show_default=True, help="Solver steps of a request.")
@click.option("--max-pixels", type=_count, default=2048 * 2048, show_default=True, help="Pixels of a picture.")
@click.option("--max-streams", type=_count, default=64, show_default=True, help="Requests that stream at a time.")
@click.option("--max-seconds", type=Number(0.1), default=300, show_default=True, help="Time limit of a request.")
@ray_options
def serve(model, **options) -> dict:
    """Serve MODEL, a bundle or a pipeline, over HTTP: pictures, progress, metrics, and a page to try it.

    SIGTERM and Ctrl-C end it after the requests that run; SIGHUP opens the bundle anew.
    """
    from zeus_trt.serving_model import ServedModel, check_packages

    check_packages()
    from zeus_trt.serving.limits import Limits
    from zeus_trt.serving.server import Address, run_server

    address = Address(options.pop("host"), options.pop("port"), options.pop("api_key"), options.pop("public"))
    limits = Limits(**{name: options.pop(f"max_{name}") for name in _LIMITS})
    if cluster := read_ray(options):
        from zeus_trt.serving_on_ray import serve_on_ray

        serve_on_ray(ServedModel(model, **options), address, limits, cluster)
        return {}
    service = ServedModel(model, **options).open_service()
    say(f"serves {service.model.describe()['model']} by {service.model.describe()['backend']}; Ctrl-C ends it")
    run_server(service, address, limits)
    return {"requests": service.counters.submitted}
