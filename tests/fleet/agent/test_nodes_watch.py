"""`localpuppet nodes --watch` against real agents and servers."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import pytest

from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.times import show_time
from localpuppet.fleet.bus.key_value import KeyListing, KeyValueEntry
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.cli.nodes import Board, clock_skew, wrong_clocks
from localpuppet.fleet.trust.signing import MessageKind
from tests.doubles.identities import person, verifier
from tests.doubles.ports import FakeClock
from tests.fleet.make import an_end
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.node import PATIENCE
from tests.rigs.waiting import wait_until


class Watch:
    def __init__(self, member: Member) -> None:
        self._member = member
        self.process: subprocess.Popen[str] = member.node.start("nodes", "--watch")
        self._readers: list[threading.Thread] = []
        self.out: list[str] = []
        self.err: list[str] = []
        for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            assert stream is not None
            reader = threading.Thread(target=_read, args=(stream, lines), daemon=True)
            reader.start()
            self._readers.append(reader)

    def rows(self) -> list[list[str]]:
        return [line.split()[1:] for line in self.out[1:]]

    def until_row(self, *cells: str) -> None:
        wait_until(lambda: list(cells) in [row[: len(cells)] for row in self.rows()], self.told)

    def until_said(self, text: str) -> None:
        wait_until(lambda: any(text in line for line in self.err), self.told)

    def told(self) -> str:
        return f"{self.out} {self.err}"

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE)
        self._member.node.running.remove(self.process)
        for reader in self._readers:
            reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


def _read(stream: TextIO, lines: list[str]) -> None:
    for line in stream:
        lines.append(line.rstrip("\n"))


@pytest.fixture
def watched(served_fleet: Fleet) -> Iterator[tuple[Fleet, Member, Member, Watch]]:
    """Two agents, and a watch over them, on each bus with a server."""
    a, b = served_fleet.add("a", "b")
    served_fleet.start()
    watch = Watch(a)
    watch.until_row(a.name, "idle")
    watch.until_row(b.name, "idle")
    yield served_fleet, a, b, watch
    assert watch.end() == 130


def test_a_node_that_left_is_gone_on_any_bus(watched: tuple[Fleet, Member, Member, Watch]) -> None:
    _, a, b, watch = watched
    head, first = watch.out[:2]
    assert head.split("  ")[0] == "TIME (UTC)"
    assert first.index(a.name) == head.index("NODE")
    assert first.index("idle") == head.index("STATE")
    b.stop()
    watch.until_row(b.name, "gone")
    assert watch.rows().count([b.name, "gone"]) == 1


def test_the_watch_reports_one_outage_once(watched: tuple[Fleet, Member, Member, Watch]) -> None:
    fleet, a, b, watch = watched
    shown = len(watch.rows())
    fleet.bus.server.kill()
    watch.until_said("the bus is unreachable, still trying: ")
    fleet.bus.server.start()
    watch.until_said("the bus is reachable again")
    assert watch.rows()[shown:] == [], "nothing has changed meanwhile"
    b.run("disable", "-m", "migration", code=0)
    fleet.send(a, b)
    watch.until_row(b.name, "on", "hold")
    assert len([line for line in watch.err if "the bus is" in line]) == 2


def test_a_json_line_has_the_last_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    web = person("web01.example.com")
    said = {"schema": 1, "node": web.name, "state": "idle", "last_run": to_record(an_end(1.8e9))}
    token = web.signer.sign(json.dumps(said).encode(), MessageKind.PRESENCE)
    entry = KeyValueEntry(key=PRESENCE + web.name, value=token, revision=1)
    board = Board(verifier(tmp_path, web), FakeClock(), as_json=True)
    board.take(KeyListing(entries=(entry,), revision=1))
    board.miss(set(), 1)
    shown, gone = map(json.loads, capsys.readouterr().out.splitlines())
    assert shown == said
    assert gone["state"] == "gone"


def test_nodes_names_those_whose_clock_differs() -> None:
    """An entry is up to a minute old, so a clock that is behind by less is not seen."""
    ats = {"a": 4, "b": 6, "c": 3600, "d": -64, "e": -120}
    published = {
        name: {"at": show_time(datetime.fromtimestamp(1e9 + seconds, UTC))}
        for name, seconds in ats.items()
    }
    skews = {name: clock_skew(status, 1e9) for name, status in published.items()}
    assert skews == {"a": None, "b": 6.0, "c": 3600.0, "d": None, "e": -120.0}
    assert list(wrong_clocks({**published, "f": {"at": 3}, "g": {}}, 1e9)) == [
        "b: its clock is 6s ahead of this machine's",
        "c: its clock is 1h ahead of this machine's",
        "e: its clock is 2m behind this machine's",
    ]
