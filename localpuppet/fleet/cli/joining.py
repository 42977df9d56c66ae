"""`localpuppet join`, `keys invite` and `policy`: a machine becomes a member, callers get rights.

An invitation has public data only: how to reach the bus, and the keys that the member trusts. Its
fingerprint, which two people compare, covers all of it.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import click

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.converter import Message, to_record
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.files import is_file, read_user_file, write_durably
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.trust.key_files import fingerprint_of, parse_public, public_pem
from localpuppet.fleet.trust.policy import ANY, ANY_ACTION, Policy, decide, read_policy
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import CommandGroup, command, confirm, flag, option, path_type
from localpuppet.node.settings import FILE

# What of a member's bus is the same for all members; the rest is its own account.
SHARED = frozenset(("servers", "ca", "path", "api", "stream", "replicas"))


class Invitation(Message):
    """What a new node needs to know of a fleet.

    `settings` has the keys `bus` and `buses` of localpuppet.yaml, as JSON; `keys` the PEM of
    signers.
    """

    WHERE: ClassVar[str] = "invitation"
    LIMIT: ClassVar[int] = 1024 * 1024

    schema: int
    node: NodeName
    member: SignerName
    settings: str
    keys: dict[str, str]


@command("invite", exits={3: "FILE has another fingerprint, or another key of NODE is pinned"})
@click.argument("name", metavar="NODE")
@click.argument("file")
@option("--fingerprint wanted SHA256:…", "Reject FILE if it has another fingerprint.")
@option("--allow actions ACTION", "Allow NODE this action here (repeatable).", multiple=True)
@option("--roster FILE", "Add NODE to this roster.", type=path_type())
@click.pass_context
def invite_command(
    ctx: click.Context,
    name: str,
    file: str,
    wanted: str | None,
    actions: tuple[str, ...],
    roster: Path | None,
) -> None:
    """Trust a new node, and print its invitation.

    FILE is what 'localpuppet join' printed on NODE; '-' is standard input. This node pins its key.
    The invitation says how to reach the bus, and has the public keys that this node trusts. It has
    no secret: an account on the bus is up to you. Compare its fingerprint on NODE.

    Examples:
      localpuppet keys invite web02.example.com web02.pem > fleet.json
      localpuppet keys invite web02.example.com web02.pem --allow trigger
    """
    from localpuppet.fleet.cli.keys import pinned

    node: NodeApp = ctx.obj
    fleet, signer = FleetApp(node), SignerName(NodeName.parse(name))
    raw = node.section(lambda file: file.raw)
    if "." in fleet.name and "." not in signer:
        hint = "'localpuppet join' on the node prints this command with its name"
        raise InvalidInputError(f"{signer} is a short name", where="NODE", hint=hint)
    if "bus" not in raw:
        raise InvalidInputError("names no bus", where=FILE, hint="write 'bus:' there first")
    text = None if roster is None else _with_member(node, roster, signer)
    changed, print_of = pinned(fleet, signer, file, wanted)
    render.say(f"{'trusts' if changed else 'trusted already:'} {signer} {print_of}", err=True)
    if actions:
        render.say(add_rule(fleet.peers.policy, signer, actions), err=True)
    if roster is not None and text is not None:
        write_durably(roster, text.encode(), mode=roster.stat().st_mode & 0o777)
        render.say(f"{roster}: added {signer}: see 'localpuppet bus permissions'", err=True)
    me, trusted = fleet.identity.name(), fleet.identity.trusted
    keys = {name: trusted.get(name) for name in trusted.names() if name != signer}
    keys[me] = fleet.identity.own_key.load().public_key()
    shared = {
        name: {key: bus[key] for key in bus if key in SHARED} if isinstance(bus, dict) else bus
        for name, bus in raw.get("buses", {}).items()
    }
    invitation = Invitation(
        schema=1,
        node=NodeName(signer),
        member=me,
        settings=json.dumps({"bus": raw["bus"], "buses": shared}),
        keys={name: public_pem(key).decode() for name, key in keys.items() if key is not None},
    )
    data = json.dumps(to_record(invitation), indent=2)
    render.emit(data)
    render.say(f"fingerprint of the invitation: {fingerprint_of(data.encode())}", err=True)


def _with_member(node: NodeApp, roster: Path, name: SignerName) -> str | None:
    """Return the text of a roster with one more node, or `None` if it has it."""
    text, where = read_user_file(roster).decode(), str(roster)
    raw: Any = node.documents.parse(text.encode(), schema="roster", where=where)
    if name in raw.get("nodes", {}):
        return None
    head, found, rest = f"\n{text}".partition("\nnodes:\n")
    new = f"{head}{found}  {name}: {{}}\n{rest}"[1:]
    wanted = {**raw, "nodes": {**raw.get("nodes", {}), name: {}}}
    if not found or node.documents.parse(new.encode(), schema="roster", where=where) != wanted:
        hint = f"add '{name}: {{}}' yourself"
        raise InvalidInputError("has no separate line 'nodes:'", where=where, hint=hint)
    return new


@command("join", exits={1: "you answered no", 3: "the invitation has another fingerprint"})
@click.argument("file", required=False, metavar="[INVITATION]")
@option("--fingerprint wanted SHA256:…", "Reject INVITATION if it has another fingerprint.")
@click.pass_obj
def join_command(node: NodeApp, file: str | None, wanted: str | None) -> None:
    """Make this machine a member of a fleet.

    Without INVITATION, it makes a missing key of this node, and prints the public key for
    'keys invite' on a member. INVITATION is what that printed; '-' is standard input. This node
    trusts the keys in it, takes the bus from it, and allows the member `status` and `trigger`. It
    replaces nothing, so that you can repeat the command. Without --fingerprint, it asks.

    Examples:
      localpuppet join > web02.pem
      localpuppet keys invite web02.example.com web02.pem      on a member
      localpuppet join fleet.json                              its output
    """
    fleet = FleetApp(node)
    identity = fleet.identity
    me = identity.name()
    if file is None:
        identity.signer(make=True)
        public = public_pem(identity.own_key.load().public_key())
        render.emit(public.decode().rstrip())
        render.say(f"on a member: localpuppet keys invite {me} FILE", err=True)
        return
    limit = Invitation.LIMIT
    data = (
        sys.stdin.buffer.read(limit + 1) if file == "-" else read_user_file(Path(file), limit=limit)
    )
    if not data.lstrip().startswith(b"{"):
        hint = "pass what 'localpuppet keys invite' printed on a member"
        raise InvalidInputError("is no invitation", where=file, hint=hint)
    invitation, print_of = Invitation.parse(data), fingerprint_of(data.strip())
    where = "invitation"
    if SignerName(invitation.node) != me:
        raise InvalidInputError(f"is for {invitation.node}, and this node is {me}", where=where)
    if wanted is None and not render.on_terminal(sys.stdin):
        raise click.UsageError("without a terminal, pass --fingerprint")
    if wanted is None:
        confirm(f"join with the invitation {print_of} of {invitation.member}", yes=False)
    elif wanted != print_of:
        raise IntegrityError(f"its fingerprint is {print_of}, not {wanted[:60]}", where=where)
    keys = {
        SignerName.parse(name): parse_public(pem.encode(), where=f"{where}: keys.{name}")
        for name, pem in invitation.keys.items()
    }
    path = node.settings.root / FILE
    new = _with_bus(node, path, invitation)
    for name, key in keys.items():
        identity.trusted.pin(name, key)
    render.emit(f"trusts {render.counted(len(keys), 'key')} of the fleet")
    render.emit(add_rule(fleet.peers.policy, invitation.member, ("status", "trigger")))
    if new is not None:
        write_durably(path, new, mode=path.stat().st_mode & 0o777 if is_file(path) else 0o644)
        render.emit(f"{path}: added the bus")
    render.emit("next: 'systemctl enable --now localpuppet-agent.service', or 'localpuppet agent'")


def _with_bus(node: NodeApp, path: Path, invitation: Invitation) -> bytes | None:
    """Return the settings of this node with the bus of an invitation; `None` if they have it."""
    where, known = "invitation", node.section(lambda file: file.raw)
    settings = node.documents.parse(invitation.settings.encode(), schema="settings", where=where)
    if settings.keys() != {"bus", "buses"}:
        raise InvalidInputError("has other settings than bus and buses", where=where)
    shared = settings.keys() & known.keys()
    if any(known[key] != settings[key] for key in shared):
        raise InvalidInputError("names another bus", where=str(path), hint="remove 'bus:' there")
    if "bus" in known:
        return None
    old = read_user_file(path) if is_file(path) else b"# localpuppet"
    if old.lstrip().startswith(b"{"):
        raise InvalidInputError("is one JSON value", where=str(path), hint="write a line a key")
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())
    new = old.rstrip(b"\n") + f"\n{lines}".encode()
    node.documents.parse(new, schema="settings", where=str(path))
    return new


@click.group(
    cls=CommandGroup,
    sections={"Commands": {"allow": "fleet.cli.joining", "show": "fleet.cli.joining"}},
)
def policy_command() -> None:
    """Show who may do what on this node; allow more.

    Examples:
      localpuppet policy show
      localpuppet policy allow alice status runonce
    """


@command("allow")
@click.argument("caller", metavar="NAME")
@click.argument("actions", nargs=-1, required=True, metavar="ACTION...")
@flag("--dry-run", "Print the line; write nothing.")
@click.pass_obj
def allow_command(node: NodeApp, caller: str, actions: tuple[str, ...], dry_run: bool) -> None:
    """Allow a node or a person actions on this node.

    NAME is a node's name, or a person's. ACTION is a word of the policy file, such as status,
    runonce or deploy:shop/tags/r*; '*' means the actions without code and secrets. The command adds
    a line to the policy file of this node, and makes the file if it is missing.

    Examples:
      localpuppet policy allow alice status disable enable runonce
      localpuppet policy allow alice 'deploy:shop/tags/*'
      localpuppet policy allow web01.example.com trigger --dry-run
    """
    fleet, signer = FleetApp(node), SignerName.parse(caller.removeprefix("choria="))
    render.emit(add_rule(fleet.peers.policy, signer, actions, dry_run=dry_run))
    known = (fleet.name, *fleet.identity.trusted.names())
    if signer not in known and fleet.peers.identity.ca is None:
        render.QuietObserver().note(f"no key of {signer} is pinned: see 'localpuppet keys trust'")


def add_rule(
    path: Path, signer: SignerName, actions: Sequence[str], *, dry_run: bool = False
) -> str:
    """Allow a signer actions in a policy file; return what was done, for people.

    Raises:
        InvalidInputError: An action is unknown, or an earlier line denies it.
    """
    named = ANY_ACTION if tuple(actions) == (ANY,) else actions
    policy, caller = read_policy(path), signer.caller
    missing = [word for word in named if not decide(policy, caller, word).allowed]
    if not missing:
        return f"{path} allows {signer} that already"
    rule = f"allow\t{caller}\t{' '.join(missing)}\t{ANY}\t{ANY}\n"
    old = b"policy default deny\n" if policy is None else read_user_file(path).rstrip(b"\n") + b"\n"
    new = old + rule.encode()
    for word in missing:
        decision = decide(Policy.parse(new, where=str(path)), caller, word)
        if not decision.allowed:
            hint = "edit that line: the first one that matches decides"
            raise InvalidInputError(decision.reason, where=str(path), hint=hint)
    if not dry_run:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        write_durably(path, new, mode=path.stat().st_mode & 0o777 if policy else 0o644)
    made = "" if policy else " (a new policy, which denies all else, also triggers of other nodes)"
    return f"{path}: {'would add' if dry_run else 'added'}: {rule.rstrip()}{made}"


@command("show")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def show_command(node: NodeApp, as_json: bool) -> None:
    """Show the rules of this node's policy.

    The first rule that matches decides.

    Examples:
      localpuppet policy show
      localpuppet policy show --json | jq .rules
    """
    path = FleetApp(node).peers.policy
    policy = read_policy(path)
    rows = [
        (
            str(rule.line),
            "allow" if rule.allow else "deny",
            " ".join(sorted(rule.callers or [ANY])),
            " ".join(rule.words),
        )
        for rule in (policy.rules if policy else ())
    ]
    head = ("LINE", "RULE", "CALLERS", "ACTIONS")
    allowed = " ".join(ANY_ACTION) if policy and policy.allow else "none"
    if as_json:
        rules = [dict(zip(map(str.lower, head), row, strict=True)) for row in rows]
        render.emit_json({"schema": 1, "file": str(path), "rules": rules, "default": allowed})
        return
    render.emit(render.table(head, [*rows, ("", "else", ANY, allowed)]))
