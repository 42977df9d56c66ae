"""The message, the cause that is kept of it, and the order in which messages are judged.

For each case of the corpus, `tests/data/bad-inputs.yaml` has whether it is accepted, what the
reason names and how many runs follow. `trigger_seq` is a list of triggers in the order of their
arrival; `DISABLE` and `ENABLE` set and end a hold.
"""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import IntegrityError, InvalidInputError, StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.bus_limits import MAX_TRIGGER
from localpuppet.fleet.triggers.cause import CauseKind, RunCause, Trigger
from localpuppet.fleet.triggers.coalescing import Coalescer
from localpuppet.fleet.triggers.trigger_admission import Admission, AdmittedTrigger, DroppedTrigger
from tests.fleet.make import UUID, a_cause
from tests.rigs.bad_inputs import CASES

NOW = 1_795_000_000
ME = NodeName("lb01.example.com")
FIELDS: dict[str, Any] = {
    "schema": 1,
    "hostname": "web01.example.com",
    "tags": ["haproxy"],
    "hosts": ["lb01.example.com", "lb02.example.com"],
    "timestamp": NOW - 5,
    "uuid": UUID,
    "ttl": 180,
    "hops": 0,
    "path": ["web01.example.com"],
}


def payload(**changes: Any) -> bytes:
    return json.dumps({**FIELDS, **changes}).encode()


def judge(
    message: bytes,
    *,
    now: float = NOW,
    signer: str | IntegrityError = "web01.example.com",
    policy: str | None = None,
    seen: bool = False,
) -> AdmittedTrigger | DroppedTrigger:
    admission = Admission(me=ME, trigger_refusal=lambda _: policy, seen=lambda _: seen)
    return admission.admit(message, now=now, signer=lambda: signed_by(signer))


def signed_by(signer: str | IntegrityError) -> str:
    if isinstance(signer, IntegrityError):
        raise signer
    return signer


def reason(message: bytes, **context: Any) -> str:
    verdict = judge(message, **context)
    assert isinstance(verdict, DroppedTrigger)
    assert verdict.reason.isprintable()
    return verdict.reason


names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z0-9]{1,5}){0,3}", fullmatch=True)
tags = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_:.-]{0,20}", fullmatch=True)
integers = st.integers(-(2**63), 2**63 - 1)


@given(
    hosts=st.lists(names, max_size=20),
    words=st.lists(tags, max_size=10),
    path=st.lists(names, min_size=1, max_size=9),
    timestamp=integers,
    ttl=integers,
    uuid=st.uuids().map(str),
)
def test_a_trigger_is_encoded_and_parsed(
    hosts: list[str], words: list[str], path: list[str], timestamp: int, ttl: int, uuid: str
) -> None:
    trigger = Trigger(
        hostname=NodeName(path[-1]),
        tags=tuple(words),
        hosts=tuple(map(NodeName, hosts)),
        timestamp=timestamp,
        uuid=uuid,
        ttl=ttl,
        hops=len(path) - 1,
        path=tuple(map(NodeName, path)),
    )
    sent = trigger.to_payload()
    assert Trigger.parse(sent) == trigger
    assert list(json.loads(sent)) == list(FIELDS)
    assert sent.isascii()
    cause = RunCause.of_trigger(trigger)
    assert RunCause.from_dict(json.loads(json.dumps(cause.to_dict()))) == cause


