"""Clients that send too much, read too little, leave, or are another user."""

import json
import os
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from sqlite3 import Connection
from threading import Event, current_thread
from urllib.parse import urlencode

import pytest

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.admission import ReceivedEntry
from localpuppet.fleet.inventory.query import pql
from localpuppet.fleet.inventory.tables import EntryRows
from localpuppet.fleet.inventory.view import View
from localpuppet.web.access.http_limits import MAX_BODY
from localpuppet.web.access.serving import ConnectionLimits
from localpuppet.web.puppetdb.answers import AnswerLimits
from tests.doubles.identities import person
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.entries import signed
from tests.fleet.inventory.query.fleet import entry
from tests.rigs.waiting import PATIENCE, wait_until
from tests.web.puppetdb.served import NOW, V4, PlayedRuns, ServedApi, node, run

JSON = {"Content-Type": "application/json"}
BIG: dict[str, Json] = {f"fact{number}": "x" * 1000 for number in range(200)}


def served(directory: Path, *, nodes: int = 3, **more: object) -> ServedApi:
    fleet = MemoryInventory([entry(f"n{number:03}.example.com", BIG) for number in range(nodes)])
    api = ServedApi(directory, fleet, **more)  # type: ignore[arg-type]
    fleet.current = api.clock.now().timestamp()
    return api


def test_a_body_that_is_too_large_or_encoded_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as api:
        body = json.dumps({"query": ["=", "certname", "x" * MAX_BODY]}).encode()
        assert api.ask(f"{V4}/nodes", method="POST", body=body, headers=JSON).status == 413
        bomb = zlib.compress(b" " * 10_000_000)
        packed = {**JSON, "Content-Encoding": "deflate"}
        assert api.ask(f"{V4}/nodes", method="POST", body=bomb, headers=packed).status == 415
        text = {"Content-Type": "text/plain"}
        assert api.ask(f"{V4}/nodes", method="POST", body=b"{}", headers=text).status == 415
        for kind, status in (("text/html", 406), ("Application/JSON", 200), ("", 406)):
            assert api.ask(f"{V4}/nodes", headers={"Accept": kind}).status == status


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(tmp_path: Path) -> None:
    """What follows may be a second request that a proxy has not seen."""
    smuggled = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    with (
        served(tmp_path) as api,
        socket.create_connection(("127.0.0.1", api.port), PATIENCE) as client,
    ):
        head = f"POST {V4}/nodes HTTP/1.1\r\nHost: 127.0.0.1:{api.port}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 5\r\n"
        client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode() + smuggled)
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()


def test_a_body_that_does_not_arrive_ends_the_request(tmp_path: Path) -> None:
    answer = b""
    for seconds in (0.1, 4.0, 60.0):  # enough for a busy client to send the head
        with (
            served(tmp_path, patience=ConnectionLimits(head=seconds)) as api,
            socket.create_connection(("127.0.0.1", api.port), PATIENCE) as caller,
            suppress(ConnectionError),
        ):
            head = (
                f"POST {V4}/nodes HTTP/1.1\r\nHost: localhost:{api.port}\r\nContent-Length: 99\r\n"
                "Content-Type: application/json\r\n\r\n{"
            )
            caller.sendall(head.encode())
            answer = caller.recv(4096)
        if answer:
            break
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{V4}/nodes/%ff", 400),
        (f"{V4}/nodes/%00", 404),
        (f"{V4}/nodes/a%0d%0aX-Evil:%201", 404),
        (f"{V4}/nodes/%2e%2e%2fetc", 404),
        (f"{V4}/../../etc/passwd", 404),
        (f"{V4}//nodes", 404),
        ("/pdb/query", 404),
        ("/%2e%2e/status/v1/services", 404),
    ],
)
def test_a_path_is_data(tmp_path: Path, path: str, status: int) -> None:
    with served(tmp_path) as api:
        answer = api.ask(path)
        assert (answer.status, "x-evil" in answer.headers) == (status, False)


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=0", False), ("gzip; q=0.000", False),
     ("notgzip", False), ("", False)],
)  # fmt: skip
def test_large_answers_are_compressed_on_request(
    tmp_path: Path, accepted: str, is_packed: bool
) -> None:
    with served(tmp_path) as api:
        headers = {"Accept-Encoding": accepted}
        large, small = (
            api.ask(f"{V4}/{path}", headers=headers) for path in ("facts", "nodes/n000")
        )
        assert ("content-encoding" in large.headers) is is_packed
        assert "content-encoding" not in small.headers
        assert large.json == json.loads(api.ask(f"{V4}/facts", pretty="true").text)


