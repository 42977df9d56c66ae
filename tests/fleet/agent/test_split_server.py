"""What the run side accepts, and what a compromised network side can do there."""

import asyncio
import json
import os
import pwd
import sys
import uuid
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.agent.split import (
    MAX_IDS,
    RemoteRunSide,
    RequestKind,
    SplitMessage,
    Spool,
    message_id,
)
from localpuppet.fleet.bus.bus_limits import MAX_TOKEN
from localpuppet.fleet.trust.key_files import OwnKey, TrustedKeys, public_pem
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier
from tests.doubles.identities import Person, person
from tests.doubles.ports import FakeLog
from tests.fleet.make import a_trigger
from tests.rigs.node import completed
from tests.rigs.split_member import NETWORK, STRANGER, Split
from tests.rigs.waiting import PATIENCE

A = NodeName.parse("a.example.com")
B = NodeName.parse("b.example.com")


def trigger(sender: MessageSigner, *, to: NodeName = A, by: NodeName = B) -> bytes:
    made = a_trigger(by, to, at=SystemClock().now().timestamp(), uuid=str(uuid.uuid4()))
    return sender.sign(made.to_payload(), MessageKind.TRIGGER)


def hear(*ids: str) -> bytes:
    return json.dumps({"verb": "receive", "ids": list(ids)}).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"\n", b"[]\n", b"{}\n", b'{"verb":"run"}\n', b'{"verb":["receive"]}\n'),
        b'{"verb":"hello","ids":["%s"]}\n' % (b"a" * 64),
        b'{"verb":"receive"}\n',
        b'{"verb":"receive","ids":[]}\n',
        b'{"verb":"receive","ids":"%s"}\n' % (b"a" * 64),
        b'{"verb":"receive","ids":["../../../etc/shadow"]}\n',
        b'{"verb":"receive","ids":["%s\\n"]}\n' % (b"a" * 64),
        b'{"verb":"receive","ids":["%s"]}\n' % (b"a" * 63),
        b'{"verb":"receive","ids":["%s",7]}\n' % (b"a" * 64),
        b'{"verb":"receive","ids":["%s","%s"]}\n' % (b"a" * 64, b"a" * 64),
        b'{"verb":"receive","verb":"hello"}\n',
        b'{"verb":"serve","ids":["%s","%s"]}\n' % (b"a" * 64, b"b" * 64),
        json.dumps({"verb": "receive", "ids": [f"{n:064x}" for n in range(MAX_IDS + 1)]}).encode(),
        b'{"verb":"receive","ids":["' + b"a" * 10_000 + b'"]}\n',
    ],
)
def test_a_line_that_is_no_question_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidInputError):
        SplitMessage.parse(line)


@pytest.mark.parametrize(
    "question",
    [
        SplitMessage(verb=RequestKind.HELLO),
        SplitMessage(verb=RequestKind.FOLLOW),
        SplitMessage(verb=RequestKind.SERVE, ids=(message_id(b"x"),)),
        SplitMessage(
            verb=RequestKind.RECEIVE, ids=tuple(message_id(bytes([n])) for n in range(MAX_IDS))
        ),
    ],
)
def test_a_question_is_read_as_it_was_written(question: SplitMessage) -> None:
    assert SplitMessage.parse(question.line()) == question


def test_only_the_network_sides_user_may_ask(split: Split) -> None:
    split.run_side()

    def ask(uid: int, gid: int) -> str:
        code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        code += 's.sendall(b\'{"verb":"hello"}\\n\'); print(s.recv(1000))'
        rights: dict[str, Any] = {"user": uid, "group": gid, "extra_groups": []}
        words = [sys.executable, "-c", code, str(split.run_socket)]
        return str(completed(*words, **rights, check=False))

    assert "a.example.com" in ask(NETWORK.pw_uid, NETWORK.pw_gid)
    assert "PermissionError" in ask(STRANGER.pw_uid, STRANGER.pw_gid)
    # If a user may open the file or is in its group, the kernel still reports their user id.
    assert "a.example.com" not in ask(STRANGER.pw_uid, NETWORK.pw_gid)
    split.run_socket.chmod(0o666)
    assert "a.example.com" not in ask(STRANGER.pw_uid, STRANGER.pw_gid)


