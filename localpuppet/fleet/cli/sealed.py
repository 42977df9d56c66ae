"""`localpuppet sealed`: secrets in a release that only some nodes can open."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import click

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.files import input_errors, replace_file
from localpuppet.fleet.app import FleetApp, run
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import (
    CommandGroup,
    Decorator,
    command,
    confirm,
    flag,
    option,
    path_type,
)
from localpuppet.node.cli.release.making import here
from localpuppet.node.cli.sealed_trust import require_trust, show_left_out, trust_option
from localpuppet.node.sealed import authoring
from localpuppet.node.sealed.age import AgeIdentity, AgeRecipient, read_identities
from localpuppet.node.sealed.sealed_files import (
    MAX_CONTENT,
    SealedGroup,
    SealedValue,
    ValueType,
    parse_group_name,
    parse_member_name,
    parse_path,
    parse_rule,
)
from localpuppet.node.sealed.tree import PREFIX, SealedOpener, SealedTree
from localpuppet.node.sealed.trust import PastSealed, SealedTrust, head_of, holders_of, refuse_step

_VALUES = ("set", "get", "edit", "list", "check")
_MEMBERS = ("reseal", "resolve", "remove", "revoke", "exposed")
MODULES = dict.fromkeys(_VALUES, "fleet.cli.sealed") | dict.fromkeys(
    _MEMBERS, "fleet.cli.sealed_members"
)
IDENTITY = "~/.config/localpuppet/identity.txt"
_TYPES = click.Choice([*map(str, ValueType)])

_directory = option(
    "--directory DIR",
    "The clone to work in.  [default: the one around the current directory]",
    default=here,
    type=path_type(),
)
_identity = option(
    "-i --identity FILE", f"Your age identities.  [default: {IDENTITY}]", type=path_type()
)
_level = option("--level LEVEL", "The level of the hierarchy.", default="common", show_default=True)
members_option = option(
    "--member members NAME=KEY", "A node and its age1… key, beside the inventory (repeatable).",
    multiple=True,
)  # fmt: skip
operators_option = option(
    "--operator operators NAME=KEY", "A person who can open the group (repeatable).", multiple=True
)
json_flag = flag("--json as_json", "Print JSON.")


class SealedClone:
    """The sealed values of a clone, and the operator's identities."""

    def __init__(self, node: NodeApp, directory: Path, identity: Path | None) -> None:
        self.node, self.directory = node, directory
        self.repository = node.sealed_repository(directory)
        self.tree = SealedTree.on_disk(directory)
        file = identity or Path(IDENTITY).expanduser()
        there = identity is not None or file.exists()
        self.identities: Sequence[AgeIdentity] = (
            read_identities(file, plugins=True) if there else ()
        )
        self.opener = SealedOpener(self.tree, self.identities)

    def group(self, name: str) -> SealedGroup:
        """Return a group that must exist."""
        group = self.tree.group(name)
        if group is None:
            raise InvalidInputError(
                f"there is no group {name}",
                where=str(self.directory / PREFIX),
                hint=f"groups: {', '.join(self.tree.group_names()) or 'none'}",
            )
        return group

    def groups(self, names: Sequence[str]) -> list[SealedGroup]:
        """Return groups, all if none is named."""
        return [self.group(name) for name in names or self.tree.group_names()]

    def secret(self, group: SealedGroup) -> AgeIdentity:
        """Return the identity of a group, which an operator opens."""
        identity = self.opener.identity(group)
        if identity is None:
            operators = ", ".join(one.label for one in group.operators)
            raise InvalidInputError(
                f"your identities do not open the group {group.name}",
                where="--identity",
                hint=f"ask an operator: {operators}",
            )
        return identity

    def value(self, key: str, level: str) -> SealedValue:
        """Return a value that must exist."""
        value = self.tree.value(parse_path(f"{level}/{key}"))
        if value is None:
            others = [path for path in self.tree.paths() if path.rpartition("/")[2] == key]
            raise InvalidInputError(
                f"{key} is not sealed at the level {level}",
                where=str(self.directory / PREFIX),
                hint=f"it is at {', '.join(others)}" if others else "see 'localpuppet sealed list'",
            )
        return value

    @cached_property
    def trust(self) -> SealedTrust:
        """What the newest verified release and this person vouch for."""
        return self.node.sealed_trust(self.directory)

    def last_number(self, path: str) -> int:
        """Return the highest number that a value had; 0 for a new one."""
        now, before = self.tree.number_of(path), self.trust.released.number_of(path)
        if now:
            refuse_step(now, before, what="number", where=f"{PREFIX}/values/{path}.yaml")
        past = self._past(f"values/{path}.yaml", is_released=before > 0)
        return max(now, before, past.numbers(lambda _: before).get(path, 0))

    def last_serial(self, name: str) -> int:
        """Return the highest serial that a group had; 0 for a new one."""
        released = self.trust.released.serial_of
        past = self._past(f"groups/{name}.yaml", is_released=released(name) > 0)
        return max(self.trust.last_serial(name), past.serials(released).get(name, 0))

    def _past(self, path: str, *, is_released: bool) -> PastSealed:
        """Return the history of a file since the release, or the whole if it is not in that."""
        since = f"refs/tags/{self.trust.tag}" if is_released else ""
        return self.repository.past(path, since=since)

    def write(
        self,
        groups: Iterable[SealedGroup] = (),
        values: Iterable[SealedValue] = (),
        *,
        end: str = "",
    ) -> None:
        """Write files; links below `sealed` are refused, because they could lead anywhere.

        Args:
            end: What follows the names of groups.
        """
        files = {f"groups/{group.name}.yaml{end}": group.to_bytes() for group in groups}
        files |= {f"values/{value.path}.yaml": value.to_bytes() for value in values}
        for name, data in files.items():
            path = self.directory / PREFIX / name
            for place in (path, *path.parents):
                if place == self.directory:
                    break
                if place.is_symlink():
                    raise InvalidInputError("is a link", where=str(place), hint="remove it")
            with input_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, data, mode=0o644)


