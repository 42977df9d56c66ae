"""`localpuppet keys init` and `show`: this node's own key."""

from typing import Any

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.trust.keys import fingerprint, public_pem
from localpuppet.fleet.wiring.fleet import Identity
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag
from localpuppet.node.cli.render_run import moment


@command("init", exits={2: "this node has a key already, or a setting is invalid", 1: ""})
@flag("--replace", "Replace an existing key; the old one is lost.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def init_command(node: NodeApp, replace: bool, as_json: bool) -> None:
    """Make this node's key.

    The key is an Ed25519 key that only root can read. Pin its public part on other nodes with 'keys
    show' and 'keys trust'.

    Examples:
      localpuppet keys init
      localpuppet keys init --replace      if the old key may have leaked
    """
    identity = Identity(node)
    if identity.certificate() is not None:
        raise InvalidInputError(
            "this node signs with its certificate (identity.certificate)",
            where="keys init",
            hint="remove that setting first",
        )
    name = identity.name()
    print_of = fingerprint(identity.own_key.make(replace=replace).public_key())
    path = str(identity.own_key.path)
    if as_json:
        render.emit_json({"schema": 1, "name": name, "fingerprint": print_of, "file": path})
        return
    render.emit(f"made the key of {name}: {print_of}")
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
    identity = _own(Identity(node))
    if as_json:
        render.emit_json({"schema": 1, **identity})
        return
    render.emit(f"# {identity['name']} {identity['fingerprint']}")
    if identity["kind"] == "certificate":
        render.emit(f"# by {identity['issuer']}, until {moment(identity['until'])}")
    render.emit(identity["pem"].rstrip())


def _own(identity: Identity) -> dict[str, Any]:
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
