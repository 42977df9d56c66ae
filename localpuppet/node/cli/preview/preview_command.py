"""`localpuppet preview`: show what a change does to every node, in a terminal or in files."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.files import write_durably
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option, options, path_type
from localpuppet.node.preview import wording
from localpuppet.node.preview.result import ChangeGroup, PreviewResult

if TYPE_CHECKING:
    from localpuppet.node.preview.previewing import PreviewOptions
    from localpuppet.node.preview.workspace import PreviewOrder


STANDARD_OUTPUT = "-"
MAX_SHARDS = 1_000
# Among the values of --fail-on: of the nodes that fail, only those that did not fail so before.
NEW_FAILURE = "new-failure"
_DIR = click.Path(path_type=Path, exists=True, file_okay=False)


@command(
    "preview",
    renamed={"--nodes": "--captures"},
    exits={
        0: "success, with or without differences",
        1: "a node fails to compile or has no readable capture, --fail-on forbids a difference, or"
        " compiling is impossible",
        3: "a digest is wrong, or a commit has what a release must not have",
        4: "with --exit-code: catalogs differ",
        5: "with --exit-code: compiling cannot show the effect of a change",
        69: "a repository is unreachable",
        75: "",
    },
)
@click.argument("revisions", metavar="[BASE[..HEAD]]", default="HEAD")
@option(
    "--captures directory DIR",
    "Directory with the captures of the nodes.",
    required=True,
    type=path_type(),
)
@option(
    "--dir work_tree DIR",
    "Clone of the control repository.  [default: current directory]",
    default=".",
    type=_DIR,
)
@options(
    "Differences",
    option(
        "--ignore ignored PATTERN",
        "Leave out resources or parameters: TYPE[TITLE]::PARAMETER (repeatable).",
        multiple=True,
    ),
    option(
        "--fail-on forbidden CHANGE",
        "Fail if a difference matches: added:, removed: or changed:PATTERN (repeatable)."
        f" '{NEW_FAILURE}' accepts nodes that failed with the same error before the change.",
        multiple=True,
    ),
    flag("--exit-code detailed", "Exit 4 for differences, 5 for unknown ones."),
)
@options(
    "Selection",
    option("--node names NODE", "Preview this node only (repeatable).", multiple=True),
    flag("--staged", "BASE..HEAD are releases that are staged on this machine, not revisions."),
)
@options(
    "Output",
    flag("--json as_json", "Print JSON."),
    option("--markdown FILE", "Write Markdown of at most 60 kB for a pull request; '-' prints it."),
    option("--html FILE", "Write one HTML page with a search; '-' prints it."),
    option("--fragment FILE", "Write that page's content for another page; '-' prints it."),
)
@options(
    "Compilation",
    option(
        "--cache DIR",
        "Keep compiled catalogs here.  [default: 'preview' in the state directory]",
        type=click.Path(path_type=Path, file_okay=False),
    ),
    option(
        "--workers N",
        "Compile N catalogs at once.  [default: one for each processor]",
        type=click.IntRange(1, 256),
    ),
    option(
        "--shard I/N",
        "Preview part I of N parts of the nodes, to fill a shared cache by several jobs.",
    ),
    flag(
        "--trusted",
        "Compile without isolation, and fetch modules as you: only for code that may read all that"
        " you can.",
    ),
)
@click.pass_obj
def preview_command(node: NodeApp, /, **given: Any) -> int:  # noqa: ANN401 - what click passes
    """Show what a change does to the catalog of every node.

    Run it in a clone of the control repository. It compiles the catalog of each node before and
    after the change, and shows the differences. Nodes with equal differences are one group. Nothing
    is applied, and no node or server is asked.

    BASE and HEAD are git revisions. BASE...HEAD compares HEAD with the commit where it left BASE.
    Without HEAD, the files as they are count, with uncommitted changes; without BASE, they are
    compared with the last commit.

    The directory of --captures has a file for each node ('localpuppet capture --help'). If all that
    a catalog depends on is unchanged, the catalog comes from the cache.

    With --staged, BASE and HEAD are staged releases, as in a rollout, and no clone is needed.

    A PATTERN names a type, with an optional title and parameter; '*' matches any text.

    Examples:
      localpuppet preview --captures nodes               what uncommitted changes do
      localpuppet preview main...HEAD --captures nodes   what a branch does
      localpuppet preview main...HEAD --captures nodes --markdown preview.md
      localpuppet preview main --captures nodes --ignore 'File[*]::mtime'
      localpuppet preview main --captures nodes --fail-on removed:Service
      localpuppet preview main --captures nodes --cache .cache --shard 2/8
      localpuppet preview --staged shop/tags/r1..shop/tags/r2 --captures nodes
    """
    files = [given[name] for name in ("markdown", "html", "fragment")]
    if files.count(STANDARD_OUTPUT) + given["as_json"] > 1:
        raise click.UsageError("choose one to print: --json, or '-' for one of the files")
    for name in files:
        _refuse_homeless(name)
    order, wanted = _order(given), _options(given)
    if not order.nodes.is_dir():
        hint = f"'localpuppet capture {order.nodes}' writes the capture of this node there"
        raise InvalidInputError("is no directory", where=str(order.nodes), hint=hint)
    work_tree = None if order.staged else order.work_tree
    hidden = [path for path in (work_tree, order.nodes, order.cache) if path is not None]
    workspace = node.preview(
        trusted=order.trusted, processes=given["workers"], hidden=hidden, staged=order.staged
    )
    result = workspace.preview(order, wanted)
    _show(result, files, as_json=given["as_json"])
    return result.exit_code(detailed=given["detailed"])


def _refuse_homeless(name: str | None) -> None:
    """Refuse a file that cannot be written, before anything is compiled."""
    if name not in (None, STANDARD_OUTPUT) and not Path(name).absolute().parent.is_dir():
        raise InvalidInputError("is in no directory", where=name, hint="create it first")


def _order(given: dict[str, Any]) -> "PreviewOrder":
    from localpuppet.node.preview.workspace import PreviewOrder, RevisionRange

    revisions = RevisionRange.parse(given["revisions"])
    if given["staged"] and (revisions.from_fork or not revisions.head):
        raise click.UsageError("--staged needs two releases: BASE..HEAD")
    return PreviewOrder(
        work_tree=given["work_tree"].absolute(),
        revisions=revisions,
        nodes=Path(os.path.abspath(given["directory"])),  # noqa: PTH100 - shown without `..`
        cache=given["cache"] and Path(os.path.abspath(given["cache"])),  # noqa: PTH100
        shard=None if given["shard"] is None else _shard(given["shard"]),
        trusted=given["trusted"],
        staged=given["staged"],
        names=tuple(map(NodeName.parse, given["names"])),
    )


def _options(given: dict[str, Any]) -> "PreviewOptions":
    from localpuppet.node.preview.difference import ForbiddenChange, ResourcePattern
    from localpuppet.node.preview.previewing import PreviewOptions

    changes = [text for text in given["forbidden"] if text != NEW_FAILURE]
    return PreviewOptions(
        ignore=tuple(map(ResourcePattern.parse, given["ignored"])),
        forbidden=tuple(map(ForbiddenChange.parse, changes)),
        tolerates=NEW_FAILURE in given["forbidden"],
    )


def _shard(text: str) -> tuple[int, int]:
    """Return number and count of a part: `2/8`."""
    match = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", text)
    number, count = (int(match[1]), int(match[2])) if match else (1, 0)
    if not number <= count <= MAX_SHARDS:
        raise InvalidInputError(
            f"is not a part of the nodes: {text[:40]!r}",
            where="--shard",
            hint="I/N with I from 1 to N, for example 2/8",
        )
    return number, count


def _show(result: PreviewResult, files: Sequence[str | None], *, as_json: bool) -> None:
    """Write the files, and print the result unless one of them is the standard output."""
    from localpuppet.node.preview.drawing import preview_html, preview_markdown, preview_part

    for name, form in zip(files, (preview_markdown, preview_html, preview_part), strict=True):
        if name == STANDARD_OUTPUT:
            click.echo(form(result), nl=False)
        elif name is not None:
            with errors_at(name):
                write_durably(Path(name), form(result).encode())
    if as_json:
        render.emit_json(result.to_dict())
    elif STANDARD_OUTPUT not in files:
        render.emit(preview_text(result))


MAX_GROUPS = 25
MAX_CHANGES = 15  # of a group
MAX_LINES = 20  # of a text
MAX_ROWS = 20  # of failures, blind spots and nodes
_KINDS = {wording.GOOD: "green", wording.WARNING: "yellow", wording.BAD: "red"}
_KINDS[wording.ACTIVE] = "cyan"
_COLORS = {"+": "green", "-": "red", "~": "yellow", "@": "cyan"}


def preview_text(result: PreviewResult) -> str:
    """Return the preview as text, with colours."""
    blocks = [
        [click.style(wording.headline(result), bold=True), wording.revisions(result)],
        *map(_notice, (*wording.notices(result), *wording.overview(result))),
        *map(_group, result.groups[:MAX_GROUPS]),
        *_ending(result),
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _notice(notice: wording.PreviewNotice) -> list[str]:
    colon = ":" if notice.rows else ""
    block = [click.style(f"{notice.title}{colon}", fg=_KINDS[notice.kind], bold=True)]
    for row in notice.rows[:MAX_ROWS]:
        block.append(f"  {row.label}: {row.text}" if row.label else f"  {row.text}")
        if row.nodes:
            block.append(click.style(f"    {shown_names(row.nodes)}", dim=True))
    return [*block, *_more(len(notice.rows) - MAX_ROWS, notice.noun)]


def _group(group: ChangeGroup) -> list[str]:
    changes = [*wording.lines(group.difference)]
    head = click.style(wording.group_label(group), bold=True)
    block = [f"{head}  {click.style(shown_names(group.nodes), dim=True)}"]
    for line in changes[:MAX_CHANGES]:
        all_rows = [*wording.rows(line, most=MAX_LINES, longest=wording.MAX_VALUE)]
        shown = all_rows if line.sign == "~" else all_rows[:1]
        block += [click.style(f"  {text}", fg=_COLORS.get(sign)) for sign, text in shown]
    return [*block, *_more(len(changes) - MAX_CHANGES, "change")]


def _ending(result: PreviewResult) -> Iterator[list[str]]:
    rest = result.groups[MAX_GROUPS:]
    if rest:
        nodes = wording.count(sum(len(group.nodes) for group in rest), "node")
        yield [f"and {wording.count(len(rest), 'more group')} with {nodes}"]
    yield [click.style(wording.statistics(result), dim=True)]


def _more(number: int, noun: str) -> list[str]:
    if number <= 0:
        return []
    return [f"  and {wording.count(number, f'more {noun}')}; --json and --html show all"]