def in_clone(*, secret: bool = False) -> Decorator:
    """Return the decorator that gives a command the clone to work in.

    Args:
        secret: Whether an operator's identities count.
    """

    def add(function: Any) -> Any:  # noqa: ANN401 - what click decorates
        @wraps(function)
        def work(
            node: NodeApp,
            /,
            directory: Path,
            identity: Path | None = None,
            **given: Any,  # noqa: ANN401
        ) -> Any:  # noqa: ANN401
            return function(SealedClone(node, directory, identity), **given)

        work = _directory(click.pass_obj(work))
        return _identity(work) if secret else work

    return add


@click.group(cls=CommandGroup, sections={"Commands": MODULES})
def sealed_command() -> None:
    """Seal secrets in a release for some of its nodes.

    The commands work in a clone of a release's repository and change files below 'sealed'. A group
    of nodes (role=db) has an age key. Nodes publish their keys in the inventory.

    Examples:
      localpuppet sealed set db::password --for role=db    from a prompt or a pipe
      localpuppet sealed list
      localpuppet sealed reseal                     after nodes joined or left
      localpuppet sealed exposed --node db01.example.com   after a theft
    """


def parse_keys(words: Sequence[str], what: str, *, plugins: bool = False) -> authoring.Keys:
    """Return the keys that options name: `NAME=age1…`."""
    keys = {}
    for word in words:
        name, equals, key = word.partition("=")
        if not equals:
            raise click.UsageError(f"--{what} requires NAME=age1…")
        where = f"--{what} {name}"
        recipient = AgeRecipient.parse(key, where=where, plugins=plugins)
        keys[parse_member_name(name, where=where)] = (recipient,)
    return keys


def nodes_of_rules(
    node: NodeApp, rules: Collection[str], given: authoring.Keys
) -> dict[str, dict[str, Sequence[AgeRecipient]]] | None:
    """Return the nodes of each rule with their keys; `None` if no inventory can be read."""

    def read(reader: InventoryReader) -> dict[str, dict[str, Sequence[AgeRecipient]]]:
        nodes: dict[str, dict[str, Sequence[AgeRecipient]]] = {rule: {} for rule in rules}
        for entry in reader.entries():
            words = {"all", str(entry.node), *(f"role={role}" for role in entry.roles)}
            for rule in rules:
                if not words.isdisjoint(rule.split(",")):
                    nodes[rule][str(entry.node)] = [*map(AgeRecipient, entry.sealing)]
        return nodes

    fleet = FleetApp(node)
    if not fleet.settings.bus.named:
        return None
    try:
        found = run(fleet.entries.answer(read, render.note, warns=False)).answer
    except UnavailableError as error:
        render.note(f"the inventory is unknown: {error}")
        return None
    return {rule: {**nodes, **given} for rule, nodes in found.items()}


