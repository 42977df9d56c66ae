"""`localpuppet sealed`, as operators meet it: a clone, keys of age, and an inventory."""

import os
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.node.sealed.age import AgeIdentity, open_sealed
from localpuppet.node.sealed.sealed_files import SealedGroup, decode
from tests.node.sealed.sealing import make_group, make_value
from tests.rigs.member import Member
from tests.rigs.node import Done, Node, completed
from tests.rigs.sealed import HIERA

ALICE, BOB, THIEF = (AgeIdentity.generate() for _ in range(3))
# The point zero: the library panics when it is to seal to it.
LOW_ORDER = "age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq5cu47z"
NODES = {name: AgeIdentity.generate() for name in ("db01", "db02", "db03")}


class Author:
    def __init__(self, node: Node, top: Path) -> None:
        self.node, self.clone = node, top / "web"
        completed("git", "init", "-q", "--bare", top / "origin")
        completed("git", "init", "-q", self.clone)
        completed("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", top / "key")
        node.write("signers", f"alice@example.net {(top / 'key.pub').read_text()}")
        url = f"file://{top}/origin"
        self.source = {"git": url, "require_signed": True, "signers": "signers"}
        self.configure()
        for words in (
            ("remote", "add", "origin", url),
            ("config", "user.name", "Alice"),
            ("config", "user.email", "alice@example.net"),
            ("config", "gpg.format", "ssh"),
            ("config", "user.signingkey", str(top / "key.pub")),
        ):
            self.git(*words)
        self.identity = node.write("alice.txt", f"{ALICE}\n", 0o600)
        (self.clone / "manifest.yaml").write_text("modulepath: []\n")
        (self.clone / "manifest.lock").write_text("version: 1\nmodules: {}\nsources: {}\n")
        self.commit()

    def configure(self, **more: object) -> None:
        self.node.settings(allow_file_urls=True, sources={"web": {**self.source, **more}})

    def git(self, *words: str) -> str:
        return completed("git", *words, cwd=self.clone).out

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change")

    def release(self, tag: str) -> None:
        """Commit and tag, as 'release tag --sign' does."""
        self.commit()
        self.git("tag", "-s", "-m", f"release {tag}\n\nLocalpuppet-Source: web", tag)

    def run(
        self, *words: str, given: str | None = None, mine: bool = False, code: int | None = None
    ) -> Done:
        """Run 'sealed …' in the clone.

        Args:
            given: Its standard input.
            mine: Whether to pass the identity.
        """
        secret = ["--identity", str(self.identity)] if mine else []
        line = ["sealed", *words, "--directory", str(self.clone), *secret]
        if given is None:
            return self.node.run(*line, code=code)
        return self.node.feed(given, *line, code=code)

    def forget(self) -> None:
        shutil.rmtree(self.node.root / "person")

    def make(self, *names: str, rule: str = "role=db") -> Done:
        members = [f"--member={name}.example.com={NODES[name].recipient}" for name in names]
        people = [f"--operator={who}={key.recipient}" for who, key in PEOPLE.items()]
        words = ("set", "db::password", "--for", rule, *members, *people, "--yes")
        return self.run(*words, given="hunter2\n", mine=True)


PEOPLE = {"alice": ALICE, "bob": BOB}


@pytest.fixture
def author(node: Node, tmp_path: Path) -> Author:
    return Author(node, tmp_path)


def test_an_operator_makes_a_group_and_others_seal_without_a_secret(author: Author) -> None:
    made = author.make("db01", "db02")
    shown = "group role=db: 2 nodes (db01, db02), operators alice, bob\n"
    assert (made.code, made.out) == (0, shown)
    assert f"+ node db01.example.com {NODES['db01'].recipient}" in made.err
    author.run("set", "db::password", given="other", code=0)
    author.forget()
    refused = author.run("set", "db::password", given="other", code=2)
    assert "not in a verified release, and not approved by you:" in refused.err
    author.release("r1")
    changed = author.run("set", "db::password", "--json", given="other")
    assert {**changed.json, "nodes": []} == {
        **{"schema": 1, "key": "db::password", "level": "common", "group": "role=db", "number": 3},
        **{"serial": 1, "type": "string", "nodes": [], "operators": ["alice", "bob"]},
        "made": False,
    }
    assert author.git("status", "--short") == " M sealed/values/common/db::password.yaml\n"
    assert author.run("get", "db::password", mine=True).out == "other"


