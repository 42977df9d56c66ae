"""`localpuppet keys trust`, `list` and `revoke`: the pinned keys of others."""

import sys
from pathlib import Path

import click

from localpuppet.base.errors import IntegrityError
from localpuppet.base.formats.names import SignerName
from localpuppet.base.machine.files import read_user_file
from localpuppet.fleet.trust.keys import MAX_KEY_FILE, fingerprint, parse_public
from localpuppet.fleet.wiring.fleet import Identity, peers
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option
from localpuppet.node.cli.confirming import confirm, confirmation_options


@command(
    "trust",
    exits={0: "the key is pinned", 1: "", 3: "another key of NAME is pinned, or FILE differs"},
)
@click.argument("name")
@click.argument("file")
@flag("--replace", "Replace another pinned key of NAME.")
@option("--fingerprint wanted SHA256:…", "Reject FILE if it has another fingerprint.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def trust_command(
    node: NodeApp, name: str, file: str, replace: bool, wanted: str | None, as_json: bool
) -> None:
    """Pin the public key of a node or a person.

    FILE has the public key; '-' is standard input. NAME is a node's name, or a person's (the caller
    id of 'alice' is choria=alice). The policy file of this node decides what NAME may do.

    Examples:
      localpuppet keys trust web01.example.com web01.pem
      ssh web01 localpuppet keys show | localpuppet keys trust web01.example.com -
      localpuppet keys trust alice alice.pem --fingerprint SHA256:uNiVztksCsD…
    """
    signer = SignerName.parse(name)
    if file == "-":
        data, where = sys.stdin.buffer.read(MAX_KEY_FILE), "standard input"
    else:
        data, where = read_user_file(Path(file), limit=MAX_KEY_FILE), file
    key = parse_public(data, where=where)
    actual = fingerprint(key)
    if wanted is not None and wanted != actual:
        raise IntegrityError(f"its fingerprint is {actual}, not {wanted[:60]}", where=where)
    changed = Identity(node).trusted.pin(signer, key, replace=replace)
    if as_json:
        document = {"schema": 1, "name": signer, "fingerprint": actual, "changed": changed}
        render.emit_json(document)
        return
    render.emit(f"{'trusts' if changed else 'trusted already:'} {signer} {actual}")


@command("list")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def list_command(node: NodeApp, as_json: bool) -> None:
    """List the keys that are pinned on this node.

    Examples:
      localpuppet keys list
      localpuppet keys list --json
    """
    trusted = Identity(node).trusted
    rows = []
    for name in trusted.names():
        key = trusted.get(name)
        if key is not None:  # it may have been removed just now
            rows.append((name, fingerprint(key)))
    if as_json:
        trusted_keys = [{"name": name, "fingerprint": print_of} for name, print_of in rows]
        render.emit_json({"schema": 1, "trusted": trusted_keys})
        return
    if not rows:
        render.emit("no key is pinned")
        return
    width = render.columns()
    if width is not None and width < max(len(name) + len(key) + 2 for name, key in rows):
        render.emit("\n".join(f"{name}\n  {key}" for name, key in rows))  # never cut a key off
        return
    render.emit(render.table(("NAME", "FINGERPRINT"), rows))


@command(
    "revoke",
    exits={1: "you answered no, or a file operation failed", 2: "no key of NAME is pinned"},
)
@click.argument("name")
@confirmation_options
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def revoke_command(node: NodeApp, name: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove the pinned key of a node or a person.

    This node then rejects all signatures of NAME. The command does not revoke a certificate:
    the CA does.

    Examples:
      localpuppet keys revoke web07.example.com
      localpuppet keys revoke web07.example.com --yes     in a script
    """
    signer = SignerName.parse(name)
    trusted = Identity(node).trusted
    if signer in trusted.names() and not yes:
        step = f"remove the pinned key of {signer}"
        if dry_run:
            render.emit(f"would {step}")
            return
        confirm(step, yes=yes)
    trusted.remove(signer)
    ca = peers(node).identity.ca
    if as_json:
        render.emit_json({"schema": 1, "name": signer, "certificates": ca is not None})
        return
    render.emit(f"{signer} is no longer trusted")
    if ca is not None:
        render.QuietObserver().note(
            f"a certificate of {signer} by {ca} is still trusted: revoke it at the CA"
        )
