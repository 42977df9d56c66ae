"""`localpuppet keys`: this node's key, and the keys that it trusts."""

import sys
from pathlib import Path
from typing import Any

import click

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.names import SignerName
from localpuppet.base.machine.files import read_user_file
from localpuppet.base.machine.own_program import has_extra
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.trust.identity import SignerIdentity
from localpuppet.fleet.trust.key_files import MAX_KEY_FILE, fingerprint, parse_public, public_pem
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import (
    CommandGroup,
    command,
    confirm,
    confirmation_options,
    flag,
    option,
)
from localpuppet.node.cli.render_run import moment
from localpuppet.node.sealed.age import SealingKey

MODULES = {
    "init": "fleet.cli.keys",
    "invite": "fleet.cli.joining",
    "list": "fleet.cli.keys",
    "revoke": "fleet.cli.keys",
    "show": "fleet.cli.keys",
    "trust": "fleet.cli.keys",
}


@click.group(cls=CommandGroup, sections={"Commands": MODULES})
def keys_command() -> None:
    """Make this node's key; pin the keys of others.

    Nodes and operators sign triggers, requests and replies. A node trusts pinned keys and, if
    identity.ca is set in localpuppet.yaml, certificates of that CA.

    Examples:
      localpuppet keys init                          on web01: make its key
      localpuppet keys show > web01.pem              on web01: the file is public
      localpuppet keys trust web01.example.com web01.pem       on another node
      ssh web01 localpuppet keys show | localpuppet keys trust web01.example.com -
    """


@command("init", exits={2: "this node has a key already, or a setting is invalid", 1: ""})
@flag("--replace", "Replace an existing key; the old one is lost.")
@flag("--sealing", "Make only the sealing key; with --replace, keep the old one beside it.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def init_command(node: NodeApp, replace: bool, sealing: bool, as_json: bool) -> None:
    """Make this node's keys.

    The key is an Ed25519 key that only root can read. Pin its public part on other nodes with 'keys
    show' and 'keys trust'.

    With the extra 'sealed', the command also makes the sealing key, unless the node has one. The
    node opens sealed values with it, and publishes its recipient in its entry.

    Examples:
      localpuppet keys init
      localpuppet keys init --replace      if the old key may have leaked
      localpuppet keys init --sealing --replace    two keys until 'reseal'
    """
    identity = FleetApp(node).identity
    if sealing:
        made = SealingKey(node.settings.state / "keys").make(replace=replace)
        if as_json:
            render.emit_json({"schema": 1, "sealing": list(made)})
        else:
            render.emit(f"secrets for this node are sealed to {made[0]}")
        return
    if identity.certificate() is not None:
        raise InvalidInputError(
            "this node signs with its certificate (identity.certificate)",
            where="keys init",
            hint="remove that setting first",
        )
    name = identity.name()
    print_of = fingerprint(identity.own_key.make(replace=replace).public_key())
    path = str(identity.own_key.path)
    recipients = SealingKey(node.settings.state / "keys").make() if has_extra("sealed") else ()
    if as_json:
        document = {"schema": 1, "name": name, "fingerprint": print_of, "file": path}
        render.emit_json({**document, "sealing": list(recipients)})
        return
    render.emit(f"made the key of {name}: {print_of}")
    if recipients:
        render.emit(f"secrets for it are sealed to {recipients[0]}")
    render.emit(f"others trust it with: localpuppet keys trust {name} FILE")
    if replace:
        render.emit("restart the agent of this node: until then it uses and trusts the old key")


@command("show", exits={2: "there is no key, or a setting is invalid"})
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def show_command(node: NodeApp, as_json: bool) -> None:
    """Print this node's public key, or its certificate.

    The output is not secret. 'keys trust' on another node reads it.

    Examples:
      localpuppet keys show > web01.pem
      localpuppet keys show --json
    """
    identity = _own(FleetApp(node).identity)
    if as_json:
        render.emit_json({"schema": 1, **identity})
        return
    render.emit(f"# {identity['name']} {identity['fingerprint']}")
    if identity["kind"] == "certificate":
        render.emit(f"# by {identity['issuer']}, until {moment(identity['until'])}")
    render.emit(identity["pem"].rstrip())


def _own(identity: SignerIdentity) -> dict[str, Any]:
    from cryptography.hazmat.primitives.serialization import Encoding

    certificate = identity.certificate()
    if certificate is None:
        name = identity.name()  # first: a refused name is the error to report
        public = identity.own_key.load().public_key()
        return {
            "name": name,
            "kind": "ed25519",
            "fingerprint": fingerprint(public),
            "pem": public_pem(public).decode(),
        }
    identity.signer(make=False)  # checks that the private key exists and matches
    return {
        "name": identity.name(),
        "kind": "certificate",
        "fingerprint": fingerprint(certificate.public_key()),
        "issuer": certificate.issuer.rfc4514_string(),
        "until": certificate.not_valid_after_utc.isoformat(),
        "pem": certificate.public_bytes(Encoding.PEM).decode(),
    }


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
    changed, actual = pinned(FleetApp(node), signer, file, wanted, replace=replace)
    if as_json:
        document = {"schema": 1, "name": signer, "fingerprint": actual, "changed": changed}
        render.emit_json(document)
        return
    render.emit(f"{'trusts' if changed else 'trusted already:'} {signer} {actual}")


def pinned(
    fleet: FleetApp, signer: SignerName, file: str, wanted: str | None, *, replace: bool = False
) -> tuple[bool, str]:
    """Pin the key in a file, or of standard input; return whether it is new, and its fingerprint.

    Raises:
        IntegrityError: It has another fingerprint than `wanted`, or another key is pinned.
    """
    if file == "-":
        data, where = sys.stdin.buffer.read(MAX_KEY_FILE), "standard input"
    else:
        data, where = read_user_file(Path(file), limit=MAX_KEY_FILE), file
    key = parse_public(data, where=where)
    actual = fingerprint(key)
    if wanted is not None and wanted != actual:
        raise IntegrityError(f"its fingerprint is {actual}, not {wanted[:60]}", where=where)
    trusted = fleet.identity.trusted
    for name in trusted.names():  # a short name would be another node, which never answers
        if name != signer and name.partition(".")[0] == signer.partition(".")[0]:
            known = trusted.get(name)
            if known is not None and fingerprint(known) == actual:
                hint = f"write {name}, or 'localpuppet keys revoke {name}' first"
                raise InvalidInputError(f"is the key of {name}", where=where, hint=hint)
    return trusted.pin(signer, key, replace=replace), actual


@command("list")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def list_command(node: NodeApp, as_json: bool) -> None:
    """List the keys that are pinned on this node.

    Examples:
      localpuppet keys list
      localpuppet keys list --json
    """
    trusted = FleetApp(node).identity.trusted
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
    trusted = FleetApp(node).identity.trusted
    if signer in trusted.names() and not yes:
        step = f"remove the pinned key of {signer}"
        if dry_run:
            render.emit(f"would {step}")
            return
        confirm(step, yes=yes)
    trusted.remove(signer)
    ca = FleetApp(node).peers.identity.ca
    if as_json:
        render.emit_json({"schema": 1, "name": signer, "certificates": ca is not None})
        return
    render.emit(f"{signer} is no longer trusted")
    if ca is not None:
        render.note(f"a certificate of {signer} by {ca} is still trusted: revoke it at the CA")