def plant(
    author: Author, *, name: str = "role=db", serial: int, operators: dict[str, AgeIdentity]
) -> SealedGroup:
    """Write a group that the thief made, and wrapped for operators as a pull request can."""
    group, _ = make_group({}, operators, name=name, serial=serial, identity=THIEF)
    (author.clone / "sealed" / "groups" / f"{name}.yaml").write_bytes(group.to_bytes())
    if serial > 1:
        value = make_value(group, b"planted", number=2)
        (author.clone / "sealed" / "values" / f"{value.path}.yaml").write_bytes(value.to_bytes())
    return group


def opened_by_thief(author: Author) -> list[str]:
    """Return the files of the clone that the thief's key opens."""
    opened = []
    for file in (author.clone / "sealed").rglob("*.yaml"):
        for text in re.findall(rb"YWdl[A-Za-z0-9+/]+={0,2}", file.read_bytes()):
            with suppress(LocalpuppetError):
                open_sealed(decode(text), [THIEF])
                opened.append(file.name)
    return opened


COMMANDS = {
    "set": ("set", "db::password"),
    "edit": ("edit", "db::password"),
    "reseal": ("reseal", f"--member=db02.example.com={NODES['db02'].recipient}", "--yes"),
    "revoke": ("revoke", "db01.example.com", "--yes"),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("serial", [1, 2])
def test_a_pull_request_that_plants_a_recipient_gets_no_secret(
    author: Author, words: tuple[str, ...], serial: int
) -> None:
    author.make("db01", "db02")
    author.release("r1")
    plant(author, serial=serial, operators=PEOPLE)
    before = opened_by_thief(author), author.git("diff")
    done = author.run(*words, given="next", mine=True)
    text = "has another recipient than r1" if serial == 1 else '? group role=db, rule "role=db", s'
    assert (done.code, text in done.err or "is in no group" in done.err) == (2, True)
    assert (opened_by_thief(author), author.git("diff")) == before
    author.commit()
    tagged = author.node.run("release", "tag", str(author.clone), "r2", "--no-push", "--sign")
    assert (tagged.code, text in tagged.err or "than the release" in tagged.err) == (2, True)


@pytest.mark.parametrize(("group", "kind"), [("role=web", "string"), ("role=db", "plain")])
def test_the_next_secret_does_not_follow_a_value_that_a_pull_request_moved(
    author: Author, group: str, kind: str
) -> None:
    author.make("db01")
    people = [f"--operator={who}={key.recipient}" for who, key in PEOPLE.items()]
    web = ("set", "w", "--for", "role=web", f"--member=web01={THIEF.recipient}", *people, "--yes")
    author.run(*web, given="w", mine=True, code=0)
    author.release("r1")
    author.run("set", "db::password", "--for", group, "--type", kind, given="theirs", code=0)
    author.commit()
    about = f"value common/db::password: string for role=db is now {kind} for {group}, number 1 → 2"
    assert about in author.run("check").out
    for words in (("set", "db::password"), ("edit", "db::password")):
        refused = author.run(*words, given="next", mine=True)
        assert (refused.code, "and in r1" in refused.err) == (2, True), refused.err
    right = ("--for", "role=db", "--type", "string")
    author.run("set", "db::password", *right, given="next", code=0)
    author.run("set", "db::password", given="again", code=0)
    assert "is now" not in author.run("check").out
    assert opened_by_thief(author) == ["role=web.yaml"]


def test_a_revocation_gives_a_planted_holder_nothing(author: Author) -> None:
    author.make("db01", "db02")
    author.release("r1")
    group = author.clone / "sealed" / "groups" / "role=db.yaml"
    real = group.read_bytes()
    db02, bob = (key.recipient.encode() for key in (NODES["db02"], BOB))
    for old in (db02, bob):
        group.write_bytes(real.replace(old, THIEF.recipient.encode()))
        refused = author.run("revoke", "db01.example.com", "--yes", mine=True)
        assert (refused.code, f"--trust {THIEF.recipient}" in refused.err) == (2, True)
    assert opened_by_thief(author) == []
    words = ("revoke", "db01.example.com", "--yes", f"--trust={THIEF.recipient}")
    author.run(*words, mine=True, code=0)
    assert opened_by_thief(author) == ["role=db.yaml"]
    author.run("revoke", "db02.example.com", "--yes", mine=True, code=0)


def test_a_planted_holder_gets_into_no_release_unseen(author: Author) -> None:
    author.make("db01")
    author.release("r1")
    group = author.clone / "sealed" / "groups" / "role=db.yaml"
    line = group.read_bytes().partition(b"members:\n")[2]
    db01 = NODES["db01"].recipient.encode()
    planted = line.replace(b"db01", b"db09").replace(db01, THIEF.recipient.encode())
    group.write_bytes(group.read_bytes() + planted)
    author.commit()
    tagged = author.node.run("release", "tag", str(author.clone), "r2", "--no-push", "--sign")
    text = f"? node db09.example.com {THIEF.recipient}"
    assert (tagged.code, text in tagged.err, db01.decode() in tagged.err) == (2, True, False)


def test_a_removed_holder_and_a_removed_group_do_not_come_back(author: Author) -> None:
    author.make("db01", "db02")
    author.commit()
    author.run("remove", "db02.example.com", "--yes")
    author.git("checkout", "-q", "--", "sealed")
    refused = author.run("revoke", "db01.example.com", "--yes", mine=True)
    assert (refused.code, "? node db02.example.com" in refused.err) == (2, True)
    shutil.rmtree(author.clone / "sealed")
    author.git("commit", "-q", "-a", "-m", "remove")
    again = author.make("db01")
    assert again.code == 0, again.err
    listed = author.run("list", "--json").json
    assert (listed["groups"][0]["serial"], listed["values"][0]["number"]) == (2, 2)
    ignored = author.run("set", "x", "--for", "role=db", f"--operator=c={BOB.recipient}", given="x")
    assert "'localpuppet sealed reseal' adds holders" in ignored.err


def test_a_forged_group_names_no_operator_of_a_new_one(author: Author) -> None:
    author.make("db01")
    author.release("r1")
    plant(author, name="zzz", serial=1, operators={"alice": ALICE, "bob": THIEF})
    words = ("set", "x", "--for", "all", f"--member=web={NODES['db02'].recipient}", "--yes")
    made = author.run(*words, given="x", mine=True, code=0)
    assert BOB.recipient in made.err
    assert THIEF.recipient not in made.err


def test_an_identity_that_was_revoked_is_not_sealed_to_again(author: Author) -> None:
    author.make("db01", "db02")
    author.release("r1")
    author.run("revoke", "db01.example.com", "--yes", mine=True)
    author.commit()
    author.git("checkout", "-q", "r1", "--", "sealed")
    refused = author.run("set", "db::password", given="next", mine=True)
    assert refused.code == 2
    assert "serial 1 is older than 2, which you approved" in refused.err
    author.commit()
    checked = author.run("check", "--json")
    assert "serial 1 is older than 2 in the history" in "".join(checked.json["problems"])


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"schema": 9, "repositories": {}}', '{"schema": 1, "repositories": []}']
    + [
        f'{{"schema": 1, "repositories": {{"x": {one}}}}}'
        for one in ("[]", '{"g": {"serial": true}}')
    ],
)
def test_a_damaged_record_of_approvals_is_not_taken_for_none(author: Author, text: str) -> None:
    author.make("db01")
    record = author.node.root / "person" / "localpuppet" / "approved-groups.json"
    record.write_text(text)
    refused = author.run("set", "db::password", given="x")
    assert (refused.code, "remove it: you are asked again" in refused.err) == (1, True)
    assert record.read_text() == text


