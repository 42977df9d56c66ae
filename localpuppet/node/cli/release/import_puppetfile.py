"""`localpuppet release import`: convert a Puppetfile to a manifest."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.machine.files import read_user_file, write_durably
from localpuppet.node.app import NodeApp, program_environment
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option, path_type

if TYPE_CHECKING:
    from localpuppet.node.releases.author.puppetfile import Puppetfile
    from localpuppet.node.releases.author.puppetfile_import import EntryChoice, ImportResult
    from localpuppet.node.releases.manifest import Manifest

PUPPETFILE = "Puppetfile"
SOME_LEFT = 1


@command(
    "import",
    exits={0: "each module was converted", 1: "some modules were not: the output names them"},
)
@click.argument("puppetfile", metavar="[PUPPETFILE]", required=False, type=path_type())
@option(
    "-o --output FILE",
    "Write the manifest to FILE.  [default: manifest.yaml; with PUPPETFILE: print it]",
    type=click.Path(path_type=Path, dir_okay=False),
)
@flag("--dry-run", "Contact no repository, and write nothing.")
@flag("--evaluate", "Run the Puppetfile with Ruby, in a sandbox.")
@flag("--use-tags", "Accept only tags: replace a commit by the tag on it.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def import_command(
    node: NodeApp, /, puppetfile: Path | None, output: Path | None, **options: bool
) -> None:
    """Convert an r10k or g10k Puppetfile to a manifest.

    Each module keeps the pin of the Puppetfile, or is left out with a reason. localpuppet runs the
    file's Ruby code only with --evaluate, isolated and without network. Other keys of an
    existing manifest stay.

    Examples:
      localpuppet release import              convert Puppetfile to manifest.yaml
      localpuppet release import --dry-run    show what would be converted
      localpuppet release import Puppetfile   print the manifest
      localpuppet release import --evaluate   for a Puppetfile with Ruby code
    """
    from localpuppet.node.releases.author.puppetfile_import import ImportRules, import_modules

    file = puppetfile or Path()
    if file.is_dir():
        file /= PUPPETFILE
        output = output or file.parent / "manifest.yaml"
    maker = node.for_makers()
    parsed = _read(file, evaluate=options["evaluate"])
    old = _existing(maker, output or file.parent / "manifest.yaml")
    old, paths = _with_moduledir(old, parsed, file.parent)
    rules = ImportRules(
        allow_file=maker.settings.allow_file_urls,
        use_tags=options["use_tags"] or maker.settings.tags_only,
        paths=paths,
        asking=not options["dry_run"],
    )
    if options["dry_run"]:
        result = import_modules(parsed, rules=rules, old=old, repository=None)
    else:
        with maker.repository(f"importing {file}") as repository:
            result = import_modules(
                parsed,
                rules=rules,
                old=old,
                repository=repository,
                progress=maker.counted("repositories"),
            )
        text = result.manifest.to_text(result.comments)
        if output is not None:
            write_durably(output, text.encode(), mode=0o644)
        elif not options["as_json"]:
            render.emit(text.rstrip("\n"))
    if options["as_json"]:
        render.emit_json(_to_dict(parsed, result))
    else:
        _show(parsed, result, output, check=options["dry_run"], shown=output is not None)
    if result.left or parsed.notes:
        raise click.exceptions.Exit(SOME_LEFT)


def _read(file: Path, *, evaluate: bool) -> "Puppetfile":
    data = read_user_file(file)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError("is not UTF-8", where=str(file)) from error
    if not evaluate:
        from localpuppet.node.releases.author.puppetfile import parse

        with errors_at(str(file), LocalpuppetError):
            return parse(text)
    from localpuppet.node.releases.author.puppetfile_import import evaluate as evaluate_in_ruby

    with errors_at(str(file), LocalpuppetError):
        return evaluate_in_ruby(data, path=program_environment()["PATH"])


def _existing(maker: NodeApp, file: Path) -> "Manifest":
    data = read_user_file(file) if file.exists() else b""
    return maker.files.parse_manifest(data, str(file))


def _with_moduledir(
    old: "Manifest", puppetfile: "Puppetfile", directory: Path
) -> "tuple[Manifest, tuple[str, ...]]":
    """Return the manifest with its directory for modules, and the directories of the modulepath.

    Only a control repository has such a directory: one with an `environment.conf`, or with modules
    or manifests where r10k's users have them.
    """
    from contextlib import suppress
    from dataclasses import replace

    from localpuppet.node.releases import composing
    from localpuppet.node.releases.manifest import parse_inner_path

    file = directory / composing.FILE
    text = read_user_file(file).decode("utf-8", "replace") if file.exists() else ""
    usual = composing.parse_environment(text).modulepath
    named = []
    for entry in puppetfile.entries:
        with suppress(InvalidInputError):
            named.append(parse_inner_path(entry.moduledir or "", where="moduledir"))
    named = [name for name in named if name] or [composing.MODULEDIR]
    moduledir = next((name for name in named if name in usual), named[0])
    places = (composing.MANIFESTS, *composing.SITE_DIRECTORIES)
    control = file.exists() or any((directory / name).is_dir() for name in places)
    if not old.moduledir and control and not old.modules:
        old = replace(old, moduledir=moduledir)
    own = old.moduledir or moduledir
    modulepath = composing.parse_environment(text, moduledir=own).modulepath
    is_usual = modulepath == (own, composing.BASE)
    return old, (*modulepath, composing.MODULEDIR) if is_usual else modulepath


def _show(
    puppetfile: "Puppetfile",
    result: "ImportResult",
    output: Path | None,
    *,
    check: bool,
    shown: bool,
) -> None:
    """Show the result for each entry, or only left-out ones if the manifest is printed.

    Reasons are below the table, because a narrow terminal would cut them.
    """
    rows = [
        (
            str(choice.entry.line),
            render.user_text(choice.name),
            render.user_text(_from(choice)),
        )
        for choice in result.choices
    ]
    err = not (check or shown)
    if rows and not err:
        render.say(render.table(("LINE", "MODULE", "PINNED BY"), rows))
    for line, note in _notes(puppetfile, result):
        render.say(f"line {line}: {render.user_text(note)}", err=err)
    if puppetfile.has_other_forge:
        render.say(
            "the Puppetfile's forge is a setting here: 'forge: {url: …}' in localpuppet.yaml",
            err=err,
        )
    verb = "would remove" if check else "removed"
    removed = [name for name, change in result.changes.items() if change == "removed"]
    for name in removed:
        render.say(f"# {verb} {name}: it is not in the Puppetfile", err=True)
    taken = len(result.choices) - len(result.left)
    total = render.counted(len(result.choices), "module")
    wrote = f"wrote {output}: " if output is not None and not check else ""
    render.say(f"{wrote}{taken} of {total} taken, {len(result.left)} left", err=err)


def _notes(puppetfile: "Puppetfile", result: "ImportResult") -> list[tuple[int, str]]:
    """Return the notes on entries, each with its line, in order."""
    notes = list(puppetfile.notes.items())
    for choice in result.choices:
        words = [f"left: {choice.left}"] if choice.left else choice.notes
        notes += [(choice.entry.line, f"{choice.name}: {word}") for word in words]
    return sorted(notes)


def _from(choice: "EntryChoice") -> str:
    if choice.left:
        return "left"
    options = choice.entry.options
    source = "git" if "git" in options or options.get("type") == "git" else "forge"
    return f"{source} {choice.pinned_by}" if choice.pinned_by else "-"


def _to_dict(puppetfile: "Puppetfile", result: "ImportResult") -> dict[str, Any]:
    return {
        "schema": 1,
        "modulepath": list(result.manifest.modulepath),
        "moduledir": result.manifest.moduledir or None,
        "modules": {name: module.fields for name, module in result.manifest.modules.items()},
        "entries": [
            {
                "line": choice.entry.line,
                "module": choice.name,
                "manifest_entry": choice.module.fields if choice.module else None,
                "pinned_by": choice.pinned_by or None,
                "reason": choice.left or None,
                "notes": list(choice.notes),
            }
            for choice in result.choices
        ],
        "ruby": {str(line): note for line, note in puppetfile.notes.items()},
        "changes": dict(result.changes),
    }
