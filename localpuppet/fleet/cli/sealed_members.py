"""`localpuppet sealed reseal`, `resolve`, `remove`, `revoke` and `exposed`: who opens a group."""

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from localpuppet.base.errors import InvalidInputError, UnavailableError, errors_at
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.files import input_errors
from localpuppet.fleet.cli.sealed import (
    SealedClone,
    group_line,
    in_clone,
    json_flag,
    members_option,
    nodes_of_rules,
    operators_option,
    parse_keys,
    show_keys,
)
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, confirm, confirmation_options, option
from localpuppet.node.cli.sealed_trust import require_trust, show_left_out, trust_option
from localpuppet.node.sealed import authoring
from localpuppet.node.sealed.sealed_files import SealedGroup, SealedValue, parse_group_name
from localpuppet.node.sealed.tree import NEXT, PREFIX
from localpuppet.node.sealed.trust import exposed, head_of, holders_of

Approve = Callable[[str], bool]


def asks(function: Any) -> Any:  # noqa: ANN401 - what click decorates
    """Give a command `approve`, which returns whether to take a step, or ends the command."""

    @wraps(function)
    def work(*positional: Any, dry_run: bool, yes: bool, **given: Any) -> Any:  # noqa: ANN401
        def approve(step: str) -> bool:
            if dry_run:
                render.say(f"would {step}", err=True)
            else:
                confirm(step, yes=yes)
            return not dry_run

        return function(*positional, approve=approve, **given)

    return confirmation_options(work)


@command("reseal", exits={1: "you answered no"})
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@members_option
@operators_option
@option("--replace replaced NODE", "Accept the changed key of NODE (repeatable).", multiple=True)
@option("--pool pools NODE,NODE", "These nodes share one key (repeatable).", multiple=True)
@trust_option
@asks
@json_flag
@in_clone(secret=True)
def reseal_command(
    clone: SealedClone,
    /,
    names: tuple[str, ...],
    approve: Approve,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - the options about members
) -> None:
    """Adapt groups to the nodes that their rules select now.

    The command shows nodes that joined with their keys, and nodes that left, and asks. A node that
    says itself that it has a role must not get secrets unseen. If a member has another key than
    before and its entry does not prove that, it needs --replace. A node that left may have kept its
    secrets: use 'revoke' against that.

    A node with a bad key, or with the key of another holder, is left out. The command says why, and
    fails after the others have joined.

    Examples:
      localpuppet sealed reseal
      localpuppet sealed reseal --replace db01.example.com    after a reinstallation
      localpuppet sealed reseal --operator carol=age1…
    """
    groups = clone.groups(names)
    members = parse_keys(given["members"], "member")
    operators = parse_keys(given["operators"], "operator", plugins=True)
    pools = [pool.split(",") for pool in given["pools"]]
    nodes = nodes_of_rules(clone.node, {group.rule for group in groups}, members)
    if nodes is None and not (members or operators):
        raise UnavailableError(
            "no inventory to ask for the nodes of a rule", hint="name nodes: --member NAME=age1…"
        )
    wanted_of = {
        group.name: {**authoring.keys_of(group), **members} if nodes is None else nodes[group.rule]
        for group in groups
    }
    kept = {one.name: authoring.without_gone(one, wanted_of) for one in clone.tree.groups()}
    owners = authoring.owners_of_keys(kept.values(), wanted_of.values())
    faults: list[InvalidInputError] = []
    changed, records = {}, []
    for group in groups:
        wanted = wanted_of[group.name]
        difference = authoring.compare_members(group, wanted)
        found = authoring.faults_of_keys(
            group, wanted, difference, owners, pools=pools, replaced=given["replaced"]
        )
        show_left_out(found.values())
        faults += found.values()
        joined = {*difference.new, *difference.rotated, *difference.replaced} - {*found}
        if not (joined or difference.gone or operators):
            continue
        after = authoring.with_keys(
            kept[group.name],
            clone.secret(group),
            members={name: wanted[name] for name in joined},
            operators=operators,
            pools=pools,
        )
        changed[group] = after
        records.append({"group": group.name, "joined": sorted(joined), "left": difference.gone})
        render.say(f"{group.name}:", err=True)
        show_keys(after, joined | {*operators})
        for label in difference.gone:
            render.say(f"  - {label}", err=True)
    if changed and approve(f"reseal {render.counted(len(changed), 'group')}"):
        for group, after in changed.items():
            require_trust(clone.trust, group, given["trusted"])
            clone.trust.approve(after, {*holders_of(after)} - {*holders_of(group)})
        clone.write(changed.values())
    if as_json:
        render.emit_json({"schema": 1, "groups": records})
    elif not (changed or faults):
        render.emit("all groups have the members of their rules")
    if faults:
        raise faults[0]


@command("resolve")
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@json_flag
@in_clone()
def resolve_command(clone: SealedClone, names: tuple[str, ...], as_json: bool) -> None:
    """Merge the members of groups in which git has a conflict.

    Both branches must have the group with the same identity; what either of them added or removed
    counts. No secret is needed. Run 'git add' afterwards.

    Examples:
      git merge feature; localpuppet sealed resolve && git add sealed
    """
    repository = clone.repository
    names = names or repository.conflicts()
    merged = [authoring.merge_groups(*repository.sides(parse_group_name(name))) for name in names]
    clone.write(merged)
    if as_json:
        render.emit_json({"schema": 1, "groups": [group.name for group in merged]})
        return
    for group in merged:
        render.emit(group_line(group))
    if not merged:
        render.emit("git has no conflict in a group")


