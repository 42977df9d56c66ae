"""What an author changes in `sealed/`: values, groups and their members, as files to write.

Everything that needs a secret takes the identity of the group, which an operator's own opens; `set`
takes none.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats import strict_yaml
from localpuppet.base.formats.strict_json import canonical
from localpuppet.base.value import Value
from localpuppet.node.sealed.age import AgeIdentity, AgeRecipient, seal
from localpuppet.node.sealed.sealed_files import (
    MAX_NUMBER,
    GroupMember,
    SealedGroup,
    SealedValue,
    ValueType,
    parse_group_name,
    parse_rule,
)

# Names → the keys that each has, the newest first: a node has two while it changes its own.
Keys = Mapping[str, Sequence[AgeRecipient]]
NONE: Keys = MappingProxyType({})


class MemberDifference(Value):
    """How the members of a group differ from the nodes of its rule.

    Attributes:
        new: Nodes that are no members yet.
        rotated: Members whose entry, signed with the key that is trusted, has their old key, too.
        replaced: Members with another key, which nothing proves to be theirs.
        gone: Members that the rule does not include.
        keyless: Nodes of the rule that publish no sealing key.
    """

    new: tuple[str, ...] = ()
    rotated: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    keyless: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.rotated or self.replaced or self.gone)


def compare_members(group: SealedGroup, wanted: Keys) -> MemberDifference:
    """Return how a group differs from the nodes of its rule and their keys."""
    kinds: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    known = group.by_name
    for name in sorted(wanted):
        member, keys = known.get(name), wanted[name]
        if not keys or (member is not None and member.recipient == keys[0]):
            continue
        kind = "new" if member is None else "rotated" if member.recipient in keys else "replaced"
        kinds[kind] += (name,)
    return MemberDifference(
        **kinds,
        gone=tuple(one.label for one in group.members if wanted.keys().isdisjoint(one.names)),
        keyless=tuple(sorted(name for name in wanted if not wanted[name])),
    )


def keys_of(group: SealedGroup) -> Keys:
    """Return the keys of all members."""
    return {name: (one.recipient,) for one in group.members for name in one.names}


def without_gone(group: SealedGroup, wanted_of: Mapping[str, Keys]) -> SealedGroup:
    """Return a group without the members that are gone, if its wanted nodes are known."""
    gone = compare_members(group, wanted_of.get(group.name, keys_of(group))).gone
    return group.without([name for label in gone for name in label.split(",")])


def owners_of_keys(groups: Iterable[SealedGroup], rules: Iterable[Keys]) -> dict[str, set[str]]:
    """Return the names that have each key: in groups, or as nodes of rules that publish it."""
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for group in groups:
        owners[group.recipient].add(f"the group {group.name}")
        for one in group.everybody:
            owners[one.recipient].update(one.names)
    for nodes in rules:
        for name, keys in nodes.items():
            for key in keys[:1]:
                owners[key].add(name)
    return owners


def faults_of_keys(
    group: SealedGroup,
    wanted: Keys,
    difference: MemberDifference,
    owners: Mapping[str, Collection[str]],
    *,
    pools: Sequence[Sequence[str]] = (),
    replaced: Collection[str] = (),
) -> dict[str, InvalidInputError]:
    """Return the nodes that must not join a group with their keys.

    Args:
        owners: See `owners_of_keys`.
    """
    faults = {}
    for name in (*difference.new, *difference.rotated, *difference.replaced):
        known, key = group.by_name.get(name), wanted[name][0]
        same = {name, *(known.names if known else ())}.union(*(one for one in pools if name in one))
        others = {*owners[key]} - same
        fault = _fault_of_key(key, name, others)
        place = "one of them" if others and others <= {*difference.new} else name
        hint = f"on {place}: 'localpuppet keys init --sealing --replace'"
        if not fault and name in difference.replaced and name not in replaced:
            fault = "another key than before, which no entry proves"
            hint = f"if it was reinstalled: --replace {name}"
        if fault:
            where = f"group {group.name}: {name}"
            faults[name] = InvalidInputError(fault, where=where, hint=hint)
    return faults


def _fault_of_key(key: AgeRecipient, name: str, others: Collection[str]) -> str:
    """Return why nothing must be sealed to the key of a node; empty if it is good."""
    if others:
        return f"{min(others)} and {name} have one key"
    try:
        seal(b"", key)
    except InvalidInputError as error:
        return str(error)
    return ""


def new_group(rule: str, *, members: Keys, operators: Keys, after: int = 0) -> SealedGroup:
    """Return a new group, whose serial follows `after`, that of an earlier one with this name."""
    if not operators:
        raise InvalidInputError(
            "a new group needs an operator, who can add nodes to it later",
            where=rule,
            hint="--operator NAME=age1…, which 'age-keygen' makes",
        )
    identity = AgeIdentity.generate()
    group = SealedGroup(
        name=parse_group_name(rule.replace(",", "+"), where="--for"),
        rule=parse_rule(rule, where="--for"),
        recipient=identity.recipient,
        serial=after + 1,
        operators=(),
        members=(),
    )
    return with_keys(group, identity, members=members, operators=operators)


def new_group_of_good_keys(
    rule: str, *, members: Keys, operators: Keys, others: Iterable[SealedGroup], after: int
) -> tuple[SealedGroup, list[InvalidInputError]]:
    """Return a new group beside others, and why nodes with bad keys are left out of it."""
    empty = new_group(rule, members={}, operators=operators)
    owners = owners_of_keys([*others, empty], [members])
    faults = faults_of_keys(empty, members, compare_members(empty, members), owners)
    good = {name: keys for name, keys in members.items() if name not in faults}
    return new_group(rule, members=good, operators=operators, after=after), [*faults.values()]


def with_keys(
    group: SealedGroup,
    identity: AgeIdentity,
    *,
    members: Keys = NONE,
    operators: Keys = NONE,
    pools: Sequence[Sequence[str]] = (),
) -> SealedGroup:
    """Return a group with its identity wrapped for more names, or for other keys of them.

    Members without a key are left out. The names of one of the `pools` share one key, and become
    one member.
    """
    pool_of = {name: tuple(pool) for pool in pools for name in pool}
    names: dict[tuple[str, ...], Sequence[AgeRecipient]] = {}
    for name, keys in members.items():
        if keys and names.setdefault(pool_of.get(name, (name,)), keys)[0] != keys[0]:
            raise InvalidInputError("has another key than its pool", where=f"--pool: {name}")
    return group.with_members(
        members=[group.wrap(identity, one, keys[0]) for one, keys in names.items()],
        operators=[group.wrap(identity, [name], keys[0]) for name, keys in operators.items()],
    )


def content_of(text: bytes, kind: ValueType) -> bytes:
    """Return the content to seal of what an author wrote."""
    if kind == ValueType.FILE:
        return text
    try:
        decoded = text.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        hint = "--type file keeps all bytes"
        raise InvalidInputError("is not UTF-8", where="value", hint=hint) from error
    if kind == ValueType.DATA:
        return canonical(strict_yaml.parse(text, where="value"))
    if not decoded:
        raise InvalidInputError("is empty", where="value")
    return decoded.encode()


def set_value(
    before: int, group: SealedGroup, path: str, content: bytes, kind: ValueType
) -> SealedValue:
    """Return a value with the number after the highest that it ever had; 0 before a new one."""
    if before >= MAX_NUMBER:
        raise InvalidInputError(
            f"has had the number {before}, and there is no higher one",
            where=f"sealed/values/{path}.yaml",
            hint="seal it under another key",
        )
    value = SealedValue(
        path=path, group=group.name, serial=group.serial, number=before + 1, type=kind, age=b""
    )
    return value.seal(content, group.recipient)


def revoke(
    values: Iterable[SealedValue],
    group: SealedGroup,
    names: Collection[str],
    identity: AgeIdentity,
    *,
    after: int = 0,
    begun: SealedGroup | None = None,
) -> tuple[SealedGroup, tuple[SealedValue, ...]]:
    """Return a group with a new identity, without some members, and its values sealed to that.

    The numbers of the values stay: their contents are the same, and the members still know them.
    The serial is higher than `after`, the highest of the history. With `begun`, the group that an
    interrupted revocation made, these are the values that it left.
    """
    renewed = begun or _renewed(group, names, after)
    sealed = [
        replace(value, serial=renewed.serial).seal(
            value.open(group.recipient, [identity]), renewed.recipient
        )
        for value in values
        if value.group == group.name and value.serial == group.serial
    ]
    return renewed, tuple(sealed)


def _renewed(group: SealedGroup, names: Collection[str], after: int) -> SealedGroup:
    fresh = AgeIdentity.generate()
    kept = group.without(names)
    if not kept.operators:
        raise InvalidInputError("would have no operator", where=group.name)
    bare = replace(
        kept,
        recipient=fresh.recipient,
        serial=max(group.serial, after) + 1,
        operators=(),
        members=(),
    )
    return bare.with_members(
        members=[bare.wrap(fresh, one.names, one.recipient) for one in kept.members],
        operators=[bare.wrap(fresh, one.names, one.recipient) for one in kept.operators],
    )


def merge_groups(base: SealedGroup, ours: SealedGroup, theirs: SealedGroup) -> SealedGroup:
    """Return a group with the members that two branches added and removed."""
    if len({(one.serial, one.recipient, one.rule) for one in (ours, theirs)}) > 1:
        raise InvalidInputError(
            f"has serial {ours.serial} here and {theirs.serial} there, or another rule",
            where=f"sealed/groups/{ours.name}.yaml",
            hint="take one branch's file whole ('git checkout --theirs FILE'), then run"
            " 'localpuppet sealed check', which names what to seal again",
        )
    with errors_at(f"sealed/groups/{ours.name}.yaml"):
        return replace(ours, members=(), operators=()).with_members(
            members=_merged(base.members, ours.members, theirs.members),
            operators=_merged(base.operators, ours.operators, theirs.operators),
        )


def _merged(*lists: Sequence[GroupMember]) -> Iterator[GroupMember]:
    base, ours, theirs = ({one.label: one for one in members} for members in lists)
    for label in sorted({*ours, *theirs}):
        was, here, there = base.get(label), ours.get(label), theirs.get(label)
        result = there if here == was else here
        if here is not None and there is not None and here.recipient == there.recipient:
            result = here  # wrapped twice
        elif was not in (here, there):
            raise InvalidInputError(f"{label} was changed in both branches")
        if result is not None:
            yield result
