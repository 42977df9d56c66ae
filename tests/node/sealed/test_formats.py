"""The files of values and groups: one form, nothing changed unnoticed, lengths hidden."""

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.node.sealed.age import AgeIdentity, NotOpenedError
from localpuppet.node.sealed.sealed_files import (
    MAX_GROUP_FILE,
    SealedGroup,
    SealedValue,
    ValueType,
    parse_rule,
)
from localpuppet.node.sealed.tree import SealedOpener, SealedTree
from tests.node.sealed.sealing import make_group, make_value, tree_of
from tests.rigs.long import with_sample

NODES = {f"db{number:02}.example.com": AgeIdentity.generate() for number in range(4)}
OPERATORS = {"alice": AgeIdentity.generate(), "bob": AgeIdentity.generate()}
GROUP, IDENTITY = make_group(NODES, OPERATORS)
VALUE = make_value(GROUP)
TREE = tree_of([GROUP], [VALUE])


def opener(*identities: AgeIdentity, tree: SealedTree = TREE) -> SealedOpener:
    return SealedOpener(tree, identities)


@pytest.mark.parametrize(
    "identity", [*NODES.values(), *OPERATORS.values()], ids=[*NODES, *OPERATORS]
)
def test_each_member_and_operator_opens_a_value(identity: AgeIdentity) -> None:
    assert opener(identity).content(VALUE) == b"correct horse"
    assert opener(identity).opened_groups() == ("role=db",)


def test_another_node_is_told_for_whom_a_value_is_sealed() -> None:
    stranger = opener(AgeIdentity.generate())
    assert stranger.opened_groups() == ()
    with pytest.raises(NotOpenedError, match="sealed for role=db, not for this node"):
        stranger.content(VALUE)