@command("remove", exits={1: "you answered no"})
@click.argument("name", metavar="NAME")
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@asks
@json_flag
@in_clone()
def remove_command(
    clone: SealedClone, name: str, names: tuple[str, ...], approve: Approve, as_json: bool
) -> None:
    """Remove a node or an operator from groups.

    The groups keep their identities, and no secret is needed. The command is for a machine whose
    key is destroyed. If others may have the key, use 'revoke': the old lines in git still open new
    values.

    Examples:
      localpuppet sealed remove web07.example.com
    """
    groups = _groups_of(clone, name, names)
    if approve(f"remove {name} from {shown_names([group.name for group in groups])}"):
        for group in groups:
            clone.write([group.without([name])])
            clone.trust.approve(group.without([name]), ())  # forgets the holder
    if as_json:
        render.emit_json({"schema": 1, "groups": [group.name for group in groups]})


def _groups_of(clone: SealedClone, name: str, names: Sequence[str]) -> list[SealedGroup]:
    """Return the groups that a member or operator is in; raise if it is in none."""
    groups = [
        group for group in clone.groups(names) if any(name in one.names for one in group.everybody)
    ]
    if not groups:
        raise InvalidInputError(f"{name} is in no group", hint="see 'localpuppet sealed list'")
    return groups


@command("revoke", exits={1: "you answered no"})
@click.argument("name", metavar="NAME")
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@trust_option
@asks
@json_flag
@in_clone(secret=True)
def revoke_command(
    clone: SealedClone,
    /,
    name: str,
    names: tuple[str, ...],
    trusted: tuple[str, ...],
    approve: Approve,
    as_json: bool,
) -> None:
    """Close groups to a node or an operator.

    The groups get new identities, and all of their values are sealed again. Later values are closed
    to NAME. It still has the present ones: change each secret that 'localpuppet sealed exposed'
    lists. If the command was interrupted, repeat it: it seals the values that are left.

    Examples:
      localpuppet sealed revoke db01.example.com
      localpuppet sealed exposed --node db01.example.com
    """
    groups = _groups_of(clone, name, names)
    secrets = [clone.secret(group) for group in groups]
    listed, sealed = [group.name for group in groups], 0
    if not approve(f"revoke {name}, with new identities of {shown_names(listed)}"):
        return
    begun = [_begun(clone, group, name) for group in groups]
    for group, after in zip(groups, begun, strict=True):
        require_trust(clone.trust, after or group.without([name]), trusted, holders=True)
    present = [*clone.tree.values()]
    progress = render.observer(quiet=as_json, title="sealing")
    for number, (group, secret, after) in enumerate(zip(groups, secrets, begun, strict=True), 1):
        last = clone.last_serial(group.name)
        renewed, values = authoring.revoke(present, group, [name], secret, after=last, begun=after)
        _write_revoked(clone, renewed, values)
        sealed += len(values)
        progress.count(number, len(groups), "groups")
    progress.close()
    if as_json:
        render.emit_json({"schema": 1, "groups": listed, "values": sealed})
    else:
        render.emit(f"sealed {render.counted(sealed, 'value')} again; now change the secrets")


def _begun(clone: SealedClone, group: SealedGroup, name: str) -> SealedGroup | None:
    """Return a group as an interrupted revocation of `name` is to leave it; `None` if none was.

    Holders that were removed since do not come back.
    """
    if (after := clone.tree.next_group(group.name)) is None:
        return None
    names, later = ({who for one in of.everybody for who in one.names} for of in (group, after))
    if name in later or after.serial <= group.serial:
        others = sorted(names - later) if after.serial > group.serial else []
        raise InvalidInputError(
            f"is not a revocation of {name}",
            where=f"{PREFIX}/groups/{group.name}.yaml{NEXT}",
            hint=f"'localpuppet sealed revoke {others[0]}' completes it" if others else "remove it",
        )
    return after.without(later - names)


def _write_revoked(clone: SealedClone, group: SealedGroup, values: Iterable[SealedValue]) -> None:
    """Write a group with a new identity, and its values.

    The new identity is on the disk before a value needs it, and the old one until none does: a
    command that is killed can be repeated.
    """
    clone.write([group], end=NEXT)
    clone.trust.approve(group, [head_of(group), *holders_of(group)])
    clone.write(values=values)
    file = clone.directory / PREFIX / "groups" / f"{group.name}.yaml"
    with input_errors(file):
        Path(f"{file}{NEXT}").replace(file)


@command("exposed", exits={0: "success, also if nothing is exposed"})
@option("--node name NODE", "What this node could open.")
@option("--operator person NAME", "What this operator could open.")
@json_flag
@in_clone()
def exposed_command(
    clone: SealedClone, name: str | None, person: str | None, as_json: bool
) -> None:
    """List what a node or an operator could ever open.

    The command reads the history of the checked-out branch. A value that was not changed since is
    marked: change that secret where it is used, and seal the new one.

    Examples:
      localpuppet sealed exposed --node db01.example.com
      localpuppet sealed exposed --operator alice --json
    """
    if (name is None) == (person is None):
        raise click.UsageError("name one: --node or --operator")
    with errors_at(str(clone.directory)):
        paths = exposed(
            clone.tree,
            clone.repository.past(),
            name=name or person or "",
            operator=person is not None,
        )
    if as_json:
        rows = [{"path": path, "in_use": in_use} for path, in_use in paths.items()]
        render.emit_json({"schema": 1, "exposed": rows})
        return
    for path, in_use in paths.items():
        render.emit(f"{path}  {'change this secret' if in_use else 'changed since'}")
    if not paths:
        render.emit("nothing")
