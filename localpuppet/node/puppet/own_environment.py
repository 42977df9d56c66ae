"""The directory of the environment that a catalog is compiled in: the release's code, nothing else.

    STATE/environments/production/functions -> STATE/releases/ID/functions

Owns: what is in the directory. Refuses to know: what else the release has: Puppet gets that by
options (ADR 6).
"""

from localpuppet.base.machine.files import make_private, remove_tree, replace_link
from localpuppet.node.puppet.command import Compilation


def make_environment(compilation: Compilation) -> None:
    """Have the directory of a compilation's environment, with links to its code.

    Call it with the node's lock where others compile in the same directory.

    Args:
        compilation: What is compiled.
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
