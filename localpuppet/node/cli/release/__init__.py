"""`localpuppet release`: commands for makers of releases and for releases on a node."""

import click

from localpuppet.node.cli.lazy_group import CommandGroup

MODULES = {
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


@click.group(cls=CommandGroup, sections={"Commands": MODULES})
def release_command() -> None:
    """Make, check and keep releases.

    A release is a tag of a git repository with Puppet code, and a lock file that pins each module.
    Most commands work in a clone of that repository; list, verify and gc work on the releases of
    this node.

    Examples:
      localpuppet release lock               pin every module: write manifest.lock
      localpuppet release check .            in CI: can this become a release?
      localpuppet release tag . r2           check, tag and push
      localpuppet release diff web/tags/r1 web/tags/r2
      localpuppet release verify --all       compare releases with their locks
    """
