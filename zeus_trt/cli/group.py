"""The group of all commands, and how user errors are shown."""

import errno

import click

from zeus_trt import __version__
from zeus_trt.errors import ZeusError


class Commands(click.Group):
    """A group that shows user errors as one sentence, exit code 1."""

    def invoke(self, ctx: click.Context):
        try:
            return super().invoke(ctx)
        except ZeusError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # nobody reads on: click ends quietly
                raise
            raise click.ClickException(
                f"file: got {error.filename or 'an error'} ({error.strerror}); expected a place with room that can be "
                "read and written. Choose another."
            ) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="zeus-trt")
def main() -> None:
    """Export diffusion denoisers to compiled engines, and skip more than half of their calls."""