def test_the_files_are_yaml_with_two_lines_a_member() -> None:
    group = yaml.safe_load(GROUP.to_bytes())
    assert [name.split()[0] for name in group["members"]] == [*NODES]
    assert group["members"][f"db01.example.com {NODES['db01.example.com'].recipient}"]
    lines = GROUP.without(["db02.example.com"]).to_bytes().splitlines()
    assert len(GROUP.to_bytes().splitlines()) - len(lines) == 2
    value = yaml.safe_load(VALUE.to_bytes())
    assert {**value, "age": ""} == {
        "schema": 1,
        "group": "role=db",
        "serial": 1,
        "number": 1,
        "type": "string",
        "age": "",
    }


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return other bytes: flipped, replaced, left out, doubled, exchanged, cut off or moved."""
    at, other = (chance.randrange(len(data)) for _ in range(2))
    size = chance.choice([1, 1, 1, 2, 64])
    new = data
    match chance.randrange(8):
        case 0:
            new = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case 1:
            alphabet = b"ABCwxyz0189+/= \n\r\":#'-_"
            new = data[:at] + bytes([chance.choice(alphabet)]) + data[at + 1 :]
        case 2:
            new = data[:at] + data[at + size :]
        case 3:
            new = data[:at] + data[at : at + size] + data[at:]
        case 4:
            low, high = sorted((at, other))
            new = data[:low] + data[high : high + 1] + data[low + 1 : high]
            new += data[low : low + 1] + data[high + 1 :]
        case 5:
            new = data[:at]
        case 6:
            lines = data.splitlines(keepends=True)
            first, second = (chance.randrange(len(lines)) for _ in range(2))
            lines[first], lines[second] = lines[second], lines[first]
            new = b"".join(lines)
        case 7:
            new = data[:at] + chance.choice([b"\n", b" ", b"=", b"\0", b"# x\n"]) + data[at:]
    return new if new != data else data + b"\n"


def _value_is_noticed(data: bytes) -> bool:
    try:
        value = SealedValue.parse(data, path=VALUE.path)
        opener(NODES["db01.example.com"]).content(value)
    except LocalpuppetError:
        return True
    return False


def _group_is_noticed(data: bytes) -> bool:
    """Return whether a changed group is refused, or closed to those whose lines changed."""
    try:
        group = SealedGroup.parse(data, name=GROUP.name)
    except LocalpuppetError:
        return True
    if (group.rule, group.serial, group.recipient) != (GROUP.rule, GROUP.serial, GROUP.recipient):
        return not any(map(opener(tree=tree_of([group], [])).identity, [group])) and not any(
            group.opened_by([one]) for one in NODES.values()
        )
    changed = {*group.everybody} ^ {*GROUP.everybody}
    return bool(changed) and not any(
        one.names == other.names and group.opened_by([NODES.get(name, OPERATORS.get(name))])  # type: ignore[list-item]
        for one in changed
        for other in GROUP.everybody
        for name in one.names
        if one not in GROUP.everybody
    )


@pytest.mark.parametrize("noticed", [_value_is_noticed, _group_is_noticed])
@pytest.mark.parametrize("count", with_sample([500, 10_000], 500))
def test_every_mutation_of_a_file_is_noticed(noticed: Callable[[bytes], bool], count: int) -> None:
    chance = random.Random(count)  # noqa: S311 - cases of a test
    data = (VALUE if noticed is _value_is_noticed else GROUP).to_bytes()
    cases = (mutated(data, chance) for _ in range(count))
    assert [case for case in cases if not noticed(case)] == []


@pytest.mark.parametrize(
    "other",
    [
        {"path": "common/db::other"},
        {"path": "nodes/db::password"},
        {"number": 2},
        {"type": ValueType.PLAIN},
    ],
)
def test_a_value_that_was_copied_elsewhere_is_refused(other: dict[str, object]) -> None:
    fields = {name: getattr(VALUE, name) for name in SealedValue.__value_fields__}
    copied = SealedValue(**{**fields, **other})
    with pytest.raises(InvalidInputError, match="sealed for another key, group or number"):
        opener(NODES["db01.example.com"]).content(copied)


def test_a_value_of_another_group_or_of_an_old_identity_is_refused() -> None:
    web, _ = make_group(NODES, OPERATORS, name="role=web", identity=IDENTITY)
    moved = make_value(web)
    tree = tree_of([GROUP, web], [])
    fields = {name: getattr(moved, name) for name in SealedValue.__value_fields__}
    with pytest.raises(InvalidInputError, match="sealed for another key, group or number"):
        opener(NODES["db01.example.com"], tree=tree).content(
            SealedValue(**{**fields, "group": "role=db"})
        )
    newer, _ = make_group(NODES, OPERATORS, serial=2)
    with pytest.raises(InvalidInputError, match="serial 1 of role=db, which has serial 2"):
        opener(NODES["db01.example.com"], tree=tree_of([newer], [])).content(VALUE)


def test_a_wrap_with_another_identity_or_for_another_rule_does_not_count() -> None:
    name = "db01.example.com"
    mine = NODES[name]
    planted, _ = make_group({name: mine}, OPERATORS)
    swapped = GROUP.with_members(members=planted.members)
    assert GROUP.opened_by([mine]) == IDENTITY
    assert swapped.opened_by([mine]) is None
    other, _ = make_group({name: mine}, OPERATORS, name="role=web", identity=IDENTITY)
    assert GROUP.with_members(members=other.members).opened_by([mine]) is None


@pytest.mark.parametrize(("one", "other"), [(0, 64), (129, 256), (33_000, 40_000)])
def test_the_size_of_a_value_does_not_show_its_length(one: int, other: int) -> None:
    """Only the grease, of random length, differs between two sizes of one step."""

    def padded(length: int) -> set[int]:
        bodies = (make_value(GROUP, b"x" * length).age.rpartition(b"\n--- ")[2] for _ in range(3))
        return {len(body) for body in bodies}

    assert padded(one) == padded(other) != padded(2_000)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (ValueType.STRING, "pässword \"'\\\n".encode()),
        (ValueType.DATA, b'{"a":[1,null]}'),
        (ValueType.FILE, bytes(range(256)) * 100),
        (ValueType.FILE, b""),
    ],
)
def test_a_value_of_each_type_comes_back(kind: ValueType, content: bytes) -> None:
    value = make_value(GROUP, content, kind=kind)
    assert opener(IDENTITY, *OPERATORS.values()).content(value) == content


def test_one_key_under_two_names_is_refused_unless_they_are_a_pool() -> None:
    key = AgeIdentity.generate()
    pool = GROUP.wrap(IDENTITY, ["img2.example.com", "img1.example.com"], key.recipient)
    group = SealedGroup.parse(GROUP.with_members(members=[pool]).to_bytes(), name=GROUP.name)
    assert group.by_name["img1.example.com"] == group.by_name["img2.example.com"] == pool
    assert group.opened_by([key]) == IDENTITY
    again = GROUP.wrap(IDENTITY, ["web01.example.com"], key.recipient)
    with pytest.raises(InvalidInputError, match="have one key"):
        group.with_members(members=[again])


@pytest.mark.parametrize(
    "rule", ['a"b', "", "é", "role=db,", "role=db,,all", "role=db\nserial: 9", "x" * 2_000]
)
def test_a_rule_cannot_break_its_line(rule: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a rule"):
        parse_rule(rule)


def test_hostile_files_are_refused_within_limits(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="too large"):
        SealedGroup.parse(b"x" * (MAX_GROUP_FILE + 1), name="all")
    with pytest.raises(InvalidInputError, match=r"conflict markers.*sealed resolve role=db"):
        SealedGroup.parse(b"schema: 1\n<<<<<<< HEAD\n", name="role=db")
    values = tmp_path / "sealed" / "values" / "common"
    values.mkdir(parents=True)
    (values / "link.yaml").symlink_to("/etc/passwd")
    (values / "plain.txt").write_text("secret")
    tree = SealedTree.on_disk(tmp_path)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        tree.value("common/link")
    with pytest.raises(InvalidInputError, match=r"plain\.txt: is neither a group nor a value"):
        tree.refuse_others()
    with pytest.raises(InvalidInputError, match="is not LEVEL/KEY"):
        tree.value("../groups/all")


@pytest.mark.parametrize("name", ["bob", "db00.example.com"])
def test_an_operator_or_root_recovers_a_value_with_age_twice(tmp_path: Path, name: str) -> None:
    """As docs/how-to/seal-values.md says."""
    key = tmp_path / "key.txt"
    key.write_text(f"{({**OPERATORS, **NODES})[name]}\n")
    (tmp_path / "group.yaml").write_bytes(GROUP.to_bytes())
    (tmp_path / "value.yaml").write_bytes(VALUE.to_bytes())
    script = f"""set -eu
grep -A1 '  {name} ' group.yaml | tail -n1 | base64 -di | age -d -i key.txt >identity.txt
sed -n 's/^age: //p' value.yaml | base64 -di | age -d -i identity.txt
"""
    shown = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, check=True)
    assert b'"value":"correct horse"}' in shown.stdout
