"""`localpuppet release`: commands for makers of releases and for releases on a node."""

import click

from localpuppet.node.cli.lazy_group import Verbs

# Verb → module, as in main.
VERBS = {
    "check": "node.cli.release.check",
    "diff": "node.cli.release.diff",
    "gc": "node.cli.release.gc",
    "import": "node.cli.release.import_puppetfile",
    "list": "node.cli.release.store",
    "lock": "node.cli.release.lock",
    "package": "node.cli.release.package",
    "sign": "node.cli.release.sign",
    "tag": "node.cli.release.tag",
    "verify": "node.cli.release.store",
}

EPILOG = """\b
Examples:
  localpuppet release import Puppetfile -o manifest.yaml
  localpuppet release lock .             manifest.yaml → manifest.lock
  localpuppet release diff web/tags/r1 web/tags/r2 --catalog input.yaml
  localpuppet release gc --dry-run       list what gc would remove
  localpuppet release package foo/tags/r1 --format deb
  localpuppet release check .            closed? parses? fits? for CI
  localpuppet release sign . r2          one more person signs it
  localpuppet release tag . r2           checked, annotated, pushed
  localpuppet release verify --all       hash every byte of staged releases
"""


@click.group(cls=Verbs, verbs=VERBS, epilog=EPILOG, no_args_is_help=True)
def release_command() -> None:
    """Make, check and keep releases."""