def refused(split: Split, name: str, path: Path | None = None) -> str:
    """Name a message to the run side; return what it has against the file, which is removed."""
    answer = split.ask(hear(name))
    assert answer["ok"] is True
    if path is not None:
        path.unlink()
    return str(answer["refused"].get(name))


def of_b(split: Split) -> MessageSigner:
    return MessageSigner(
        SignerName.parse(B), OwnKey(split.other.state / "keys" / "node.pem").load()
    )


def test_no_file_of_the_spool_is_read_but_the_network_sides_own_messages(split: Split) -> None:
    split.run_side()
    missing, good, large = "0" * 64, trigger(of_b(split)), b"x" * (MAX_TOKEN + 1)
    identifier = message_id(good)
    assert "No such file" in refused(split, missing)
    assert "not those of its name" in refused(split, missing, split.spooled(missing, good))
    name = message_id(large)
    assert "too large" in refused(split, name, split.spooled(name, large))
    for owner in (pwd.getpwuid(0), STRANGER):
        path = split.spooled(identifier, good, owner=owner)
        assert "not the network side's own" in refused(split, identifier, path)

    path = split.spool / identifier
    path.symlink_to(split.node.state / "keys" / "node.pem")
    assert "is a symlink" in refused(split, identifier, path)
    os.mkfifo(path)
    os.chown(path, NETWORK.pw_uid, NETWORK.pw_gid)
    assert "not a regular file" in refused(split, identifier, path)
    path.mkdir()
    assert "not a regular file" in refused(split, identifier)
    path.rmdir()
    aside = split.spooled("aside", good)
    path.hardlink_to(aside)
    assert "2 names" in refused(split, identifier, path)
    aside.unlink()
    split.spool.rmdir()
    split.spool.symlink_to("/etc")
    assert "is a symlink" in refused(split, identifier)
    assert split.node.runs() == []


def test_the_run_side_rejects_what_no_trusted_member_signed_for_this_node(split: Split) -> None:
    """A compromised network side could pass on each of these."""
    run_side = split.run_side()
    stranger, own = person("stranger.example.com"), of_b(split)
    for forged, reason in (
        (trigger(stranger.signer, by=NodeName.parse("stranger.example.com")), "is trusted here"),
        (trigger(MessageSigner(SignerName.parse(B), stranger.key)), "the signature does not match"),
        (trigger(own, by=NodeName.parse("c.example.com")), "but the trigger says it is from c"),
        (trigger(own, to=NodeName.parse("c.example.com")), "not addressed to a.example.com"),
        (own.sign(b"{}", MessageKind.REQUEST), "trigger: has no schema number"),
    ):
        split.spooled(message_id(forged), forged)
        assert refused(split, message_id(forged)) == "None"
        split.wait_for(run_side, reason)
    assert split.ask(b'{"verb":"serve","ids":["%s"]}\n' % (b"0" * 64))["ok"] is False
    assert split.ask(b"\xff\n")["ok"] is False
    assert split.node.runs() == []

    good = trigger(own)
    split.spooled(message_id(good), good)
    assert refused(split, message_id(good)) == "None"
    split.wait_for(run_side, " changed")
    assert refused(split, message_id(good)) == "None"
    split.wait_for(run_side, "a duplicate")
    assert len(split.node.runs()) == 1


def test_an_inbox_that_cannot_be_written_ends_the_run_side(split: Split) -> None:
    run_side = split.run_side()
    (split.node.state / "agent" / "inbox.sqlite").unlink()
    for path in (split.node.state / "agent").iterdir():
        path.unlink()
    (split.node.state / "agent" / "inbox.sqlite").mkdir()
    message = trigger(of_b(split))
    split.spooled(message_id(message), message)
    assert split.ask(hear(message_id(message)))["ok"] is False
    assert run_side.process.wait(PATIENCE) == 1
    assert "inbox.sqlite" in run_side.said()


