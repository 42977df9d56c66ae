"""The environment directory in which a catalog is compiled: only links to the release's code.

    STATE/environments/production/functions -> STATE/releases/ID/functions

Puppet gets the other parts of the release by options (ADR 6).
"""

from localpuppet.base.machine.files import make_private, remove_tree, replace_link
from localpuppet.node.puppet.command import Compilation


def make_environment(compilation: Compilation) -> None:
    """Create the environment directory of a compilation, with links to its code.

    The caller holds the node's lock if others compile in the same directory.

    Args:
        compilation: The compilation.
    """
    directory = compilation.environments / compilation.environment
    make_private(directory)
    links = {directory / path.name: path for path in compilation.environment_code}
    for path in directory.iterdir():
        if path not in links or not path.is_symlink():
            remove_tree(path)
    for link, target in links.items():
        if not link.is_symlink() or link.readlink() != target:
            replace_link(link, target)