def test_what_is_trusted_by_its_key_is_shown(author: Author) -> None:
    author.make("db01")
    group = author.clone / "sealed" / "groups" / "role=db.yaml"
    recipient = re.search("^recipient: (.*)$", group.read_text(), re.M)
    assert recipient is not None
    author.forget()
    done = author.run("set", "db::password", f"--trust={recipient[1]}", given="x")
    assert (done.code, '+ group role=db, rule "role=db", serial 1' in done.err) == (0, True)
    (author.node.root / "person" / "localpuppet" / "approved-groups.json").chmod(0o644)
    assert "others can read" in author.run("set", "db::password", given="x").err


def test_tags_that_do_not_verify_hide_no_release(author: Author) -> None:
    author.make("db01")
    author.release("r1")
    for number in range(25):
        author.git("tag", "-a", "-m", "false", f"zz{number}")
    author.run("set", "db::password", given="next", code=0)
    author.git("tag", "-d", "r1")
    author.forget()
    author.run("set", "db::password", given="next", code=2)
    assert "unknown: no tag verifies" in "".join(author.run("check", "--json").json["warnings"])


def test_what_is_sealed_follows_no_link(author: Author, tmp_path: Path) -> None:
    author.make("db01")
    values = author.clone / "sealed" / "values" / "common"
    shutil.move(values, tmp_path / "elsewhere")
    values.symlink_to(tmp_path / "elsewhere")
    revoke = ("revoke", "db01.example.com", "--yes")
    for words in (("set", "db::other", "--for", "role=db"), ("get", "db::password"), revoke):
        refused = author.run(*words, given="x", mine=True)
        assert (refused.code, "is a link" in refused.err) == (2, True)
    assert author.run("list").code == author.run("check").code == 2
    assert [file.name for file in (tmp_path / "elsewhere").iterdir()] == ["db::password.yaml"]