def group_line(group: SealedGroup) -> str:
    """Return the line that says who opens a group."""
    whole = [name for one in group.members for name in one.names]
    short = [name.partition(".")[0] for name in whole]
    names = short if len({*short}) == len(whole) else whole
    operators = ", ".join(one.label for one in group.operators)
    nodes = render.counted(len(names), "node")
    return f"group {group.name}: {nodes} ({shown_names(names)}), operators {operators}"


def show_keys(group: SealedGroup, names: Collection[str] | None = None) -> None:
    """Show the holders of a group with their keys, for a person to approve."""
    for claim, one in zip(holders_of(group), group.everybody, strict=True):
        if names is None or not set(one.names).isdisjoint(names):
            render.say(f"  + {claim.text}", err=True)


@command("set", exits={1: "you answered no"})
@click.argument("key")
@option("--for rule RULE", "Nodes that can open it: role=db, NODE,… or all.")
@_level
@option("--type given_type TYPE", "Its type: string, plain, data (YAML) or file.", type=_TYPES)
@members_option
@operators_option
@trust_option
@flag("-y --yes", "Make a new group without a question.")
@json_flag
@in_clone(secret=True)
def set_command(
    clone: SealedClone,
    /,
    key: str,
    rule: str | None,
    level: str,
    given_type: str | None,
    trusted: tuple[str, ...],
    as_json: bool,
    **given: Any,  # noqa: ANN401 - the options about groups
) -> None:
    """Seal a value, from a prompt or standard input.

    RULE names the group: 'role=db' for all nodes with that role, names of nodes, or 'all'. Without
    --for and --type, a value keeps its group and type. A new one is a string.

    An existing group needs no secret. If neither the newest verified release nor you have approved
    its recipient, it is shown with its key and asks: a pull request may have put it there.

    A new group is shown with all keys and asks first; you must be one of its operators. It gets the
    operators of the other groups unless you name some. A node with a bad key is left out, as by
    'reseal', and the command fails after the value is sealed.

    Names of keys, groups and nodes are readable by everybody who has the release.

    Examples:
      localpuppet sealed set db::password --for role=db
      pwgen 32 1 | localpuppet sealed set db::password
      localpuppet sealed set tls.pem --type file --for web01.example.com < tls.pem
    """
    path = parse_path(f"{level}/{key}")
    before = clone.tree.value(path)
    if before is not None:
        clone.trust.refuse_moved(before, group=rule, kind=given_type)
    if rule is not None:
        name = parse_group_name(rule.replace(",", "+"), where="--for")
    elif before is not None:
        name = before.group
    else:
        raise click.UsageError("a new value needs --for: role=db, names of nodes, or all")
    group = clone.tree.group(name)
    clone.tree.refuse_twins(path, name)
    made: list[SealedGroup] = []
    faults: list[InvalidInputError] = []
    if group is None:
        group, faults = _made(clone, parse_rule(rule or "", where="--for"), **given)
        made = [group]
    else:
        _refuse_other_rule(group, rule)
        if given["members"] or given["operators"]:
            raise click.UsageError(
                f"the group {name} exists: 'localpuppet sealed reseal' adds holders to it"
            )
        require_trust(clone.trust, group, trusted)
    kind = ValueType(given_type or (before.type if before else ValueType.STRING))
    content = authoring.content_of(_read_value(), kind)
    value = authoring.set_value(clone.last_number(path), group, path, content, kind)
    clone.write(made, [value])
    if as_json:
        render.emit_json({"schema": 1, **_record(value, group), "made": bool(made)})
    else:
        render.emit(group_line(group))
    if faults:
        raise faults[0]


def _refuse_other_rule(group: SealedGroup, rule: str | None) -> None:
    if rule is not None and group.rule != parse_rule(rule, where="--for"):
        raise InvalidInputError(
            f"has the rule {group.rule}, and --for is {rule}",
            where=f"{PREFIX}/groups/{group.name}.yaml",
        )


