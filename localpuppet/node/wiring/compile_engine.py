"""Builds the engine that compiles the catalogs of a preview."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.share.files import shared_file
from localpuppet.node.wiring.compiling import compilation
from localpuppet.node.wiring.node import NodeWiring, program_environment
from localpuppet.node.wiring.releases import OWN_MODULES
from localpuppet.node.wiring.state import puppet_environment, require_puppet

if TYPE_CHECKING:
    from localpuppet.node.preview.engine import PuppetCompileEngine

# Variables of the job that the compiler gets: no others, because a job's have secrets.
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


def compile_engine(
    node: NodeWiring,
    *,
    trusted: bool = False,
    processes: int | None = None,
    mark_key: str = "",
    asks: bool = False,
    hidden: Sequence[Path] = (),
) -> "PuppetCompileEngine":
    """Return the engine.

    Args:
        node: The parts of the node.
        trusted: Whether the code is trusted: then it is not isolated.
        processes: Catalogs that are compiled at a time; `None` for one a processor.
        mark_key: The key of the marks of secrets, hexadecimal; empty for no marks.
        asks: Whether query functions ask the agent of this node, which requires trusted code.
        hidden: Directories that isolated code does not see: the work tree, the cache.
    """
    from localpuppet.base.machine.isolation import CodeIsolation
    from localpuppet.node.preview.engine import LIMITS, PuppetCompileEngine

    path = program_environment()["PATH"]
    processes = processes or len(os.sched_getaffinity(0))
    return PuppetCompileEngine(
        scratch=node.settings.state / "compiles",
        store=tuple(node.settings.state / name for name in ("objects", "links")),
        compilation=partial(compilation, node),
        command=partial(_command, node),
        version=lambda: require_puppet(node).version,
        ruby=lambda: map(Path, require_puppet(node).places),
        env=partial(_environment, node, asks=asks),
        own_modules=OWN_MODULES,
        site_manifest=node.settings.site_manifest,
        isolation=CodeIsolation(
            path=path,
            memory=LIMITS["memory"] * (processes + 1),  # the process from which they are forked
            programs=LIMITS["programs"] * (processes + 1),
            otherwise="pass '--trusted' for code that you trust",
            hidden=(node.settings.root, node.settings.state, *hidden),
            trusted=trusted,
        ),
        processes=processes,
        mark_key=mark_key,
        asks=asks,
    )


def _command(node: NodeWiring) -> list[str]:
    """Return a command that loads the file in RUBYOPT with Puppet's library."""
    installation = require_puppet(node)
    ruby = None if installation.ruby else installation.interpreter(program_environment()["PATH"])
    return [str(ruby), "-e", ""] if ruby else [installation.command, "--version"]


def _environment(node: NodeWiring, *, asks: bool) -> dict[str, str]:
    base = {name: value for name, value in program_environment().items() if asks or name in KEPT}
    env = puppet_environment(node, require_puppet(node), {**base, "HOME": "/nonexistent"})
    main = shared_file("preview/main.rb")
    return {**env, "RUBYOPT": f"{env.get('RUBYOPT', '')} -r{main}".lstrip()}