def test_a_group_keeps_its_rule_and_a_value_a_sane_number(author: Author) -> None:
    author.make("db01")
    author.git("add", "-A")
    group = author.clone / "sealed" / "groups" / "role=db.yaml"
    group.rename(group.with_name("all.yaml"))
    refused = author.run("set", "x", "--for", "all", given="x")
    assert "has the rule role=db, and --for is all" in refused.err
    author.git("checkout", "-q", "--", "sealed")
    value = author.clone / "sealed" / "values" / "common" / "db::password.yaml"
    value.write_text(value.read_text().replace("number: 1\n", "number: 999999999\n"))
    refused = author.run("set", "db::password", given="x")
    assert (refused.code, "number 999999999 follows 0" in refused.err) == (2, True)


def test_only_an_operator_makes_a_group_and_approves_it(author: Author) -> None:
    words = ("set", "x", "--for", "all", f"--operator=bob={BOB.recipient}")
    assert "only an operator makes a group" in author.run(*words, "--yes", given="x", mine=True).err
    words = ("set", "x", "--for", "all", f"--operator=alice={ALICE.recipient}")
    asked = author.run(*words, given="x", mine=True)
    assert (asked.code, "pass --yes" in asked.err) == (2, True)
    assert not (author.clone / "sealed").exists()


def test_members_join_leave_and_change_keys_only_as_a_person_approves(author: Author) -> None:
    author.make("db01")
    more = f"--member=db02.example.com={NODES['db02'].recipient}"
    assert "would reseal 1 group" in author.run("reseal", more, "--dry-run", mine=True).err
    assert "db02.example.com" not in author.run("list", "--json").out
    author.run("reseal", more, "--yes", mine=True, code=0)
    other = f"--member=db02.example.com={NODES['db03'].recipient}"
    refused = author.run("reseal", other, "--yes", mine=True)
    assert (refused.code, "--replace db02.example.com" in refused.err) == (2, True)
    author.run("reseal", other, "--replace=db02.example.com", "--yes", mine=True, code=0)
    twice = f"--member=web01.example.com={NODES['db03'].recipient}"
    assert "have one key" in author.run("reseal", twice, "--yes", mine=True).err
    pool = ("--pool=db02.example.com,web01.example.com", "--replace=db02.example.com")
    author.run("reseal", other, twice, *pool, "--yes", mine=True, code=0)
    listed = author.run("list", "--json").json["groups"][0]["members"]
    assert listed == ["db01.example.com", "db02.example.com,web01.example.com"]
    stranger = author.node.write("thief.txt", f"{THIEF}\n", 0o600)
    other = f"--member=db04.example.com={THIEF.recipient}"
    refused = author.run("reseal", other, "--yes", f"--identity={stranger}")
    assert "your identities do not open the group role=db" in refused.err