def test_a_trigger_for_too_many_hosts_is_refused() -> None:
    many = tuple(NodeName(f"{number:060}.example.com") for number in range(1000))
    trigger = Trigger.parse(payload(hosts=[ME]))
    with pytest.raises(InvalidInputError, match="name fewer of the 1000 hosts"):
        replace(trigger, hosts=many).to_payload()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"[]", "a list, not a JSON object"),
        (b"", "is not JSON"),
        (b'{"schema": 1}', "the key 'hostname' is missing"),
        (b" " * (MAX_TRIGGER + 1), "too large: 65537 bytes"),
        (b'{"hostname": "\xff"}', "not UTF-8"),
        ("\ufeff{}".encode(), "is not JSON"),
        (b'{"a": 1, "a": 1}', "duplicate key 'a'"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": 9223372036854775808}', "too large for 64 bits"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"a":' + b"[" * 60000, "nested too deep"),
        (b'{"a\x1b[31m": 1}', "control character"),
        (payload(**{"\x1b[31m\u202e": 1}), r"unknown key '\\x1b\[31m\\u202e'"),
        (payload(ttl=True), "ttl: must be an integer, not a boolean"),
        (payload(ttl=180.0), "ttl: must be an integer"),
        (payload(hops=False), "hops: must be an integer"),
        (payload(timestamp="1795000000"), "timestamp: must be an integer, not a string"),
        (payload(uuid=UUID.upper()), "uuid: '3F2504E0.*canonical form"),
        (payload(uuid=7), "uuid: must be a string"),
        (payload(hosts={}), "hosts: must be a list, not a mapping"),
        (payload(hosts=["lb01.example.com", "*.example.com"]), r"hosts\[1\]: .*wildcards"),
        (payload(hosts=[["lb01"]]), r"hosts\[0\]: must be a string"),
        (payload(hosts=["a"] * 1001), "hosts: has 1001 elements"),
        (payload(hostname="web01.example.com\n"), "hostname: node name"),
        (payload(tags="haproxy"), "tags: must be a list"),
        (payload(tags=["a b"]), r"tags\[0\]: 'a b' is not a tag"),
        (payload(tags=["a"] * 101), "tags: has 101 elements"),
        (payload(path="web01.example.com"), "path: must be a list"),
        (payload(path=["a"] * 19), "path: has 19 elements"),
    ],
)
def test_an_invalid_trigger_is_refused_in_a_single_line(message: bytes, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        Trigger.parse(message)

    def refuse_to_be_asked() -> str:
        raise AssertionError("no signature is verified for rubbish")

    admission = Admission(me=ME, trigger_refusal=lambda _: None, seen=lambda _: False)
    verdict = admission.admit(message, now=NOW, signer=refuse_to_be_asked)
    assert isinstance(verdict, DroppedTrigger)
    assert verdict.reason.isprintable()
    assert not verdict.quiet


@given(st.binary(max_size=200) | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_message_raises(data: bytes) -> None:
    assert reason(data)


@given(
    st.dictionaries(
        st.sampled_from(list(FIELDS)),
        st.none() | st.booleans() | integers | st.text(max_size=5) | st.lists(integers, max_size=2),
    )
)
def test_no_field_raises(changes: dict[str, Any]) -> None:
    verdict = judge(payload(**changes))
    assert isinstance(verdict, AdmittedTrigger) or verdict.reason.isprintable()


# In the order of the checks: each message has all the faults that come later, too.
ORDER: list[tuple[str, dict[str, Any]]] = [
    ("too large", {"tags": ["a" * 1000] * 66}),
    ("unknown key", {"extra": 1}),
    ("no valid signature: the key is unknown", {}),
    ("expired: 500 s old, its ttl is 180 s", {"timestamp": NOW - 500}),
    ("its ttl is 4000 s", {"ttl": 4000}),
    ("not addressed to lb01", {"hosts": ["lb02.example.com"]}),
    ("not allowed to trigger this node: rule 3 denies", {}),
    ("hops is 5, but there are 2 nodes", {"hops": 5}),
    ("the loop ends here", {"path": ["lb01.example.com", "web01.example.com"], "hops": 1}),
    ("a duplicate: uuid 3f2504e0", {}),
]


@pytest.mark.parametrize("position", range(len(ORDER)))
def test_the_first_reason_is_reported(position: int) -> None:
    changes: dict[str, Any] = {}
    for _, more in reversed(ORDER[position:]):
        changes |= more
    context: dict[str, Any] = {"seen": True}
    if position <= 2:
        context["signer"] = IntegrityError("the key is unknown")
    if position <= 6:
        context["policy"] = "rule 3 denies"
    if position == 3:
        changes["ttl"] = 180
    assert ORDER[position][0] in reason(payload(**changes), **context)


@pytest.mark.parametrize(
    ("age", "ttl", "text"),
    [
        (180, 180, ""),
        (180.999, 180, ""),
        (181, 180, "expired: 181 s old"),
        (-30, 180, ""),
        (-31, 180, "31 s in the future"),
        (3600, 3600, ""),
        (3601, 3600, "expired"),
        (0, 3600, ""),
        (0, 3601, "its ttl is 3601 s"),
        (0, 0, "its ttl is 0 s"),
        (-20, -10, "its ttl is -10 s"),
        (0, -1, "expired"),
    ],
)
def test_age_and_ttl(age: float, ttl: int, text: str) -> None:
    verdict = judge(payload(timestamp=NOW, ttl=ttl), now=NOW + age)
    if text:
        assert isinstance(verdict, DroppedTrigger)
        assert text in verdict.reason
    else:
        assert isinstance(verdict, AdmittedTrigger)
        assert verdict.cause.expires == NOW + ttl


@given(ttl=st.integers(1, 3600), skew=st.integers(-30, 3600), later=st.floats(0, 10_000, width=32))
def test_a_remembered_trigger_cannot_be_replayed(ttl: int, skew: int, later: float) -> None:
    message = payload(timestamp=NOW, ttl=ttl)
    first = judge(message, now=NOW + skew)
    if isinstance(first, AdmittedTrigger):
        now = NOW + skew + later
        assert isinstance(judge(message, now=now, seen=now <= first.remember_until), DroppedTrigger)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hops": -1, "path": []}, "its path is empty, and hops is -1"),
        ({"hops": 0, "path": []}, "its path is empty"),
        ({"path": ["web02.example.com"]}, "path ends with web02.example.com, not with its sender"),
        (
            {"hops": 2, "path": ["web01.example.com", "a", "web01.example.com"]},
            "its path is a loop: web01.example.com -> a -> web01.example.com",
        ),
        ({"hops": 9, "path": [*"abcdefghi", "web01.example.com"]}, "it made 9 hops"),
    ],
)
def test_invalid_paths_are_refused(changes: dict[str, Any], text: str) -> None:
    assert text in reason(payload(**changes))
    eight = judge(payload(hops=8, path=[*"abcdefgh", "web01.example.com"]))
    assert isinstance(eight, AdmittedTrigger)