def test_an_answer_has_a_limit_and_all_answers_together_have_one(tmp_path: Path) -> None:
    with served(tmp_path, limits=AnswerLimits(size=100_000)) as api:
        status, text = api.ask(f"{V4}/facts").error
        assert (status, text.startswith("the answer has more than")) == (400, True)
        assert api.bodies.used == 0
    with served(tmp_path, limits=AnswerLimits(total=100_000)) as api:
        status, text = api.ask(f"{V4}/facts").error
        assert (status, "too large together" in text) == (503, True)
        assert api.ask(f"{V4}/nodes").status == 200
        wait_until(lambda: api.bodies.used == 0, str)


def test_a_client_that_does_not_read_is_cut_off_and_its_answer_dropped(tmp_path: Path) -> None:
    with (
        served(tmp_path, nodes=100, patience=ConnectionLimits(reading=0.1)) as api,
        socket.socket() as caller,
    ):
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.connect(("127.0.0.1", api.port))
        caller.sendall(f"GET {V4}/facts HTTP/1.1\r\nHost: localhost:{api.port}\r\n\r\n".encode())
        assert caller.recv(1) == b"H"  # the answer has begun
        wait_until(lambda: api.bodies.used == 0, str)
        assert api.ask(f"{V4}/nodes").status == 200


