"""What authors change, checked as a release would be, and merged by real git."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.sealed.age import AgeIdentity, SealingKey
from localpuppet.node.sealed.authoring import (
    compare_members,
    content_of,
    merge_groups,
    new_group,
    revoke,
    set_value,
    with_keys,
)
from localpuppet.node.sealed.sealed_files import SealedGroup, SealedValue, ValueType
from localpuppet.node.sealed.sealed_findings import SealedFindings, check_sealed
from localpuppet.node.sealed.tree import SealedOpener, SealedTree
from localpuppet.node.sealed.trust import PastSealed, SealedRepository, exposed
from tests.node.sealed.sealing import tree_of

NAMES = [f"db{number:02}.example.com" for number in range(6)]
NODES = {name: AgeIdentity.generate() for name in NAMES}
KEYS = {name: (key.recipient,) for name, key in NODES.items()}
ALICE, BOB = AgeIdentity.generate(), AgeIdentity.generate()
OPERATORS = {"alice": (ALICE.recipient,), "bob": (BOB.recipient,)}
PATH = "common/db::password"
NOTHING = PastSealed()
PROGRAM = GitProgram(env={"PATH": "/usr/bin:/bin"}, allow_file=False, timeout=60)


def some(*names: str) -> dict[str, Sequence[str]]:
    return {name: KEYS[name] for name in names}


def made(*names: str) -> SealedGroup:
    return new_group("role=db", members=some(*names), operators=OPERATORS)  # type: ignore[arg-type]


def secret_of(group: SealedGroup) -> AgeIdentity:
    identity = group.opened_by([ALICE])
    assert identity is not None
    return identity


def joined(group: SealedGroup, *names: str) -> SealedGroup:
    return with_keys(group, secret_of(group), members=some(*names))  # type: ignore[arg-type]


def value_of(group: SealedGroup, text: str = "secret", before: int = 0) -> SealedValue:
    return set_value(before, group, PATH, text.encode(), ValueType.STRING)


def found(
    tree: SealedTree,
    released: SealedTree | None = None,
    *,
    past: PastSealed = NOTHING,
    is_signed: bool | None = True,
) -> SealedFindings:
    return check_sealed(
        tree, released=released, past=past, wanted={}, authors={}, data=(), is_signed=is_signed
    )


def opens(group: SealedGroup, value: SealedValue, key: AgeIdentity) -> bool:
    tree = tree_of([group], [value])
    return bool(SealedOpener(tree, [key]).opened_groups())


def test_the_difference_names_who_joined_left_and_changed_a_key() -> None:
    group = made(*NAMES[:4])
    fresh = AgeIdentity.generate().recipient
    wanted = {
        NAMES[0]: KEYS[NAMES[0]],
        NAMES[1]: (fresh, *KEYS[NAMES[1]]),
        NAMES[2]: (fresh,),
        NAMES[4]: KEYS[NAMES[4]],
        NAMES[5]: (),
    }
    difference = compare_members(group, wanted)
    assert (difference.new, difference.rotated, difference.replaced) == (
        (NAMES[4],),
        (NAMES[1],),
        (NAMES[2],),
    )
    assert (difference.gone, difference.keyless) == ((NAMES[3],), (NAMES[5],))


def test_a_new_member_is_two_lines_and_opens_what_was_sealed_before() -> None:
    group = made(*NAMES[:2])
    value, after = value_of(group), joined(group, NAMES[2])
    old, new = (one.to_bytes().splitlines() for one in (group, after))
    assert (len({*new} - {*old}), len({*old} - {*new})) == (2, 0)
    assert opens(after, value, NODES[NAMES[2]])
    assert not opens(after, value, NODES[NAMES[3]])


def test_a_group_needs_an_operator() -> None:
    with pytest.raises(InvalidInputError, match="needs an operator"):
        new_group("role=db", members={}, operators={})
    group = new_group("all", members={}, operators={"alice": (ALICE.recipient,)})
    with pytest.raises(InvalidInputError, match="would have no operator"):
        revoke([], group, ["alice"], secret_of(group))


def test_a_revoked_member_opens_no_later_value() -> None:
    group = made(*NAMES[:3])
    value = value_of(group)
    after, (resealed,) = revoke([value], group, [NAMES[0]], secret_of(group))
    assert (after.serial, resealed.number, value.number) == (2, 1, 1)
    tree = tree_of([after], [resealed])
    assert SealedOpener(tree, [NODES[NAMES[1]]]).content(resealed) == b"secret"
    assert not opens(after, resealed, NODES[NAMES[0]])
    assert found(tree, tree_of([group], [value])).problems == ()


@pytest.mark.parametrize(
    ("text", "kind", "content"),
    [
        (b"secret\n", ValueType.STRING, b"secret"),
        (b"a: [1, x]\n", ValueType.DATA, b'{"a":[1,"x"]}'),
        (b"\xff\n", ValueType.FILE, b"\xff\n"),
    ],
)
def test_what_is_written_becomes_a_content(text: bytes, kind: ValueType, content: bytes) -> None:
    assert content_of(text, kind) == content


def test_a_pool_has_one_key_and_a_number_has_an_end() -> None:
    group = made()
    with pytest.raises(InvalidInputError, match="another key than its pool"):
        with_keys(group, secret_of(group), members=some(*NAMES[:2]), pools=[NAMES[:2]])  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="no higher one"):
        value_of(group, before=999_999_999)


@pytest.mark.parametrize("text", [b"\n", b"\xff"])
def test_an_empty_or_binary_text_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInputError):
        content_of(text, ValueType.PLAIN)


def test_a_check_names_what_must_not_become_a_release() -> None:
    group = made(*NAMES[:2])
    first = value_of(group)
    second = value_of(group, "other", 1)
    released = tree_of([group], [second])
    assert found(released, released).problems == ()
    far = replace(second, number=1003)
    cases: Mapping[str, SealedTree] = {
        "number 1003 follows 2": tree_of([group], [far.seal(b"x", group.recipient)]),
        "serial 1002 follows 1": tree_of([replace(group, serial=1002)], []),
        "serial 2 has the recipient of serial 1": tree_of([replace(group, serial=2)], []),
        "other bytes than the release": tree_of([group], [second.seal(b"x", group.recipient)]),
        "number 1 is older than 2": tree_of([group], [first]),
        "has another recipient": tree_of([made(*NAMES[:2])], []),
        "which is missing": tree_of([], [second]),
        "neither a group nor a value": SealedTree.of_files({"groups/x.txt": b""}),
        "is not a sealed value": SealedTree.of_files({"values/common/x.yaml": b"x: 1\n"}),
        "has the key of": tree_of(
            [group, new_group("all", members={"other": KEYS[NAMES[0]]}, operators=OPERATORS)], []
        ),
    }
    for problem, tree in cases.items():
        assert any(problem in text for text in found(tree, released).problems), problem
    assert any("accepts unsigned" in text for text in found(released, is_signed=False).problems)


def test_a_check_shows_what_to_approve(tmp_path: Path) -> None:
    group = made(*NAMES[:2])
    value = value_of(group)
    released = tree_of([group], [value])
    after = joined(group.without([NAMES[0], "bob"]), NAMES[2])
    newer = value_of(after, "other", 1)
    findings = check_sealed(
        tree_of([after], [newer]),
        released=released,
        past=NOTHING,
        wanted={"role=db": some(NAMES[1], NAMES[3])},  # type: ignore[dict-item]
        authors={f"sealed/values/{PATH}.yaml": "1f0c2ab Alice"},
        data=[("data/common.yaml", tmp_path / "common.yaml")]
        if (tmp_path / "common.yaml").write_text(f"x: 1\n{PATH[7:]}: clear\n")
        else [],
        is_signed=True,
    )
    assert findings.changed == (
        "group role=db: operator bob removed",
        f"group role=db: member {NAMES[0]} removed",
        f"group role=db: member {NAMES[2]} added: {KEYS[NAMES[2]][0]}",
        f"value {PATH}: number 1 → 2 (1f0c2ab Alice)",
    )
    assert findings.warnings == (
        "group role=db has fewer than 2 operators",
        f"group role=db: {NAMES[3]} cannot open its values yet",
        f"group role=db: {NAMES[2]} still can open its values",
    )
    assert findings.problems == (
        "data/common.yaml: db::password is sealed, and is here in clear (remove it)",
    )


class Clone:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.git("init", "-q", "-b", "main")
        self.repository = SealedRepository(PROGRAM, path)

    def git(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        names = ["-c", "user.name=Alice", "-c", "user.email=alice@example.net"]
        return subprocess.run(
            ["git", *names, *words], cwd=self.path, check=check, capture_output=True, text=True
        )

    def commit(
        self, *groups: SealedGroup, values: Sequence[SealedValue] = (), branch: str = ""
    ) -> None:
        if branch:
            self.git("checkout", "-q", "-b", branch)
        files = {f"groups/{group.name}.yaml": group.to_bytes() for group in groups}
        files |= {f"values/{value.path}.yaml": value.to_bytes() for value in values}
        for name, data in files.items():
            path = self.path / "sealed" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change")

    def merged(self, branch: str) -> bool:
        """Merge a branch into main; return whether git did it alone."""
        return self.git("merge", "-q", "--no-edit", branch, check=False).returncode == 0

    @property
    def tree(self) -> SealedTree:
        return SealedTree.on_disk(self.path)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_git_merges_what_two_branches_did_to_neighbours(clone: Clone) -> None:
    group = made(*NAMES[:4])
    clone.commit(group, values=[value_of(group)])
    other = replace(value_of(group), path="common/db::other")
    clone.commit(group.without([NAMES[0]]), branch="removes")
    clone.git("checkout", "-q", "main")
    again = with_keys(
        group, secret_of(group), members={NAMES[2]: (AgeIdentity.generate().recipient,)}
    )
    clone.commit(again, values=[other.seal(b"x", group.recipient)])
    assert clone.merged("removes")
    merged = clone.tree.group("role=db")
    assert merged is not None
    assert [one.label for one in merged.members] == NAMES[1:4]
    assert found(clone.tree).problems == ()
    assert len(clone.tree.paths()) == 2


def test_two_appends_conflict_and_are_resolved(clone: Clone) -> None:
    group = made(*NAMES[:3])
    clone.commit(group)
    clone.commit(joined(group, NAMES[3]).without([NAMES[0]]), branch="adds")
    clone.git("checkout", "-q", "main")
    clone.commit(joined(group, NAMES[4]))
    assert not clone.merged("adds")
    assert any("sealed resolve role=db" in text for text in found(clone.tree).problems)
    assert clone.repository.conflicts() == ("role=db",)
    resolved = merge_groups(*clone.repository.sides("role=db"))
    assert [one.label for one in resolved.members] == NAMES[1:5]
    clone.commit(resolved)
    assert found(clone.tree).problems == ()
    assert opens(resolved, value_of(resolved), NODES[NAMES[3]])


def test_two_rotations_conflict_and_are_not_merged(clone: Clone) -> None:
    group = made(*NAMES[:3])
    clone.commit(group)
    for branch, name in (("one", NAMES[0]), ("", NAMES[1])):
        clone.commit(revoke(clone.tree.values(), group, [name], secret_of(group))[0], branch=branch)
        clone.git("checkout", "-q", "main")
    assert not clone.merged("one")
    with pytest.raises(InvalidInputError, match="git checkout --theirs"):
        merge_groups(*clone.repository.sides("role=db"))


def test_a_member_that_two_branches_changed_is_not_merged() -> None:
    group = made(*NAMES[:2])
    sides = [
        with_keys(group, secret_of(group), members={NAMES[0]: (AgeIdentity.generate().recipient,)})
        for _ in range(2)
    ]
    with pytest.raises(InvalidInputError, match=f"{NAMES[0]} was changed in both"):
        merge_groups(group, *sides)


def test_a_clean_merge_that_undoes_a_removal_is_refused(clone: Clone) -> None:
    group = made(*NAMES[:3])
    value = value_of(group)
    clone.commit(group, values=[value])
    later = replace(value, path="common/db::later")
    clone.commit(group, values=[later.seal(b"new", group.recipient)], branch="sets")
    clone.git("checkout", "-q", "main")
    after, values = revoke(clone.tree.values(), group, [NAMES[0]], secret_of(group))
    clone.commit(after, values=values)
    assert clone.merged("sets")
    (problem,) = found(clone.tree).problems
    assert "db::later.yaml: is sealed for serial 1 of role=db, which has serial 2" in problem
    assert "change this secret with 'localpuppet sealed set': a removed member" in problem


def test_what_the_history_had_is_not_put_back(clone: Clone) -> None:
    group = made(*NAMES[:2])
    old, new = value_of(group), value_of(group, "new", 1)
    clone.commit(group, values=[old])
    clone.commit(values=[new])
    clone.git("rm", "-q", f"sealed/values/{PATH}.yaml")
    clone.git("commit", "-q", "-m", "remove")
    since = clone.git("rev-parse", "HEAD").stdout.strip()
    clone.commit(revoke([], group, [NAMES[0]], secret_of(group))[0])
    clone.commit(group, values=[old])
    past = PastSealed(
        groups=clone.repository.past("groups", since=since).groups,
        values=clone.repository.past(f"values/{PATH}.yaml").values,
    )
    assert past.serials(lambda _: 1) == {"role=db": 2}
    assert past.numbers(lambda _: 0) == {PATH: 2}
    serial, number = found(clone.tree, tree_of([group], []), past=past).problems
    assert "serial 1 is older than 2 in the history" in serial
    assert "number 1 is older than 2 in the history" in number


def test_a_number_is_not_taken_back_before_a_release_has_it() -> None:
    group = made(*NAMES[:2])
    values = [value_of(group, f"text {number}", number) for number in range(4)]
    released = tree_of([group], values[:1])
    false = replace(values[0], number=999_999_999), replace(group, serial=999_999_999)
    past = PastSealed(groups=(group, false[1]), values=(*values, false[0]))
    (problem,) = found(tree_of([group], [values[2]]), released, past=past).problems
    assert "number 3 is older than 4 in the history" in problem
    for value in (values[0], values[3]):  # as in the release, and the last one
        assert found(tree_of([group], [value]), released, past=past).problems == ()


def test_a_name_of_an_author_takes_no_other_row(clone: Clone) -> None:
    clone.commit(made(NAMES[0]))
    since = clone.git("rev-parse", "HEAD").stdout.strip()
    value = clone.path / "sealed" / "values" / f"{PATH}.yaml"
    value.parent.mkdir(parents=True)
    value.write_text("x")
    clone.git("add", "-A")
    clone.git("-c", "user.name=Eve\x01abcdef0 Alice", "commit", "-q", "-m", "x")
    (author,) = clone.repository.authors(since).values()
    assert "Eve" in author


def test_the_history_shows_what_a_node_and_an_operator_could_open(clone: Clone) -> None:
    group = made(*NAMES[:2])
    old = value_of(group)
    kept = replace(old, path="common/db::kept").seal(b"kept", group.recipient)
    clone.commit(group, values=[old, kept])
    after, values = revoke(clone.tree.values(), group, [NAMES[0], "bob"], secret_of(group))
    clone.commit(after, values=values)
    clone.commit(values=[value_of(after, "changed", 1)])
    past = clone.repository.past()
    expected = {"common/db::kept": True, PATH: False}
    assert exposed(clone.tree, past, name=NAMES[0], operator=False) == expected
    assert exposed(clone.tree, past, name="bob", operator=True) == expected
    assert exposed(clone.tree, past, name=NAMES[1], operator=False) == dict.fromkeys(expected, True)
    with pytest.raises(InvalidInputError, match="bob was never in a group"):
        exposed(clone.tree, past, name="bob", operator=False)
    with pytest.raises(InvalidInputError, match=f"did you mean '{NAMES[0]}'"):
        exposed(clone.tree, past, name="db00", operator=False)


def test_a_history_that_was_cut_off_is_not_taken_for_all(clone: Clone, tmp_path: Path) -> None:
    group = made(*NAMES[:2])
    clone.commit(group, values=[value_of(group)])
    clone.commit(group.without([NAMES[0]]))
    shallow = tmp_path / "shallow"
    clone.git("clone", "-q", "--depth=1", f"file://{clone.path}", str(shallow))
    past = SealedRepository(PROGRAM, shallow).past()
    assert past.is_cut
    assert any("git fetch --unshallow" in one for one in found(clone.tree, past=past).warnings)
    with pytest.raises(InvalidInputError, match="only a part of the history"):
        exposed(clone.tree, past, name=NAMES[1], operator=False)


def test_a_sealing_key_is_private_and_has_two_identities_while_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = SealingKey(tmp_path / "keys")
    assert (key.identities(), key.recipients()) == ((), ())
    first = key.make()
    assert key.make() == first == key.recipients()
    assert key.path.stat().st_mode & 0o777 == 0o600
    second = key.make(replace=True)
    assert second == (second[0], *first) == key.recipients()
    assert key.make(replace=True)[1] == second[0]
    group = new_group("all", members={NAMES[0]: second}, operators=OPERATORS)
    assert group.opened_by(key.identities()) is not None
    handed = tmp_path / "credentials"
    handed.mkdir()
    (handed / "sealing.key").write_text(f"{NODES[NAMES[0]]}\n")
    (handed / "sealing.key").chmod(0o600)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(handed))
    assert key.identities() == (NODES[NAMES[0]],)
    (handed / "sealing.key").chmod(0o644)
    with pytest.raises(InvalidInputError, match="others can read"):
        key.identities()


def test_a_key_that_was_made_in_advance_is_kept(tmp_path: Path) -> None:
    key = SealingKey(tmp_path)
    subprocess.run(["age-keygen", "-o", key.path], check=True, capture_output=True)
    key.path.chmod(0o600)
    shown = subprocess.run(
        ["age-keygen", "-y", key.path], check=True, capture_output=True, text=True
    )
    assert key.make() == (shown.stdout.strip(),)
