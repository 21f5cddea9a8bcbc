"""The option by which a command loads engines of any machine."""

import click


def add_trust_option(*commands: click.Command) -> None:
    """Gives ``--trust-engines`` to commands that open bundles with engines."""
    for command in commands:
        command.params.append(
            click.Option(
                ["--trust-engines"],
                is_flag=True,
                expose_value=False,
                envvar="ZEUS_TRT_TRUST_ENGINES",
                callback=_trust,
                help="Load engines that were built on another machine too: they are native code.",
            )
        )


def _trust(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Trusts them for as long as the command runs."""
    if value:
        from zeus_trt.runtime.bundle.engine_trust import trust_engines

        ctx.with_resource(trust_engines())
