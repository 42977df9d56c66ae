"""Records of a node that was taken over: each reader accepts or refuses them, in one line."""

import json
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.packed import unpacked
from localpuppet.fleet.bus.bus_limits import MAX_ENTRY
from localpuppet.fleet.cli.nodes import cells, wrong_clocks
from localpuppet.fleet.cli.requests import shown_reply
from localpuppet.fleet.edges.cycles import relations
from localpuppet.fleet.edges.links import links_of
from localpuppet.fleet.exports import resource as exports
from localpuppet.fleet.exports.collectors import CollectPolicy, Search, choose, proposed
from localpuppet.fleet.history.history_records import RUNS, parse_day
from localpuppet.fleet.inventory.admission import ClaimPolicy, Tombstone, refusal
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.presence import NodeRow, believe
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.reading import outlived, unlisted_nodes
from localpuppet.fleet.kept_catalogs import unpack_catalog
from localpuppet.fleet.requests.request import NodeReply, Request
from localpuppet.fleet.triggers.cause import Trigger, TriggerOutcome
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.fleet.trust.signing import MessageKind, Signed, Verifier
from tests.doubles.identities import person
from tests.doubles.inventory import MemoryInventory
from tests.doubles.ports import FakeClock
from tests.fleet.inventory.entries import entry
from tests.fleet.make import (
    UUID,
    a_catalog,
    a_day,
    a_resource,
    a_summary,
    a_trigger,
    an_end,
    noon,
    resource,
)

