"""`localpuppet release diff`: what a node would get from another release."""

import secrets
import shutil

import click

from localpuppet.cli import render
from localpuppet.releases.difference import Difference, compare, compare_catalogs
from localpuppet.releases.release import Release
from localpuppet.wiring.node import OWN_MODULES, Parts
from localpuppet.wiring.run import prepare

SHOWN = 40


@click.command(
    "diff",
    short_help="Compare two releases: pins, files, compiled resources.",
    epilog="""\b
Examples:
  localpuppet release diff web/tags/r1 web/tags/r2
  localpuppet release diff web/tags/r1 web/tags/r2 --catalog input.yaml --json
Exit code: 0, whether there are differences or not.
""",
)
@click.argument("before")
@click.argument("after")
@click.option("--catalog", metavar="INPUT", help="Compile this input's catalog with both, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def diff_command(parts: Parts, before: str, after: str, catalog: str | None, as_json: bool) -> None:
    """Compare two releases: pins, files and, with --catalog, compiled resources.

    Releases that are not on this node are staged first. Catalogs are compiled with this node's
    facts; nothing is applied.
    """
    from localpuppet.releases.comparing import files, pins

    for name in (before, after):
        prepare(parts, name, package=None)
    releases = [parts.release(name) for name in (before, after)]
    pinned = [
        pins(release, documents=parts.documents, allow_file=parts.settings.allow_file_urls)
        for release in releases
    ]
    found = {"dependencies": compare(*pinned), "files": compare(*map(files, releases))}
    if catalog is not None:
        catalogs = [_catalog(parts, release, catalog) for release in releases]
        found["resources"] = compare_catalogs(*catalogs)
    if as_json:
        differences = {title: difference.to_dict() for title, difference in found.items()}
        render.emit_json({"schema": 1, "before": before, "after": after, **differences})
        return
    for title, difference in found.items():
        render.emit(_text(title, difference))


def _text(title: str, difference: Difference) -> str:
    lines = [click.style(title, bold=True)]
    rows = [(click.style(f"  - {render.user_text(name)}", fg="red")) for name in difference.removed]
    rows += [
        (click.style(f"  + {render.user_text(name)}", fg="green")) for name in difference.added
    ]
    rows += [
        click.style(f"  ~ {render.user_text(name)}", fg="yellow") + f"  {render.user_text(text)}"
        for name, text in difference.changed.items()
    ]
    lines += rows[:SHOWN]
    if len(rows) > SHOWN:
        lines.append(f"  and {len(rows) - SHOWN} more; --json shows all")
    if not rows:
        lines.append("  the same")
    return "\n".join(lines)


def _catalog(parts: Parts, release: Release, source: str) -> dict[str, dict[str, str]]:
    from localpuppet.enc.classify import node_document
    from localpuppet.enc.input import read_input
    from localpuppet.releases.comparing import compile_catalog, write_scratch

    settings = parts.settings
    read = read_input(source, documents=parts.documents, fetch=parts.fetch())
    document = node_document(read, release, answer=None)
    installation = parts.installed()
    scratch = settings.state / f"diff-{secrets.token_hex(4)}"
    try:
        path = write_scratch(scratch, document.to_yaml())
        (scratch / "environments" / document.environment).mkdir(parents=True)
        command = [installation.command, "catalog", "compile", installation.settings["certname"]]
        for name, directory in settings.puppet_directories.items():
            command += [f"--{name}", str(directory)]
        command += ["--node_terminus", "exec", "--external_nodes", str(settings.enc_script)]
        command += ["--environmentpath", f"{scratch}/environments"]
        command += ["--environment", document.environment, "--log_level", "err"]
        command += ["--modulepath", ":".join(map(str, (*release.modulepath, OWN_MODULES)))]
        if release.hiera_config:
            command += ["--hiera_config", str(release.hiera_config)]
        command += ["--manifest", str(settings.site_manifest), "--render-as", "json"]
        return compile_catalog(
            command,
            env={**parts.environment, "LOCALPUPPET_NODE_DOCUMENT": str(path)},
            processes=parts.processes,
            timeout=settings.run_timeout,
            where=release.app,
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