def test_a_stolen_node_is_revoked_and_its_secrets_are_listed(author: Author) -> None:
    author.make("db01", "db02")
    author.release("r1")
    done = author.run("revoke", "db01.example.com", "--yes", "--json", mine=True)
    assert done.json == {"schema": 1, "groups": ["role=db"], "values": 1}
    author.run("check", code=0)
    author.commit()
    exposed = author.run("exposed", "--node", "db01.example.com")
    assert exposed.out == "common/db::password  change this secret\n"
    author.run("set", "db::password", given="new", mine=True)
    author.commit()
    assert author.run("exposed", "--node", "db01.example.com").out.endswith("changed since\n")
    gone = author.run("remove", "db02.example.com", "--yes", "--json")
    assert gone.json == {"schema": 1, "groups": ["role=db"]}
    assert "db02.example.com is in no group" in author.run("remove", "db02.example.com").err


def test_a_revocation_that_was_interrupted_is_completed_by_repeating_it(author: Author) -> None:
    author.make("db01", "db02")
    for key in ("a", "z"):
        large = "x" * (40_000 if key == "z" else 1)
        author.run("set", key, "--for", "role=db", given=large, code=0)
    author.release("r1")
    words = ("revoke", "db01.example.com", "--yes", "--json")
    author.node.inside = ["prlimit", "--fsize=20000"]  # the write of the large value fails
    stopped = author.run(*words, mine=True)
    author.node.inside = []
    assert (stopped.code, "File too large" in stopped.err) == (1, True), stopped.err
    serials = [one["serial"] for one in author.run("list", "--json").json["values"]]
    assert serials == [2, 2, 1]
    half, *_ = author.run("check", "--json", code=2).json["problems"]
    assert half == (
        "sealed/groups/role=db.yaml.next: a revocation was interrupted: repeat 'localpuppet sealed"
        " revoke'"
    )
    other = author.run("revoke", "db02.example.com", "--yes", mine=True)
    assert (other.code, "'localpuppet sealed revoke db01.example.com'" in other.err) == (2, True)
    assert author.run("set", "z", given="next").code == 2
    assert author.run(*words, mine=True, code=0).json["values"] == 1
    assert author.run("check", "--json", code=0).json["problems"] == []
    assert [author.run("get", key, mine=True).out for key in ("a", "z")] == ["x", "x" * 40_000]
    assert "db01" not in author.run("list").out
    author.run("revoke", "db02.example.com", "--yes", mine=True, code=0)


def test_a_pull_request_begins_no_revocation(author: Author) -> None:
    author.make("db01", "db02")
    author.release("r1")
    file = author.clone / "sealed" / "groups" / "role=db.yaml"
    group = SealedGroup.parse(file.read_bytes(), name="role=db")
    theirs, _ = make_group({}, PEOPLE, serial=2, identity=THIEF)
    for planted, text in (
        (group.without(["db01.example.com"]), "is not a revocation of db01.example.com"),
        (theirs, f"--trust {THIEF.recipient}"),
    ):
        Path(f"{file}.next").write_bytes(planted.to_bytes())
        refused = author.run("revoke", "db01.example.com", "--yes", mine=True)
        assert (refused.code, text in refused.err) == (2, True), refused.err
    assert (file.read_bytes(), opened_by_thief(author)) == (group.to_bytes(), [])


def test_an_editor_works_in_memory_and_leaves_nothing(author: Author) -> None:
    author.make("db01")
    editor = author.node.write(
        "editor", '#!/bin/sh\necho "$1" >>"$0.log"\ncp "$1" "$1~"\necho edited >"$1"\n', 0o755
    )
    words = ["sealed", "edit", "db::password", f"--directory={author.clone}"]
    author.node.run(*words, f"--identity={author.identity}", EDITOR=str(editor), code=0)
    assert author.run("get", "db::password", mine=True).out == "edited"
    file = Path(Path(f"{editor}.log").read_text().strip())
    assert (str(file).startswith("/dev/shm/"), file.parent.exists()) == (True, False)
    again = author.node.run(*words, f"--identity={author.identity}", EDITOR="true")
    assert again.out == "nothing changed\n"
    failed = author.node.run(*words, f"--identity={author.identity}", EDITOR="false")
    assert (failed.code, "exit code 1" in failed.err) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_editor_that_is_ended_leaves_no_file(author: Author, number: int) -> None:
    author.make("db01")
    editor = author.node.write(
        "editor", '#!/bin/sh\necho "$1" >"$0.log"\nwhile [ -e "$1" ]; do sleep 0.1; done\n', 0o755
    )
    words = ["sealed", "edit", "db::password", f"--directory={author.clone}"]
    process = author.node.start(*words, f"--identity={author.identity}", EDITOR=str(editor))
    log = Path(f"{editor}.log")
    author.node.wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
    file = Path(log.read_text().strip())
    assert file.read_text() == "hunter2"
    process.send_signal(number)
    assert author.node.finish(process).code == 128 + number
    assert not file.parent.exists()


