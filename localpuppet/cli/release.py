"""`localpuppet release`: what is done with releases, by their makers and on a node."""

import click

from localpuppet.cli.verbs import Verbs

# Verb → module, as in main.
VERBS = {
    "import": "release_import",
    "list": "release_store",
    "lock": "release_make",
    "verify": "release_store",
}

EPILOG = """\b
Examples:
  localpuppet release import Puppetfile -o manifest.yaml
  localpuppet release lock .             manifest.yaml → manifest.lock
  localpuppet release verify --all       hash every byte of what is staged
"""


@click.group(cls=Verbs, verbs=VERBS, epilog=EPILOG, no_args_is_help=True)
def release_command() -> None:
    """Make, check and keep releases."""
