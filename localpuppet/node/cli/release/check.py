"""`localpuppet release check`: check whether a working copy can be released."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localpuppet.node.runs.puppet_calls import CompiledNode, FactOverrides
    from localpuppet.node.runs.release_check import ReleaseCheck

REFUSED = InvalidInputError.exit_code


@command(
    "check",
    exits={
        0: "it can become a release",
        2: "it cannot: the message has the reason",
        3: "",
        69: "a repository is unreachable",
        75: "another process stages releases",
    },
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@option(
    "--compile inputs INPUT",
    "Compile a catalog for this input with the code in DIR (repeatable).",
    multiple=True,
)
@option(
    "--facts facts FILE",
    "Compile with these facts (output of 'facter --json'), not this machine's (repeatable).",
    multiple=True,
    type=click.Path(path_type=Path),
)
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def check_command(
    node: NodeApp,
    directory: Path,
    inputs: tuple[str, ...],
    facts: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Check whether a work tree can become a release.

    DIR is a clone of the repository of the release; the command changes nothing in it.

    It checks that:
      - manifest.yaml and manifest.lock agree;
      - each dependency, direct or not, is a tag that still matches the lock;
      - Puppet's parser accepts each file;
      - Hiera data is valid YAML, and each level has a file;
      - enc.yaml names only classes and parameters that exist;
      - each INPUT compiles with the facts in each FILE.

    Unused code and data, and requirements that some nodes lack, are warnings.

    Examples:
      localpuppet release check .
      localpuppet --root .ci-root release check . --json     in a pipeline
      localpuppet release check . --compile web01.yaml --facts web01.json
    """
    if facts and not inputs:
        raise click.UsageError("--facts requires --compile")
    from localpuppet.node.runs.puppet_calls import read_facts

    maker = node.for_makers()
    checked = maker.check_release(directory)
    machines: list[FactOverrides | None] = [*map(read_facts, facts)] or [None]
    compiled = _compile(maker, directory, inputs, machines) if inputs else ()
    broken = [compiled_node for compiled_node in compiled if compiled_node.problem]
    if as_json:
        catalogs = [compiled_node.to_dict() for compiled_node in compiled]
        compiled_node = {**as_dict(checked), "catalogs": catalogs}
        render.emit_json({"schema": 1, "directory": str(directory), **compiled_node})
        return REFUSED if broken else 0
    show(checked)
    for catalog in compiled:
        what = f"{catalog.node} of {catalog.input}"
        if catalog.problem:
            render.fail(f"{render.user_text(what)}: {render.user_text(catalog.problem)}")
        else:
            count = render.counted(catalog.resources, "resource")
            render.emit(f"compiles: {render.user_text(what)}, {count}")
    if not broken:
        render.emit(click.style("sound", fg="green"))
    return REFUSED if broken else 0


def _compile(
    maker: NodeApp,
    directory: Path,
    inputs: "Sequence[str]",
    facts: "Sequence[FactOverrides | None]",
) -> "tuple[CompiledNode, ...]":
    from localpuppet.node.runs.puppet_calls import compile_nodes

    loaded = [maker.inputs.read(name) for name in inputs]
    release, catalogs = maker.mutable.work_tree(directory), maker.catalogs()
    return compile_nodes(
        release,
        loaded,
        facts,
        compile_catalog=lambda *node: len(catalogs.compile(*node).resources),
        answer=maker.classifier.answer,
    )


def as_dict(checked: "ReleaseCheck") -> dict[str, object]:
    """Return the JSON form."""
    return {
        "modules": {name: pin.name for name, pin in sorted(checked.lock.modules.items())},
        "sources": sorted(checked.lock.sources),
        "dependencies": list(checked.chains),
        "puppet": checked.interface.puppet,
        "classes": sorted(checked.interface.classes),
        "layers": list(checked.layers),
        "data_files": checked.data_files,
        "warnings": list(checked.warnings),
    }


def _dependencies(indirect: int) -> str:
    """Return the result for the dependencies, in words."""
    more = f"; {render.counted(indirect, 'indirect dependency')} checked" if indirect else ""
    return f"unchanged since the lock was written{more}"


def show(checked: "ReleaseCheck") -> None:
    """Show the result of the check."""
    from localpuppet.node.releases.git.modules import Pin

    interface = checked.interface
    pinned = len(checked.lock.modules) + len(checked.lock.sources)
    tags = sum(isinstance(pin, Pin) for pin in checked.lock.pins.values())
    reached = len(checked.chains) - tags
    files = render.counted(checked.data_files, "file")
    rows = [
        ("Lock", f"agrees with the manifest: {pinned} pinned"),
        ("Dependencies", _dependencies(reached) if pinned else "none"),
        (
            "Parser",
            f"Puppet {interface.puppet} reads {render.counted(len(interface.modules), 'module')},"
            f" {render.counted(len(interface.classes), 'class')}",
        ),
        ("Data", f"{files} parsed" if checked.data_files else ""),
        ("enc.yaml", f"fits, with {render.counted(len(checked.layers), 'layer')}"),
    ]
    render.emit(render.pairs(rows))
    for warning in checked.warnings:
        render.say(f"warning: {render.user_text(warning)}", err=True)