def test_a_client_that_leaves_during_its_answer_leaves_nothing_behind(tmp_path: Path) -> None:
    with served(tmp_path, nodes=100) as api:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", api.port), PATIENCE) as caller:
                head = f"GET {V4}/facts HTTP/1.1\r\nHost: localhost:{api.port}\r\n\r\n"
                caller.sendall(head.encode())
                assert caller.recv(1000).startswith(b"HTTP/1.1 200 OK")
        wait_until(lambda: api.bodies.used == 0, str)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_users_connections_do_not_take_the_place_of_readers(tmp_path: Path) -> None:
    code = (
        "import os, socket, sys\n"
        "os.setuid(12345)\n"
        "held = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for _ in range(60)]\n"
        "print('connected', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with (
        served(tmp_path, patience=ConnectionLimits(most=10, strangers=5, head=600)) as api,
        subprocess.Popen(
            [sys.executable, "-c", code, str(api.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other,
    ):
        assert other.stdout is not None
        assert other.stdout.readline() == "connected\n"
        assert api.ask(f"{V4}/nodes").status == 200
        with suppress(BrokenPipeError):
            other.communicate("", timeout=PATIENCE)


@pytest.mark.parametrize("field", ["certname", "facts_timestamp", "report_timestamp"])
@pytest.mark.parametrize("value", [r"9" * 400, "-1e999", "NaN", "1e308", r'"\ud800"', r'"\u0000"'])
@pytest.mark.parametrize("operator", ["=", "~", "<", "in"])
def test_a_value_that_no_fact_can_have_is_an_error_of_the_client_or_finds_nothing(
    view_api: ServedApi, field: str, value: str, operator: str
) -> None:
    wanted = f'["array", [{value}]]' if operator == "in" else value
    body = f'{{"query": ["{operator}", "{field}", {wanted}]}}'.encode()
    answer = view_api.ask(f"{V4}/nodes", method="POST", body=body, headers=JSON)
    assert answer.status == 400 or answer.json == [], answer.text


@pytest.mark.parametrize("parameter", ["query", "order_by", "limit", "counts_filter", "pretty"])
def test_a_text_that_cannot_be_sent_is_refused(view_api: ServedApi, parameter: str) -> None:
    body = f'{{"summarize_by": "certname", "{parameter}": "\\ud800"}}'.encode()
    answer = view_api.ask(f"{V4}/event-counts", method="POST", body=body, headers=JSON)
    assert answer.error == (400, "the query has a lone surrogate")


@pytest.fixture(scope="module")
def view_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """Serve what the database of the view has, and runs."""
    directory = tmp_path_factory.mktemp("view")
    some = entry("web01.example.com", {"role": "web"})
    played = PlayedRuns([run(some.node, NOW)], [node(some.node)])
    with closing(View(directory / "view.sqlite", now=lambda: NOW)) as view:
        token = signed(person(some.node), some)
        view.take([ReceivedEntry(node=some.node, token=token, found=EntryRows.of(some))])
        with ServedApi(directory, view, records=played.records) as api:
            view.note(current=api.clock.now().timestamp())
            yield api


def test_a_query_is_parsed_outside_of_the_loop_that_serves_all_clients(tmp_path: Path) -> None:
    """A PQL text of 64 KiB takes a quarter of a second."""
    threads = []

    def parse(text: str) -> list[Json]:
        threads.append(current_thread())
        return pql.to_array(text)

    with served(tmp_path, parse_pql=parse) as api:
        assert api.ask(V4, "nodes { }", ast_only="true").json == ["from", "nodes"]
        assert threads
        assert api.thread not in threads


class EndlessInventory(MemoryInventory):
    """Nodes without end, until the query ends: then `ended` is set."""

    def __init__(self) -> None:
        super().__init__([entry("n.example.com", {"fact": "x"})])
        self.begun, self.ended = Event(), Event()
        self.seen: Callable[[], None] = lambda: None

    @contextmanager
    def rows(self, own: EntryRows | None = None, *, exports: bool = False) -> Iterator[Connection]:
        try:
            with super().rows(own, exports=exports) as connection:
                connection.executescript(_ENDLESS)
                yield connection
        finally:
            self.ended.set()

    def check(self) -> None:
        self.begun.set()
        self.seen()


_ENDLESS = """
PRAGMA query_only = OFF; DROP VIEW temp.live;
CREATE TEMP VIEW live AS WITH RECURSIVE counted(number) AS
    (SELECT 1 UNION ALL SELECT number + 1 FROM counted)
    SELECT nodes.* FROM counted CROSS JOIN nodes;
"""


def test_a_query_ends_at_its_deadline(tmp_path: Path) -> None:
    endless = EndlessInventory()
    with ServedApi(tmp_path, endless) as api:
        endless.current = api.clock.now().timestamp()
        endless.seen = lambda: api.clock.advance(0.01)
        status, text = api.ask(f"{V4}/facts", ["=", "value", "y"], timeout="5").error
        assert (status, text.startswith("Query exceeded timeout: 5 s")) == (500, True)
        assert endless.ended.wait(PATIENCE)


def test_a_query_ends_when_its_client_leaves(tmp_path: Path) -> None:
    endless = EndlessInventory()
    with ServedApi(tmp_path, endless) as api:
        endless.current = api.clock.now().timestamp()
        query = urlencode({"query": json.dumps(["=", "value", "y"])})
        with socket.create_connection(("127.0.0.1", api.port), PATIENCE) as caller:
            head = f"GET {V4}/facts?{query} HTTP/1.1\r\nHost: localhost:{api.port}\r\n\r\n"
            caller.sendall(head.encode())
            assert endless.begun.wait(PATIENCE)
            assert api.ask("/pdb/meta/v1/version").status == 200  # others are answered meanwhile
            assert not endless.ended.is_set()
        assert endless.ended.wait(PATIENCE)