def _made(
    clone: SealedClone,
    rule: str,
    *,
    members: Sequence[str],
    operators: Sequence[str],
    yes: bool,
) -> tuple[SealedGroup, list[InvalidInputError]]:
    """Return a new group, which a person has approved, and why nodes are left out of it."""
    named = parse_keys(members, "member")
    wanted = nodes_of_rules(clone.node, [rule], named)
    people = parse_keys(operators, "operator", plugins=True)
    if not people:
        people = _known_operators(clone)
    nodes = named if wanted is None else wanted[rule]
    # Where a file is gone, a new group with an earlier serial would undo what was revoked.
    last = clone.last_serial(parse_group_name(rule.replace(",", "+")))
    group, faults = authoring.new_group_of_good_keys(
        rule, members=nodes, operators=people, others=[*clone.tree.groups()], after=last
    )
    show_left_out(faults)
    if replace(group, members=()).opened_by(clone.identities) is None:
        raise InvalidInputError(
            "only an operator makes a group, and your identities open none of its operators' keys",
            where="--identity",
            hint="name yourself with --operator, and your file with --identity",
        )
    render.say(f"new group {group.name}, rule {rule}:", err=True)
    show_keys(group)
    confirm(f"make the group {group.name}", yes=yes)
    clone.trust.approve(group, [head_of(group), *holders_of(group)])
    return group, faults


def _known_operators(clone: SealedClone) -> authoring.Keys:
    """Return the operators of your other groups, as a release or you have approved them."""
    people: dict[str, tuple[AgeRecipient]] = {}
    for group in clone.tree.groups():
        if group.opened_by(clone.identities) is None:
            continue
        unknown = {claim.text for claim in clone.trust.unknown(group, holders=True)}
        if head_of(group).text in unknown:
            continue
        # Operators come first.
        for claim, one in zip(holders_of(group), group.operators, strict=False):
            if claim.text in unknown:
                continue
            if people.setdefault(one.label, (one.recipient,)) != (one.recipient,):
                raise InvalidInputError(
                    f"the operator {one.label} has another key in other groups",
                    where=f"{PREFIX}/groups/{group.name}.yaml",
                    hint="name all operators of the new group: --operator NAME=age1…",
                )
    return people


def _read_value() -> bytes:
    if render.on_terminal(sys.stdin):
        return str(click.prompt("value", hide_input=True, confirmation_prompt=True)).encode()
    data = sys.stdin.buffer.read(MAX_CONTENT + 1)
    if len(data) > MAX_CONTENT:
        raise InvalidInputError(f"has more than {MAX_CONTENT} bytes", where="standard input")
    return data


def _record(value: SealedValue, group: SealedGroup | None) -> dict[str, object]:
    names = [name for one in group.members for name in one.names] if group else []
    return {
        "key": value.key,
        "level": value.level,
        "group": value.group,
        "number": value.number,
        "serial": value.serial,
        "type": str(value.type),
        "nodes": names,
        "operators": [one.label for one in group.operators] if group else [],
    }


@command("get")
@click.argument("key")
@_level
@in_clone(secret=True)
def get_command(clone: SealedClone, key: str, level: str) -> None:
    """Print a value, with your identity.

    Examples:
      localpuppet sealed get db::password
      localpuppet sealed get tls.pem -i backup.txt > tls.pem
    """
    value = clone.value(key, level)
    clone.secret(clone.tree.group_of(value))
    content = clone.opener.content(value)
    end = b"\n" if value.type != ValueType.FILE and render.on_terminal(sys.stdout) else b""
    sys.stdout.flush()
    sys.stdout.buffer.write(content + end)
    sys.stdout.buffer.flush()