class Peer:
    """A run side that records requests, and what it finds in the spool."""

    def __init__(self, spool: Path, node: str = "a.example.com", key: str | None = None) -> None:
        self.spool = spool
        self.node = node
        self.key = key
        self.heard: list[bytes] = []
        self.away = False
        self.refused: dict[str, str] = {}

    async def ask(self, line: bytes) -> AsyncGenerator[bytes, None]:
        question = SplitMessage.parse(line)
        if self.away:
            raise UnavailableError("cannot be reached")
        self.heard += [(self.spool / name).read_bytes() for name in question.ids]
        if question.verb is RequestKind.HELLO:
            yield json.dumps({"ok": True, "node": self.node, "key": self.key}).encode() + b"\n"
        elif question.verb is RequestKind.SERVE:
            yield b'{"ok":true,"reply":null}\n'
        else:
            yield json.dumps({"ok": True, "refused": self.refused}).encode() + b"\n"


def gate(directory: Path, peer: Peer, *known: Person) -> RemoteRunSide:
    trusted = TrustedKeys(directory / "trusted")
    for found in known:
        trusted.pin(found.name, found.key.public_key())
    Spool(peer.spool).empty()
    return RemoteRunSide(
        peer.ask,
        verifier=lambda own: Verifier(trusted, None, SystemClock(), own=own),
        spool=Spool(peer.spool),
        log=FakeLog(),
    )


def test_the_network_side_passes_on_only_messages_with_a_trusted_signature(tmp_path: Path) -> None:
    b, a, stranger = person(B), person(A), person("stranger.example.com")
    peer = Peer(tmp_path / "spool", key=public_pem(a.key.public_key()).decode())
    made = gate(tmp_path, peer, b)

    async def use(tokens: Sequence[bytes]) -> None:
        await made.hello()
        await made.hear(tokens)
        for token in tokens:
            await made.serve(token)

    good, ours = trigger(b.signer), trigger(a.signer, by=A)
    request = b.signer.sign(b"{}", MessageKind.REQUEST)
    asyncio.run(use([good, b"rubbish", trigger(stranger.signer), good, request, ours]))
    assert peer.heard == [good, ours, request]
    assert list(peer.spool.iterdir()) == []


def test_an_unreachable_or_changed_run_side_is_an_error(tmp_path: Path) -> None:
    b, peer = person(B), Peer(tmp_path / "spool")
    made = gate(tmp_path, peer, b)
    with pytest.raises(UnavailableError, match="has not sent this node's name"):
        asyncio.run(made.hear([trigger(b.signer)]))
    asyncio.run(made.hello())
    peer.away = True
    with pytest.raises(UnavailableError, match="run side: cannot be reached"):
        asyncio.run(made.hear([trigger(b.signer)]))
    assert list(peer.spool.iterdir()) == []
    peer.away, peer.node = False, "b.example.com"
    with pytest.raises(UnavailableError, match=r"is that of b\.example\.com now"):
        asyncio.run(made.hello())


def test_a_message_that_the_run_side_could_not_read_is_sent_again(tmp_path: Path) -> None:
    b, peer = person(B), Peer(tmp_path / "spool")
    made = gate(tmp_path, peer, b)
    asyncio.run(made.hello())
    peer.refused = {"0" * 64: "cannot be read: Too many open files"}
    with pytest.raises(UnavailableError, match="could not read 1 messages"):
        asyncio.run(made.hear([trigger(b.signer)]))
    peer.refused = {}
    asyncio.run(made.hear([trigger(b.signer)]))


class OddPeer(Peer):
    """A run side of another version."""

    answer = b""

    async def ask(self, line: bytes) -> AsyncGenerator[bytes, None]:
        yield self.answer + b"\n"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "is not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "'ok' is missing"),
        (b'{"ok": 1}', "ok: must be true or false"),
        (b'{"ok": false}', "'error' is missing"),
        (b'{"ok": true}', "'node' is missing"),
        (b'{"ok": true, "node": "A"}', "node: node name 'A' must be in lower case"),
        (b'{"ok": true, "node": "a", "key": "PEM"}', "is not a public key"),
    ],
)
def test_an_unknown_answer_of_the_run_side_fails(tmp_path: Path, answer: bytes, text: str) -> None:
    peer = OddPeer(tmp_path / "spool")
    peer.answer = answer
    with pytest.raises(UnavailableError, match=f"sent an unknown answer: .*{text}"):
        asyncio.run(gate(tmp_path, peer).hello())