def test_a_signature_is_the_senders_own() -> None:
    text = reason(payload(), signer="web02.example.com")
    assert text.startswith(
        "the signature is web02.example.com's, but the trigger says it is from web01."
    )


def test_texts_of_others_are_escaped_in_reasons() -> None:
    assert reason(payload(), policy="no\x1b[31m\nno").endswith(r"no\x1b[31m\x0ano")
    assert "\\x1b" in reason(payload(), signer=IntegrityError("\x1b"))


def test_only_ordinary_drops_are_quiet() -> None:
    usual = judge(payload(hosts=[])), judge(payload(), seen=True)
    odd = judge(payload(), policy="no"), judge(b"")
    quiet = [one.quiet for one in (*usual, *odd) if isinstance(one, DroppedTrigger)]
    assert quiet == [True, True, False, False]


def test_ids_belong_to_their_sender() -> None:
    asked: list[str] = []

    def seen(cause_id: str) -> bool:
        asked.append(cause_id)
        return False

    admission = Admission(me=ME, trigger_refusal=lambda _: None, seen=seen)
    admission.admit(payload(), now=NOW, signer=lambda: "web01.example.com")
    assert asked == [f"web01.example.com/{UUID}"]


CAUSE = RunCause.of_trigger(Trigger.parse(payload())).to_dict()


@pytest.mark.parametrize(
    "changes",
    [
        *({"kind": kind} for kind in ("rumour", "timer")),
        *({"path": path} for path in ([], "a", ["*"], None)),
        *({"tags": tags} for tags in ("a", ["a b"], [1])),
        *({"sender": sender} for sender in ("\x1b", 1)),
        *({"uuid": "x"}, {"timestamp": True}, {"expires": "never"}, {"more": 1}),
    ],
)
def test_a_damaged_cause_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(StateError, match="cause: is damaged"):
        RunCause.from_dict({**CAUSE, **changes})


