"""`localpuppet release diff`: compare two releases."""

from typing import TYPE_CHECKING

import click

from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.text import one_line
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option
from localpuppet.node.cli.completion import complete_release
from localpuppet.node.releases.difference import NameDifference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localpuppet.node.releases.release import Release

SHOWN = 40
NEWLINE = r"\n"  # what shows the end of a line inside of a value


@command("diff", exits={0: "success, with or without differences", 1: "", 3: "", 69: "", 75: ""})
@click.argument("before", shell_complete=complete_release)
@click.argument("after", shell_complete=complete_release)
@option("--catalog INPUT", "Also compare compiled catalogs of this input.")
@flag("--text as_text", "Also show text files as unified diffs.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def diff_command(
    node: NodeApp, before: str, after: str, catalog: str | None, as_text: bool, as_json: bool
) -> None:
    """Compare two releases: pins, files and resources.

    BEFORE and AFTER are SOURCE/tags/TAG. If one is not on this node, localpuppet fetches and
    verifies it first. Catalogs are compiled with this node's facts; nothing is applied.

    The files are those of the release, its single modules and its collections. --text shows files
    of up to 256 KiB and 5,000 lines, and 1 MiB of diffs in total; it only names other files.

    Examples:
      localpuppet release diff web/tags/r1 web/tags/r2
      localpuppet release diff web/tags/r1 web/tags/r2 --text
      localpuppet release diff web/tags/r1 web/tags/r2 --catalog input.yaml --json
    """
    from localpuppet.node.releases.comparing import differences as compared
    from localpuppet.node.releases.comparing import texts as texts_of

    paths = [ReleasePath.parse(name, where="app") for name in (before, after)]
    releases = [node.provider.provide(path) for path in paths]
    differences = compared(*releases, reader=node.files)
    if catalog is not None:
        differences["resources"] = _resources(node, catalog, releases)
    first, second = releases
    texts = texts_of(first, second, differences["files"].names) if as_text else {}
    if as_json:
        as_dicts = {title: difference.to_dict() for title, difference in differences.items()}
        if as_text:
            as_dicts["texts"] = texts
        render.emit_json({"schema": 1, "before": before, "after": after, **as_dicts})
        return
    for title, difference in differences.items():
        render.emit(_text(title, difference))
    for name, diff in texts.items():
        render.emit(render.user_text(diff if diff.startswith("--- ") else f"{name}: {diff}"))


def _resources(node: NodeApp, name: str, releases: "Sequence[Release]") -> NameDifference:
    """Compare an input's catalogs of both releases; note what only one of them accepts."""
    from localpuppet.node.candidates.candidate import named_difference
    from localpuppet.node.enc.input import node_document
    from localpuppet.node.preview.difference import difference
    from localpuppet.node.runs.interface import only_in_other

    read, reader = node.inputs.read(name), node.reader
    compiler = node.catalogs(asks=True)
    interfaces = [reader.interface_of(release) for release in releases]
    catalogs = []
    for release, own, other in zip(releases, interfaces, reversed(interfaces), strict=True):
        document = node_document(read, release.enc, answer=None)
        document, left = only_in_other(document, own, other)
        if left:
            render.QuietObserver().note(
                f"{release.name} has no {', '.join(left)}: compiled without"
            )
        catalogs.append(compiler.compile(release, document))
    return named_difference(difference(*catalogs))


def _text(title: str, difference: NameDifference) -> str:
    lines = [click.style(title, bold=True)]
    rows = [click.style(f"  - {one_line(name)}", fg="red") for name in difference.removed]
    rows += [click.style(f"  + {one_line(name)}", fg="green") for name in difference.added]
    rows += [
        click.style(f"  ~ {one_line(name)}", fg="yellow")
        + "  "
        + one_line(text.replace("\n", NEWLINE))
        for name, text in difference.changed.items()
    ]
    lines += rows[:SHOWN]
    if len(rows) > SHOWN:
        lines.append(f"  and {len(rows) - SHOWN} more; --json shows all")
    if not rows:
        lines.append("  the same")
    return "\n".join(lines)
