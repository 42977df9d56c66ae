"""`localpuppet release`: commands for makers of releases and for releases on a node."""

import click

from localpuppet.node.cli.command import CommandGroup

MODULES = {
    "check": "node.cli.release.making",
    "diff": "node.cli.release.staged",
    "gc": "node.cli.release.staged",
    "import": "node.cli.release.import_puppetfile",
    "list": "node.cli.release.staged",
    "lock": "node.cli.release.making",
    "package": "node.cli.release.making",
    "sign": "node.cli.release.making",
    "tag": "node.cli.release.making",
    "verify": "node.cli.release.staged",
}


@click.group(cls=CommandGroup, sections={"Commands": MODULES})
def release_command() -> None:
    """Make, check and keep releases.

    A release is a tag of a git repository with Puppet code, and a lock file that pins each module.
    Most commands work in a clone of that repository; list, verify and gc work on the releases of
    this node.

    Examples:
      localpuppet release lock               pin every module: write manifest.lock
      localpuppet release check              in CI: can this become a release?
      localpuppet release tag r2             check, tag and push
      localpuppet release diff web/tags/r1 web/tags/r2
      localpuppet release verify --all       compare releases with their locks
    """