@pytest.mark.parametrize("key", list(CAUSE))
def test_a_cause_has_all_its_fields(key: str) -> None:
    raw = {name: value for name, value in CAUSE.items() if name != key}
    with pytest.raises(StateError, match="damaged"):
        RunCause.from_dict(raw)


def test_causes_for_people() -> None:
    request = a_cause(CauseKind.REQUEST, sender="alice")
    texts = [str(a_cause()), str(request), str(RunCause.from_dict(CAUSE))]
    assert texts == ["timer", "request from alice", "trigger from web01.example.com"]


CONTEXT = "node=lb01.example.net now=1795000000 signature valid unless said"
AT = 1_795_000_000.0
LB01 = NodeName("lb01.example.net")
UNSIGNED = "signature absent"
BUSY = "a run started before the first and ends after the last"
TIMER = a_cause(timestamp=int(AT))


def cases(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in CASES if case["kind"] == kind]


class Node:
    def __init__(self) -> None:
        self.coalescer = Coalescer()
        self.seen: dict[str, int] = {}
        self.held: str | None = None
        self.runs = 0

    def receive(self, payload: bytes, *, signed: bool = True) -> AdmittedTrigger | DroppedTrigger:
        """Decide on a message; a true signature is that of the sender that it names."""
        admission = Admission(me=LB01, trigger_refusal=lambda _: None, seen=self.seen.__contains__)
        verdict = admission.admit(
            payload,
            now=AT,
            signer=lambda: signed_by(
                str(json.loads(payload)["hostname"]) if signed else IntegrityError("it has none")
            ),
        )
        if isinstance(verdict, AdmittedTrigger):
            self.seen[verdict.cause.id] = verdict.remember_until
            assert self.coalescer.problem(verdict.cause) is None
            self.coalescer.accept(verdict.cause)
        return verdict

    def start(self) -> None:
        step = self.coalescer.step(AT, held=self.held)
        assert step.dropped == ()
        self.runs += step.start is not None

    def finish(self) -> None:
        """End the active run, and those that wait behind it, one after the other."""
        self.start()
        while self.coalescer.running is not None:
            self.coalescer.ended()
            self.start()


def contexts(case: dict[str, Any]) -> set[str]:
    base, _, more = case["context"].partition("; ")
    assert base == CONTEXT
    return {more} - {""}


@pytest.mark.parametrize("case", cases("trigger"))
def test_trigger(case: dict[str, Any]) -> None:
    said = contexts(case)
    assert said <= {UNSIGNED}
    node = Node()
    verdict = node.receive(case["input"].encode(), signed=UNSIGNED not in said)
    node.finish()
    assert node.runs == case["runs"]
    if case["expect"] == "accept":
        assert isinstance(verdict, AdmittedTrigger)
        return
    assert isinstance(verdict, DroppedTrigger)
    assert re.search(case["message"], verdict.reason, re.IGNORECASE), verdict.reason
    assert verdict.reason.isprintable()
    assert verdict.quiet == (case["id"] == "tr-not-for-us")


@pytest.mark.parametrize("case", cases("trigger_seq"))
def test_sequence(case: dict[str, Any]) -> None:
    said = contexts(case)
    assert said <= {BUSY}
    node = Node()
    if BUSY in said:
        node.coalescer.accept(TIMER)
        node.start()
    accepted = 0
    for item in json.loads(case["input"]):
        if item in ("DISABLE", "ENABLE"):
            node.held = "a person wants so" if item == "DISABLE" else None
        else:
            accepted += isinstance(node.receive(json.dumps(item).encode()), AdmittedTrigger)
        if node.held:
            runs = node.runs
            node.start()
            assert node.runs == runs, "no run on hold"
    assert accepted > 0
    assert case["expect"] == "accept"
    node.finish()
    assert node.runs == case["runs"]


def test_every_case_is_used() -> None:
    mine = [case for case in CASES if case["kind"].startswith("trigger")]
    assert {case["kind"] for case in mine} == {"trigger", "trigger_seq"}
    assert len(cases("trigger")) == 14
    assert len(cases("trigger_seq")) == 3