def test_a_release_is_checked_for_its_sealed_values(author: Author) -> None:
    author.make("db01")
    author.commit()
    checked = author.node.run("release", "check", str(author.clone), "--json", code=0)
    assert "unknown: without an inventory" in "".join(checked.json["warnings"])
    author.node.run("release", "tag", str(author.clone), "r1", "--no-push", "--sign", code=0)
    author.git("tag", "-d", "r1")
    author.forget()
    asked = author.node.run("release", "tag", str(author.clone), "r1", "--no-push", "--sign")
    assert (asked.code, f"? operator bob {BOB.recipient}" in asked.err) == (2, True)
    author.source = {"git": author.source["git"]}
    author.configure()
    refused = author.node.run("release", "tag", str(author.clone), "r1", "--no-push")
    assert (refused.code, "the source accepts unsigned tags" in refused.err) == (2, True)
    assert author.git("tag") == ""


def test_members_are_the_nodes_of_the_inventory_that_a_rule_selects(author: Author) -> None:
    node = author.node
    bus = {"bus": "sqlite", "buses": {"sqlite": {"path": str(node.root / "bus.sqlite")}}}
    sources = {"allow_file_urls": True, "sources": {"web": author.source}}
    node.settings(node="db01.example.com", **bus, **sources)
    made = node.run("keys", "init", "--json").json["sealing"]
    node.app("notify { 'x': }")
    node.write(
        "input.yaml", '{"app": "app/trunk", "classes": {"app": {}}, "parameters": {"role": "db"}}'
    )
    node.run("apply", code=0)
    node.wait_until(lambda: "db01" in node.run("nodes", "--query", "role=db").out)
    group = author.make(rule="role=db")
    assert "group role=db: 1 node (db01), operators alice, bob" in group.out, group.err
    author.release("r1")
    assert author.run("check").err == ""
    (rotated, kept) = node.run("keys", "init", "--sealing", "--replace", "--json").json["sealing"]
    assert (rotated != kept, [kept]) == (True, made)
    node.run("apply", code=0)
    node.wait_until(lambda: "has changed its key" in author.run("check").err)
    assert f"+ node db01.example.com {rotated}" in author.run("reseal", "--yes", mine=True).err
    again = author.run("reseal", "--yes", mine=True)
    assert again.out == "all groups have the members of their rules\n"
    assert os.access(node.state / "keys" / "sealing.pub", os.R_OK)


def test_a_node_with_a_bad_key_is_left_out_and_keeps_no_other_one_out(
    author: Author, tmp_path: Path
) -> None:
    author.make("db01")
    author.commit()
    bus = {"bus": "sqlite", "buses": {"sqlite": {"path": str(tmp_path / "bus.sqlite")}}}
    sources = {"allow_file_urls": True, "sources": {"web": author.source}}
    author.node.settings(**bus, **sources)
    group = author.clone / "sealed" / "groups" / "role=db.yaml"
    recipient = SealedGroup.parse(group.read_bytes(), name="role=db").recipient
    keys = {
        "db01": NODES["db03"].recipient,  # not the one that it had
        "db02": NODES["db02"].recipient,
        "evil1": NODES["db01"].recipient,
        "evil2": BOB.recipient,
        "evil3": recipient,
        "evil4": LOW_ORDER,
        "evil5": f"age1{'q' * 58}",
        "twin1": THIEF.recipient,
        "twin2": THIEF.recipient,
    }
    for name, key in keys.items():
        member = Member(NodeName.parse(f"{name}.example.com"), Node(tmp_path / name))
        member.node.settings(node=str(member.name), **bus)
        own = member.key.make(replace=False).public_key()
        TrustedKeys(author.node.root / "trusted").pin(SignerName(member.name), own)
        member.publish_entry("db", sealing=(key,))
    done = author.run("reseal", "--yes", mine=True)
    assert done.code == 2
    left = re.findall(r"^left out: group role=db: ([a-z0-9]+)\.", done.err, re.M)
    assert sorted(left) == [name for name in keys if name != "db02"], done.err
    listed = author.run("list", "--json").json["groups"][0]["members"]
    assert listed == ["db01.example.com", "db02.example.com"]
    after = SealedGroup.parse(group.read_bytes(), name="role=db")
    assert [one.recipient for one in after.members] == [NODES["db01"].recipient, keys["db02"]]
    again = author.run("reseal", "--yes", "--replace=db01.example.com", mine=True)
    assert (again.code, again.out) == (2, "")
    cure = "on evil1.example.com: 'localpuppet keys init --sealing --replace'"
    assert (cure in again.err, "Traceback" in again.err) == (True, False)


