"""`localpuppet release tag`: tag a commit as a release."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localpuppet.base.formats.text import parse_line
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option

if TYPE_CHECKING:
    from localpuppet.node.runs.release_check import ReleaseCheck


@command("tag", exits={1: "", 3: "", 69: "", 75: ""})
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("tag")
@flag("--sign", "Sign the tag with your git signing key.")
@option(
    "--source NAME",
    "Make it a release of this source.  [default: the source with the URL of origin]",
)
@option("--push/--no-push", "Push the tag to origin.", default=True, show_default=True)
@option("-m --message TEXT", "The tag's message.  [default: release TAG]")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def tag_command(
    node: NodeApp,
    directory: Path,
    tag: str,
    sign: bool,
    source: str | None,
    push: bool,
    message: str | None,
    as_json: bool,
) -> None:
    """Tag the current commit as a release, and push the tag.

    In DIR, the work tree must be clean, manifest.lock committed, and 'release check' must succeed.
    TAG must be new, here and at origin. If the push fails, the command removes the tag again.

    The tag's message names the source. A node that requires signatures rejects a tag of another
    source.

    Examples:
      localpuppet release tag . r2             check, tag, push to origin
      localpuppet release tag . r2 --sign      with your git's user.signingkey
      localpuppet release tag . r2 --sign --source web
      localpuppet release tag . r2 --no-push   you push it: git push origin r2
    """
    from localpuppet.node.cli.release.check import as_dict, show
    from localpuppet.node.releases.author.tagging import (
        message_for,
        parse_release_tag,
        source_of_tag,
        tag_release,
    )
    from localpuppet.node.releases.git.work_tree import GitWorkTree

    name = parse_release_tag(tag)
    text = parse_line(message, what="message") if message else f"release {name}"
    maker = node.for_makers()
    tree = GitWorkTree(directory, timeout=maker.settings.git_timeout)
    text = message_for(text, source_of_tag(tree, maker.settings.sources, named=source, sign=sign))
    checks: list[ReleaseCheck] = []

    def check() -> Sequence[str]:
        checks.append(maker.check_release(directory))
        return checks[0].unseen

    made = tag_release(tree, name, check=check, message=text, sign=sign, push=push)
    if as_json:
        tagged = {"tag": name, "commit": made.commit, "signed": made.signed, "pushed": push}
        render.emit_json({"schema": 1, "directory": str(directory), **tagged, **as_dict(checks[0])})
        return
    show(checks[0])
    details = [
        "signed" if made.signed else "annotated",
        "pushed to origin" if push else "not pushed",
    ]
    render.emit(
        f"{click.style('tagged', fg='green')} {name} at {made.commit[:12]}, {', '.join(details)}"
    )