WEB = person("web01.example.com")
NODE, DB = NodeName(WEB.name), NodeName("db01.example.com")
NOW = datetime(2026, 11, 20, 20, 43, tzinfo=UTC)
EVIL = "\x1b[2J\u202e\u2028\x00\n\r\x9b"
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")
SINCE = "2026-11-20T20:00:00Z"
ROLLOUT = {"id": "20261122T110000Z-0a1b", "epoch": 1}
HOLD = {"owner": "ci", "reason": "work", "since": SINCE, "until": None}
LAST = to_record(an_end(NOW.timestamp() - 30, release="web/tags/r1", run_interval=1800.0))
OUTCOME = {"sender": "a", "uuid": UUID, "timestamp": 5, "run": None, "outcome": "failed"}
PRESENCE: dict[str, Any] = {
    **{"schema": 1, "node": NODE, "at": SINCE, "version": "1", "state": "idle", "cause": None},
    **{"started_at": SINCE, "has_entry": True, "run_interval": 1800, "waiting": 0, "blocked": None},
    **{"holds": [HOLD], "other_agent_since": None, "last_run": LAST, "release_digest": "ab"},
    **{"rollback": None, "confirmation": None, "assignment": {"by": "x"}, "outcomes": [OUTCOME]},
}
ENTRY = entry(
    NODE,
    at=100.5,
    facts={"os": {"family": "Debian"}, "networking": {"ip": "10.0.0.1", "interfaces": {"e": {}}}},
    roles=("web",),
    kicks=('role="web"',),
    paths=((DB,),),
)
CLAIMS = ClaimPolicy.parse(b"*\t*\t10.0.0.0/8\n", where="claims")
COLLECTS = CollectPolicy.parse(b"*\tFile\t*\tguarded\n", where="policy")
WORST: list[Any] = [None, True, 2**63 - 1, 1e308, "", EVIL, {EVIL: EVIL}, ["a", EVIL, 1], [{}]]
VALUES: list[Any] = [
    *(*WORST, False, 0, -1, -(2**63), -1e308, "a" * 3000, [], {}, [[]], [None], {"": {}}, "*"),
    *("\U0001f600" * 400,),
    *("9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "2026-11-20T20:42:59", "(" * 200),
    *(json.loads("[" * 90 + "]" * 90), 'collect("File", [["a"], "==", "b"])', "role=web"),
]


def read_presence(raw: Any) -> Iterator[str]:
    token = WEB.signer.sign(json.dumps(raw).encode(), MessageKind.PRESENCE)
    status = believe(VERIFIER, NODE, token)
    row = NodeRow.of_presence(NODE, status, now=NOW.timestamp())
    yield from cells(row, NOW)
    yield from wrong_clocks({NODE: status}, NOW.timestamp())
    unlisted_nodes({NODE: status}, [], born=1.0, now=2.0)
    outlived({NODE: status}, 1.0)
    outcomes = status.get("outcomes")
    for published in outcomes if isinstance(outcomes, list) else ():
        TriggerOutcome.of_published(published)


def read_entry(raw: Any) -> Iterator[str]:
    read = InventoryEntry.parse(zlib.compress(json.dumps(raw).encode()))
    yield refusal(read, NODE, CLAIMS) or ""
    fleet = MemoryInventory([entry(DB, at=1, roles=("web",)), read])
    try:
        for words in ("role=web", "not os.family=Debian"):
            FunctionCall.of("query", [words, ["networking.ip", "ipaddress"]]).answer(fleet)
        links = links_of(fleet)
        yield from (link.written for link in links.links)
        yield from links.notes
        relations(links)
    finally:
        fleet.close()


def read_exports(raw: Any) -> Iterator[str]:
    read = exports.unpack(zlib.compress(json.dumps(raw).encode()))
    offers = [exports.Offer(node=NODE, resource=one) for one in read]
    choose(offers, "File", Search.parse(["tag", "==", "web"]), me=DB, policy=COLLECTS)
    for line in proposed(offers, me=DB, policy=CollectPolicy(lines=())):
        yield line.replace("\t", " ")
    yield from (one.place for one in read)


def read_reply(action: str, raw: Any) -> Iterator[str]:
    word, _ = shown_reply(action, raw, NOW)
    yield word


def parsed(form: Any, raw: Any) -> Iterator[str]:
    form.parse(json.dumps(raw).encode())
    yield ""


def read_day(raw: Any) -> Iterator[str]:
    parse_day(zlib.compress(json.dumps(raw).encode()), RUNS)
    yield ""


def read_catalog(raw: Any) -> Iterator[str]:
    unpack_catalog(zlib.compress(json.dumps(raw).encode()), node=NODE)
    yield ""


class OfWeb(Verifier):
    """Knows web01's key without a file."""

    def __init__(self) -> None:
        own = (WEB.name, WEB.key.public_key())
        super().__init__(TrustedKeys.__new__(TrustedKeys), None, FakeClock(), own=own)

    def verify(self, token: bytes, kind: MessageKind) -> Signed:
        return super().verify(token, kind)


VERIFIER = OfWeb()


def request(action: str, args: dict[str, Any]) -> dict[str, Any]:
    head = {"schema": 1, "iss": "choria=alice", "aud": NODE, "iat": 1, "exp": 2, "jti": UUID}
    return {**head, "action": action, "args": args}


def unpacked_json(data: bytes) -> Any:
    return json.loads(unpacked(data, most=MAX_ENTRY))


REPLY = {"schema": 1, "iss": "choria=b", "aud": "choria=a", "iat": 1, "exp": 2, "in_reply_to": UUID}
DEPLOYED = {
    **{"release": "a/tags/r1", "action": "apply", "serial": 1, "classes": {"a": {"b": 1}}},
    **{"layers": ["a"], "rollout": ROLLOUT},
}
AWAITED = {"node": NODE, "digest": "a" * 64, "at": 1.0}
RUN = {"noop": True, "rollout": {**ROLLOUT, "step": 1}, "awaited_entries": [AWAITED]}
DAY = a_day(a_summary(noon(), resources=(a_resource(1),)))
RECORDS: dict[str, tuple[Any, Callable[[Any], Iterator[str]]]] = {
    "presence": (PRESENCE, read_presence),
    "entry": (unpacked_json(ENTRY.to_payload()), read_entry),
    "exports": (
        {"schema": 1, "resources": [resource("File", "/etc/motd", "web", owner="a").to_dict()]},
        read_exports,
    ),
    "trigger": (json.loads(a_trigger(DB, NODE, at=5).to_payload()), partial(parsed, Trigger)),
    "tombstone": ({"schema": 1, "node": NODE, "at": 5.0}, partial(parsed, Tombstone)),
    "deploy": (
        request("deploy", DEPLOYED),
        partial(parsed, Request),
    ),
    "runonce": (
        request("runonce", RUN),
        partial(parsed, Request),
    ),
    "disable": (request("disable", {"message": "m", "for": "2h"}), partial(parsed, Request)),
    "reply": ({**REPLY, "ok": True, "result": {"a": 1}}, partial(parsed, NodeReply)),
    "error": ({**REPLY, "ok": False, "error": "no"}, partial(parsed, NodeReply)),
    "status": (PRESENCE, partial(read_reply, "status")),
    "hold": ({"hold": HOLD}, partial(read_reply, "disable")),
    "ended": ({"ended": [HOLD], "holds": [HOLD]}, partial(read_reply, "enable")),
    "day": (
        unpacked_json(DAY.to_payload()),
        read_day,
    ),
    "catalog": (json.loads(a_catalog(NODE, motd={"content": "x"}).text()), read_catalog),
}


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values within one."""
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield (key,)
        yield from ((key, *rest) for rest in places(value[key]))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@st.composite
def hostile(draw: st.DrawFn) -> tuple[str, Any]:
    name = draw(st.sampled_from([*RECORDS]))
    raw = RECORDS[name][0]
    for _ in range(draw(st.integers(1, 3))):
        if paths := [*places(raw)]:
            raw = changed(raw, draw(st.sampled_from(paths)), draw(st.sampled_from(VALUES)))
    return name, raw


def check(name: str, raw: Any) -> None:
    try:
        shown = [*RECORDS[name][1](raw)]
    except LocalpuppetError as error:
        shown = [str(error)]
    assert not [line for line in shown if CONTROL.search(click.unstyle(line))], raw


@pytest.mark.parametrize("name", RECORDS)
def test_each_reader_survives_the_worst_values_in_each_place(name: str) -> None:
    raw = RECORDS[name][0]
    for path in places(raw):
        for value in WORST:
            check(name, changed(raw, path, value))


@given(hostile())
def test_each_reader_survives_several_values(record: tuple[str, Any]) -> None:
    check(*record)


def test_each_record_is_read_as_it_is() -> None:
    for raw, read in RECORDS.values():
        assert [*read(raw)]