def test_a_bad_key_leaves_its_node_out_of_a_new_group_only(author: Author) -> None:
    keys = {
        "db01": NODES["db01"].recipient,
        "evil1": ALICE.recipient,
        "evil2": LOW_ORDER,
        "twin1": THIEF.recipient,
        "twin2": THIEF.recipient,
    }
    members = [f"--member={name}.example.com={key}" for name, key in keys.items()]
    people = f"--operator=alice={ALICE.recipient}"
    words = ("set", "db::password", "--for", "role=db", *members, people, "--yes")
    done = author.run(*words, given="hunter2", mine=True)
    assert (done.code, done.out) == (2, "group role=db: 1 node (db01), operators alice\n"), done.err
    left = re.findall(r"^left out: group role=db: ([a-z0-9]+)\.", done.err, re.M)
    assert left == [name for name in keys if name != "db01"], done.err
    twins = "twin1.example.com and twin2.example.com have one key (on one of them: 'localpuppet"
    assert (twins in done.err, "+ node evil" in done.err) == (True, False)
    assert author.run("get", "db::password", mine=True).out == "hunter2"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("DB::password", "--for", "role=db"), "values/common/DB::password.yaml"),
        (("db::key", "--for", "role=db", "--level", "Common"), "values/Common/db::key.yaml"),
        (("db::key", "--for", "role=DB"), "groups/role=DB.yaml"),
    ],
)
def test_names_that_differ_only_by_case_are_refused(
    author: Author, words: tuple[str, ...], named: str
) -> None:
    author.make("db01")
    people = f"--operator=alice={ALICE.recipient}"
    more = () if words[2] == "role=db" else (people, "--yes")
    done = author.run("set", *words, *more, given="x", mine=True)
    assert (done.code, f"sealed/{named}: differs from" in done.err) == (2, True), done.err
    author.run("set", "db::password2", "--for", "role=db", given="x", code=0)


def test_a_compiled_catalog_names_what_is_not_sensitive(author: Author) -> None:
    author.make("db01")
    for key, kind in (("db::plain", "plain"), ("db::kept", "string")):
        author.run("set", key, "--type", kind, "--for", "role=db", given="x")
    (author.clone / "hiera.yaml").write_text(HIERA)
    (author.clone / "data").mkdir()
    (author.clone / "data" / "common.yaml").write_text("x: 1\n")
    code = author.clone / "app" / "manifests" / "init.pp"
    code.parent.mkdir(parents=True)
    code.write_text(
        "class app {\n  $given = lookup('db::password').unwrap\n"
        "  notify { 'a': message => $given }\n"
        "  notify { 'b': message => lookup('db::plain') }\n"
        "  file { '/nonexistent': content => lookup('db::kept') }\n}\n"
    )
    author.node.write("web.yaml", "app: web/tags/r9\nclasses: [app]\n")
    words = ("release", "check", str(author.clone), "--compile", str(author.node.root / "web.yaml"))
    done = author.node.run(*words, "--json", code=0)
    assert done.json["catalogs"][0]["plain"] == ["common/db::password", "common/db::plain"]
    assert "web.yaml: common/db::plain is not Sensitive" in author.node.run(*words).err
