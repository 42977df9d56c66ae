"""`localpuppet release tag`: from a committed working copy to a tag that others can name."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from localpuppet.cli import render
from localpuppet.errors import InvalidInputError
from localpuppet.formats.names import ReleasePath
from localpuppet.formats.text import parse_line
from localpuppet.releases.git.names import Tag
from localpuppet.releases.lockfile import LOCK, MANIFEST
from localpuppet.wiring.node import Parts

if TYPE_CHECKING:
    from localpuppet.releases.git.work_tree import WorkTree

# What Puppet would read here, and nodes would not get, if git ignores it.
_MATTERS = (
    ":(glob)*/manifests/**",
    ":(glob)*/functions/**",
    ":(glob)*/types/**",
    "enc.yaml",
    "hiera.yaml",
)


@click.command(
    "tag",
    short_help="Tag what is committed as a release, and push the tag.",
    epilog="""\b
Examples:
  localpuppet release tag . r2             check, tag, push to origin
  localpuppet release tag . r2 --sign      with your git's user.signingkey
  localpuppet release tag . r2 --no-push   you push it: git push origin r2
""",
)
@click.argument("directory", metavar="APP_DIR", type=click.Path(path_type=Path))
@click.argument("tag")
@click.option("--sign", is_flag=True, help="Sign it with the key that your git is set up for.")
@click.option("--push/--no-push", default=True, show_default=True, help="Push it to origin.")
@click.option("-m", "--message", metavar="TEXT", help="The tag's message.  [default: release TAG]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def tag_command(
    parts: Parts,
    directory: Path,
    tag: str,
    sign: bool,
    push: bool,
    message: str | None,
    as_json: bool,
) -> None:
    """Tag what is committed in APP_DIR as the release TAG, and push the tag to origin.

    The work tree is clean, manifest.lock is committed, 'release check' passes, and the tag is new,
    here and at origin. When the push fails, the tag is removed here again.
    """
    from localpuppet.cli.release.check import as_dict, check, show
    from localpuppet.releases.git.work_tree import WorkTree

    name = parse_tag(tag)
    text = parse_line(message, what="message") if message else f"release {name}"
    tree = WorkTree(directory, timeout=parts.settings.git_timeout)
    commit = tree.commit
    _refuse_uncommitted(tree, directory)
    _refuse_existing(tree, name, directory, push=push)
    checked = check(parts, directory)
    # What was checked is what is tagged, also when somebody typed on meanwhile.
    _refuse_uncommitted(tree, directory)
    tree.make_tag(name, commit=commit, message=text, sign=sign)
    done = False
    try:
        signed = tree.is_signed(name)
        if push:
            tree.push_tag(name)
        done = True
    finally:
        if not done:
            tree.remove_tag(name)
    if as_json:
        made = {"tag": name, "commit": commit, "signed": signed, "pushed": push}
        render.emit_json({"schema": 1, "directory": str(directory), **made, **as_dict(checked)})
        return
    show(checked)
    details = ["signed" if signed else "annotated", "pushed to origin" if push else "not pushed"]
    render.emit(
        f"{click.style('tagged', fg='green')} {name} at {commit[:12]}, {', '.join(details)}"
    )


def parse_tag(text: str) -> Tag:
    """Return the tag of a release.

    Raises:
        InvalidInputError: It is outside the grammar, or cannot be the last part of an app's name.
    """
    tag = Tag.parse(text, where="TAG")
    if "/" in tag:
        raise InvalidInputError(
            f"{tag!r} has a '/': a node could not name it as NAME/tags/TAG", where="TAG"
        )
    ReleasePath.parse(f"app/tags/{tag}", where="TAG")
    return tag


def _refuse_uncommitted(tree: "WorkTree", directory: Path) -> None:
    for name in (MANIFEST, LOCK):
        if not tree.tracked(name):
            made = "" if name == MANIFEST else f"'localpuppet release lock {directory}', "
            raise InvalidInputError(
                f"{name} is not committed", where=str(directory), hint=f"{made}git add, git commit"
            )
    changes = tree.changes()
    if changes:
        more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        raise InvalidInputError(
            f"the work tree is not clean: {changes[0]}{more}",
            where=str(directory),
            hint="commit, stash or ignore it: a tag holds what is committed",
        )
    ignored = tree.ignored(*_MATTERS)
    if ignored:
        raise InvalidInputError(
            f"git ignores {ignored[0]}, which Puppet would read here and no node would have",
            where=str(directory),
            hint="commit it (git add -f), or remove it",
        )


def _refuse_existing(tree: "WorkTree", tag: Tag, directory: Path, *, push: bool) -> None:
    if tree.has_tag(tag):
        raise InvalidInputError(
            f"there is a tag {tag} already, and a release is never changed",
            where=str(directory),
            hint=f"take the next name; if it never left this machine: git tag -d {tag}",
        )
    if push and tree.remote_has_tag(tag):
        raise InvalidInputError(
            f"origin has a tag {tag} already, and a release is never changed",
            where=str(directory),
            hint="take the next name; 'git fetch --tags' shows what is there",
        )
