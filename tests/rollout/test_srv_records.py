"""SRV records from a real name server."""

import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.site_file import Record, look_up

RECORDS = {
    "_x-puppet._tcp.example.com.": ["10 5 8140 puppet.EXAMPLE.com.", "20 0 8141 old.example.com."],
    "_x-puppet._tcp.none.example.com.": ["0 0 0 ."],
    "_x-puppet._tcp.bad.example.com.": ["0 0 8140 a_b.example.com."],
    "_x-puppet._tcp.empty.example.com.": [],
}


def answer(question: bytes) -> bytes:
    asked = dns.message.from_wire(question)
    name = asked.question[0].name.to_text()
    reply = dns.message.make_response(asked)
    if "servfail" in name:
        reply.set_rcode(dns.rcode.SERVFAIL)
    elif name not in RECORDS:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    elif RECORDS[name]:
        reply.answer.append(dns.rrset.from_text(name, 60, "IN", "SRV", *RECORDS[name]))
    told: bytes = reply.to_wire()
    return told


Lookup = Callable[[str], list[Record]]


@pytest.fixture
def lookup() -> Iterator[Lookup]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                question, who = server.recvfrom(4096)
                if not question:
                    return
                server.sendto(answer(question), who)

        thread = threading.Thread(target=serve)
        thread.start()
        yield partial(look_up, server=server.getsockname())
        server.sendto(b"", server.getsockname())
        thread.join()


def test_records_of_a_name_server_are_read(lookup: Lookup) -> None:
    assert sorted(lookup("_x-puppet._tcp.example.com"), key=lambda one: one.priority) == [
        Record(priority=10, weight=5, port=8140, target=NodeName("puppet.example.com")),
        Record(priority=20, weight=0, port=8141, target=NodeName("old.example.com")),
    ]
    for none in ("none", "empty", "nowhere"):
        assert lookup(f"_x-puppet._tcp.{none}.example.com") == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("_x-puppet._tcp.servfail.example.com", "lookup failed: NoNameservers"),
        ("_x-puppet._tcp.bad.example.com", "has an invalid record"),
        (f"_x-puppet._tcp.{'x' * 64}.example.com", "lookup failed"),
    ],
)
def test_a_failed_lookup_is_an_error_and_not_an_empty_answer(
    lookup: Lookup, name: str, message: str
) -> None:
    with pytest.raises(UnavailableError, match=message) as caught:
        lookup(name)
    assert "\n" not in str(caught.value)
