"""`localpuppet release import`: from a Puppetfile to a manifest."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localpuppet.cli import render
from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.formats.documents import Documents
from localpuppet.machine.files import read_user_file, write_durably
from localpuppet.releases.lockfile import MANIFEST, parse_manifest
from localpuppet.releases.manifest import Manifest, Tagged
from localpuppet.releases.puppetfile import Choice, Module, choose, parse
from localpuppet.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.releases.git.names import Tag


@click.command(
    "import",
    short_help="Make a manifest from an r10k or g10k Puppetfile.",
    epilog="""\b
Examples:
  localpuppet release import Puppetfile                    show the manifest
  localpuppet release import Puppetfile -o manifest.yaml   write it
  localpuppet release import Puppetfile --use-tags         a branch: its tag
""",
)
@click.argument("puppetfile", metavar="PUPPETFILE", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the manifest to FILE.  [default: print it]",
)
@click.option(
    "--use-tags",
    is_flag=True,
    help="For what is not a tag, take the tag that points at the same commit.",
)
@click.option("--json", "as_json", is_flag=True, help="Print modules and findings as JSON.")
@click.pass_obj
def import_command(
    node: NodeWiring, puppetfile: Path, output: Path | None, use_tags: bool, as_json: bool
) -> None:
    """Make a manifest from the git modules of an r10k or g10k PUPPETFILE.

    No Ruby is evaluated. A branch, a commit or a ref without a tag is reported, with the tags at
    the same commit; the exit code is 2 then, and no manifest is made. The modulepath of a
    manifest.yaml that is there (FILE, or beside PUPPETFILE) is kept.
    """
    from localpuppet.wiring.releases import ReleaseWiring

    allow_file = node.settings.allow_file_urls
    modules = _read(puppetfile, allow_file=allow_file)
    old = _existing(
        output or puppetfile.parent / MANIFEST, documents=node.documents, allow_file=allow_file
    )
    asked = [module.url for module in modules if module.kind != "tag"]
    with ReleaseWiring(node).repository("asking") as repository:
        refs = repository.refs(asked) if asked else {}
    choices = [choose(module, refs.get(module.url, {})) for module in modules]
    findings = [choice for choice in choices if choice.tag is None]
    taken = {choice.module.name: tag for choice in choices if (tag := _taken(choice, use_tags))}
    manifest = Manifest(
        modulepath=old.modulepath,
        modules={
            module.name: Tagged(url=module.url, tag=taken[module.name])
            for module in modules
            if module.name in taken
        },
    )
    complete = len(taken) == len(modules)
    if complete:
        _emit(manifest, findings, puppetfile, output, quiet=as_json)
        for name in sorted(set(old.modules) - set(taken)):
            render.say(f"# {name} was in the manifest and is not in the Puppetfile", err=True)
    if as_json:
        render.emit_json(_to_dict(manifest, findings, taken))
    elif not complete:
        render.emit(_table(findings))
    if not complete:
        missing = len(modules) - len(taken)
        raise InvalidInputError(
            f"{missing} of {len(modules)} modules name no tag",
            where=str(puppetfile),
            hint="tag what you use and name the tag; --use-tags takes those that exist",
        )


def _read(puppetfile: Path, *, allow_file: bool) -> tuple[Module, ...]:
    where = str(puppetfile)
    try:
        text = read_user_file(puppetfile).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError("is not UTF-8", where=where) from error
    try:
        return parse(text, allow_file=allow_file)
    except LocalpuppetError as error:
        raise error.at(where) from error


def _existing(file: Path, *, documents: Documents, allow_file: bool) -> Manifest:
    if not file.exists():
        return Manifest(modulepath=(), modules={})
    return parse_manifest(
        read_user_file(file),
        documents=documents,
        where=str(file),
        allow_file=allow_file,
    )


def _taken(choice: Choice, use_tags: bool) -> "Tag | None":
    if choice.tag is None and use_tags and choice.tags:
        return choice.tags[0]
    return choice.tag


def _emit(
    manifest: Manifest,
    findings: list[Choice],
    puppetfile: Path,
    output: Path | None,
    *,
    quiet: bool,
) -> None:
    comments = {
        choice.module.name: f"line {choice.module.line} of {puppetfile.name} said"
        f" {_said(choice.module)}, which was {choice.commit}"
        for choice in findings
    }
    text = manifest.to_text(comments)
    if output is not None:
        write_durably(output, text.encode(), mode=0o644)
        if not quiet:
            render.emit(f"wrote {output}: {len(manifest.modules)} modules")
    elif not quiet:
        render.emit(text.rstrip("\n"))


def _said(module: Module) -> str:
    return render.user_text(f"{module.kind} {module.ref}".rstrip())


def _table(findings: list[Choice]) -> str:
    rows = [
        (
            str(choice.module.line),
            choice.module.name,
            _said(choice.module),
            choice.commit[:12] or "unknown",
            ", ".join(choice.tags) or "none",
        )
        for choice in findings
    ]
    return render.table(("LINE", "MODULE", "NAMES", "COMMIT", "TAGS OF THAT COMMIT"), rows)


def _to_dict(manifest: Manifest, findings: list[Choice], taken: "dict[str, Tag]") -> dict[str, Any]:
    return {
        "schema": 1,
        "modulepath": list(manifest.modulepath),
        "modules": {
            name: {"git": module.url, "tag": module.tag}
            for name, module in manifest.modules.items()
        },
        "findings": [
            {
                "line": choice.module.line,
                "module": choice.module.name,
                "git": choice.module.url,
                "kind": choice.module.kind,
                "ref": choice.module.ref,
                "commit": choice.commit or None,
                "tags": list(choice.tags),
                "taken": taken.get(choice.module.name),
            }
            for choice in findings
        ],
    }