@command("edit", exits={1: "the editor failed"})
@click.argument("key")
@_level
@trust_option
@json_flag
@in_clone(secret=True)
def edit_command(
    clone: SealedClone, key: str, level: str, trusted: tuple[str, ...], as_json: bool
) -> None:
    """Change a value in your editor.

    The editor's file is in memory (/dev/shm), as are files that it writes beside it. The command
    starts $VISUAL, $EDITOR or vi.

    Examples:
      localpuppet sealed edit db::password
      EDITOR=nano localpuppet sealed edit app::settings --level nodes/web01
    """
    value = clone.value(key, level)
    clone.trust.refuse_moved(value)
    group = clone.tree.group_of(value)
    require_trust(clone.trust, group, trusted)
    clone.secret(group)
    before = clone.opener.content(value)
    content = authoring.content_of(_edited(before, value.key), value.type)
    changed = content != before
    if changed:
        number = clone.last_number(value.path)
        value = authoring.set_value(number, group, value.path, content, value.type)
        clone.write(values=[value])
    if as_json:
        render.emit_json({"schema": 1, **_record(value, group), "changed": changed})
    else:
        render.emit(group_line(group) if changed else "nothing changed")


@contextmanager
def _ending_by_signals() -> Iterator[None]:
    """Turn a signal that ends the process into an exit, so that files are removed."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _edited(content: bytes, name: str) -> bytes:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    memory = Path("/dev/shm")  # noqa: S108 - a directory of mode 0700 in it
    if not memory.is_mount():
        raise StateError(
            "is not in memory, so an edited secret could stay on disk", where=str(memory)
        )
    with (
        _ending_by_signals(),
        tempfile.TemporaryDirectory(dir=memory, prefix="localpuppet-sealed-") as directory,
    ):
        file = Path(directory, name.replace(":", "_"))
        file.touch(mode=0o600)
        file.write_bytes(content)
        done = subprocess.run(["sh", "-c", f'{editor} "$1"', "sh", file], check=False)  # noqa: S607
        if done.returncode != 0:
            raise StateError(f"ended with exit code {done.returncode}", where=editor)
        return file.read_bytes()


@command("list")
@json_flag
@in_clone()
def list_command(clone: SealedClone, as_json: bool) -> None:
    """List sealed values and groups; no secret is needed.

    Examples:
      localpuppet sealed list
      localpuppet sealed list --json | jq '.values[] | select(.group == "all")'
    """
    values = [_record(value, clone.tree.group(value.group)) for value in clone.tree.values()]
    groups = [*clone.tree.groups()]
    if as_json:
        names = [
            {"group": group.name, "rule": group.rule, "serial": group.serial,
             "members": [one.label for one in group.members]}
            for group in groups
        ]  # fmt: skip
        render.emit_json({"schema": 1, "values": values, "groups": names})
        return
    rows = [
        tuple(str(row[column]) for column in ("key", "level", "group", "number", "type"))
        for row in values
    ]
    head = ("KEY", "LEVEL", "GROUP", "NUMBER", "TYPE")
    render.emit(render.table(head, rows) if rows else "no value is sealed")
    for group in groups:
        render.emit(group_line(group))


@command("check", exits={0: "the work tree can become a release", 2: "it cannot"})
@json_flag
@in_clone()
def check_command(clone: SealedClone, as_json: bool) -> int:
    """Check sealed values, as 'release check' and 'release tag' do.

    It compares groups with the inventory, if that can be read, and with the newest verified
    release. It lists what a person should read before the release is signed: new members and their
    keys, other rules and operators, changed values with commit and author.

    Examples:
      localpuppet sealed check
      localpuppet sealed check --json | jq .changed
    """
    tree, node = clone.tree, clone.node
    rules: dict[str, str] = {}
    for name in tree.group_names():
        try:
            group = tree.group(name)
        except InvalidInputError:
            continue  # the check reports it
        rules |= {name: group.rule} if group else {}
    nodes = nodes_of_rules(node, {*rules.values()}, {}) if rules else None
    wanted = None if nodes is None else {name: nodes[rule] for name, rule in rules.items()}
    findings = node.check_sealed(clone.directory, wanted)
    if as_json:
        lists = {
            name: list(getattr(findings, name)) for name in ("problems", "warnings", "changed")
        }
        counts = {"groups": findings.groups, "values": findings.values}
        render.emit_json({"schema": 1, **counts, **lists})
    else:
        for kind in ("problems", "warnings", "changed"):
            for line in getattr(findings, kind):
                word = {"problems": "error", "warnings": "warning"}.get(kind, kind)
                render.say(f"{word}: {render.user_text(line)}", err=kind != "changed")
        values = render.counted(findings.values, "value")
        render.emit(f"{values} in {render.counted(findings.groups, 'group')}")
    return InvalidInputError.exit_code if findings.problems else 0
