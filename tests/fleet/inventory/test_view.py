"""The view: which entry of a node is in force, and what removes an entry."""

import json
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import DamagedError
from localpuppet.fleet.inventory.admission import ReceivedEntry, Tombstone
from localpuppet.fleet.inventory.entry import ExportedServer, InventoryEntry
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.query.pql import parse_client_query
from localpuppet.fleet.inventory.tables import NAMES, EntryRows
from localpuppet.fleet.inventory.view import AT_ONCE, View
from tests.doubles.identities import person
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.entries import entry, received, signed
from tests.fleet.inventory.one_view import content

NOW = 1_800_000_000.0
WEB, DB = person("web01.example.com"), person("db01.example.com")


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def view(tmp_path: Path, clock: Clock) -> Iterator[View]:
    with closing(View(tmp_path / "state" / "view.sqlite", now=clock, expire=1000.0)) as made:
        yield made


PEOPLE = {str(one.name): one for one in (WEB, DB)}


def _take(view: View, *entries: InventoryEntry) -> None:
    view.take([received(PEOPLE[one.node], one) for one in entries])


def _nodes(view: View) -> list[str]:
    listed = [str(one.node) for one in view.entries()]
    assert [one.node for one in view.nodes()] == listed
    return listed


def test_entries_that_arrive_together_are_not_all_in_memory(view: View) -> None:
    made: list[weakref.ref[Any]] = []

    class Facts(dict[str, Any]):
        """Facts with weak references, to see when they are freed."""

    most = 0

    def arrive() -> Iterator[ReceivedEntry]:
        nonlocal most
        for number in range(20):
            said = entry(f"n{number}.example.com", at=NOW)
            facts = Facts(said.facts)
            made.append(weakref.ref(facts))
            most = max(most, sum(one() is not None for one in made))
            yield ReceivedEntry(
                node=said.node, token=b"YQ.YQ.YQ", found=EntryRows.of(replace(said, facts=facts))
            )

    view.take(arrive())
    assert most <= 3


_VALUES = st.integers(0, 2)
_FACTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), _VALUES) | st.fixed_dictionaries(
    {"networking": st.just({"interfaces": {"veth7": {"ip": "10.0.0.7"}}})}
)
_SERVERS = st.lists(
    st.builds(
        ExportedServer,
        role=st.sampled_from(["web", "db"]),
        ipaddress=st.none(),
        ports=st.just(()),
        since=st.just(NOW),
    ),
    max_size=2,
).map(tuple)
_CLASSES = st.lists(st.sampled_from(["main", "app", "odd"]), unique=True).map(tuple)


@given(
    batches=st.lists(
        st.dictionaries(
            st.sampled_from([WEB.name, DB.name]),
            st.none()
            | st.fixed_dictionaries({"facts": _FACTS, "classes": _CLASSES, "servers": _SERVERS}),
            min_size=1,
        ),
        min_size=2,
        max_size=4,
    )
)
@settings(max_examples=30)
def test_a_view_has_the_rows_of_the_last_entries_whatever_came_before(
    batches: list[dict[str, dict[str, Any] | None]],
) -> None:
    last: dict[str, InventoryEntry] = {}
    with TemporaryDirectory() as directory:
        path, fresh = Path(directory, "view"), Path(directory, "fresh")
        with closing(View(path, now=lambda: NOW)) as view:
            for number, batch in enumerate(batches):
                for node in (node for node, fields in batch.items() if fields is None):
                    view.forget(Tombstone(node=NodeName(node), at=NOW + number), by="alice")
                    last.pop(node, None)
                made = {
                    node: entry(node, at=NOW + number + 0.5, **fields)
                    for node, fields in batch.items()
                    if fields is not None
                }
                _take(view, *made.values())
                last |= made
        with closing(View(fresh, now=lambda: NOW)) as view:
            _take(view, *last.values())
        rows = []
        for one in (path, fresh):
            with closing(sqlite3.connect(one)) as connection:
                rows.append(json.loads(content(connection)))
    for name in NAMES:
        assert rows[0][name] == rows[1][name], name


def test_an_entry_that_repeats_the_one_before_writes_few_pages(view: View, tmp_path: Path) -> None:
    facts = {f"fact{number}": "x" * 3000 for number in range(50)}
    _take(view, entry(DB.name, at=NOW, facts=dict.fromkeys(facts, "z")))
    _take(view, entry(WEB.name, at=NOW, facts=facts))
    log = tmp_path / "state" / "view.sqlite-wal"
    sizes = []
    for at, changed in ((NOW + 1, facts), (NOW + 2, {**facts, "fact9": "y" * 3000})):
        view.close()
        _take(view, entry(WEB.name, at=at, facts=changed))
        sizes.append(log.stat().st_size // 4096)
    assert max(sizes) < 12, "and so does one that changes a fact"


@pytest.mark.parametrize("stored", [[], ["web"], ["db"], ["web", "db"]])
def test_the_rows_of_the_own_entry_replace_the_stored_ones(view: View, stored: list[str]) -> None:
    interfaces: Json = {"interfaces": {"veth7": {"ip": "10.0.0.7"}}}
    named = {"web": entry(WEB.name, at=NOW, facts={"old": 1}), "db": entry(DB.name, at=NOW)}
    own = entry(
        WEB.name, at=NOW, facts={"new": "x", "networking": interfaces}, classes=("main", "new")
    )
    _take(view, *(named[name] for name in stored))
    others = [named[name] for name in stored if name == "db"]
    readers = (_Own(view, own), MemoryInventory([*others, own]))
    for query in (
        *("facts { }", "fact_names { }", "inventory { }", "factsets { }"),
        "resources { type = 'Class' }",
        "fact_contents { path ~> ['.*', '.*'] }",
        "inventory { facts.new = 'x' and facts.ipaddress_veth7 = '10.0.0.7' }",
    ):
        select = parse_client_query({"query": query}).select
        found, wanted = (Evaluation(reader).answer(select).rows for reader in readers)
        assert found == wanted, query


class _Own:
    """A view with the entry of the own node, as functions in catalogs read it."""

    def __init__(self, view: View, entry: InventoryEntry) -> None:
        self._view, self._rows = view, EntryRows.of(entry)

    def rows(self, *_: object, exports: bool = False) -> Any:
        return self._view.rows(self._rows, exports=exports)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def test_a_transaction_has_at_most_500_entries(view: View) -> None:
    def arrive() -> Iterator[ReceivedEntry]:
        for number in range(AT_ONCE + 1):
            yield received(WEB, entry(f"n{number}.example.com", at=NOW))
        raise OSError

    with pytest.raises(OSError):
        view.take(arrive(), revision=9)
    assert (len(_nodes(view)), AT_ONCE, view.revision) == (500, 500, 0)


def test_the_rows_of_stored_entries_can_be_written_again(view: View, tmp_path: Path) -> None:
    _take(view, entry(WEB.name, at=NOW, roles=("web",)), entry(DB.name, at=NOW))
    query = parse_client_query({"query": "inventory { }"}).select
    before = Evaluation(view).answer(query).rows
    assert len(before) == 2
    with closing(sqlite3.connect(tmp_path / "state" / "view.sqlite")) as connection, connection:
        connection.executescript("DELETE FROM nodes; DELETE FROM fact_values; DELETE FROM classes")
    assert Evaluation(view).answer(query).rows == []
    view.restore()
    assert Evaluation(view).answer(query).rows == before


def test_stored_entries_are_read_as_they_were_published(view: View) -> None:
    web = entry(WEB.name, at=NOW, roles=("web",), paths=((NodeName(DB.name),), ()))
    _take(view, web, entry(DB.name, at=NOW))
    assert view.entry(NodeName(WEB.name)) == web
    assert _nodes(view) == [DB.name, WEB.name]
    assert view.entry(NodeName("absent.example.com")) is None


def test_a_refused_entry_is_recorded_and_replaces_nothing(view: View, clock: Clock) -> None:
    web = entry(WEB.name, at=NOW)
    _take(view, web)
    clock.now += 5
    view.take([ReceivedEntry(node=WEB.name, token=b"x", found="a stranger's")])
    assert view.entry(NodeName(WEB.name)) == web
    (refused,) = view.refused()
    assert (refused.node, refused.reason, refused.since) == (WEB.name, "a stranger's", NOW + 5)
    _take(view, entry(WEB.name, at=NOW + 1))
    assert view.refused() == []


def test_an_older_entry_replaces_no_newer_one_nor_returns_after_distrust(view: View) -> None:
    _take(view, entry(WEB.name, at=NOW, roles=("new",)))
    _take(view, entry(WEB.name, at=NOW - 1, roles=("old",)))
    assert [one.roles for one in view.entries()] == [("new",)]
    assert "older" in view.refused()[0].reason
    view.distrust(WEB.name, "its key was revoked")
    assert _nodes(view) == []
    assert view.refused()[0].reason == "its key was revoked"
    _take(view, entry(WEB.name, at=NOW - 1))
    assert _nodes(view) == []
    _take(view, entry(WEB.name, at=NOW))
    assert _nodes(view) == [WEB.name]


def _forget(view: View, at: float, node: str = WEB.name) -> bool:
    return view.forget(Tombstone(node=NodeName(node), at=at), by="alice")


def test_a_forgotten_node_is_gone_until_it_publishes_a_newer_entry(view: View) -> None:
    _take(view, entry(WEB.name, at=NOW))
    assert [_forget(view, NOW + 1), _forget(view, NOW + 1)] == [True, False]
    _take(view, entry(WEB.name, at=NOW + 1))
    assert (_nodes(view), view.refused()) == ([], [])
    _take(view, entry(WEB.name, at=NOW + 2))
    assert _nodes(view) == [WEB.name]
    assert not _forget(view, NOW + 1)
    assert _nodes(view) == [WEB.name]


@pytest.mark.parametrize(("stones", "at"), [([0], 0), ([5, 1], 3)], ids=["earlier", "the newest"])
def test_a_tombstone_counts_before_an_entry_comes(view: View, stones: list[int], at: int) -> None:
    for stone in stones:
        assert not _forget(view, NOW + stone)
    _take(view, entry(WEB.name, at=NOW + at))
    assert _nodes(view) == []


def test_an_entry_expires_as_the_settings_say(view: View, clock: Clock, tmp_path: Path) -> None:
    _take(view, entry(WEB.name, at=NOW))
    clock.now += 1000
    assert _nodes(view) == [WEB.name]
    clock.now += 1
    assert _nodes(view) == []
    assert view.entry(NodeName(WEB.name)) is None
    view.close()
    with closing(View(tmp_path / "state" / "view.sqlite", now=clock)) as again:
        assert _nodes(again) == [WEB.name]


def test_a_reader_sees_a_consistent_state_during_writes(view: View) -> None:
    _take(view, entry(DB.name, at=NOW), entry(WEB.name, at=NOW))
    reading = view.entries()
    assert str(next(reading).node) == DB.name
    _take(view, entry(DB.name, at=NOW + 1, roles=("db",)), entry(WEB.name, at=NOW + 1))
    view.distrust(WEB.name, "gone")
    assert view.entry(NodeName(WEB.name)) is None
    assert next(reading).at == NOW


def test_only_new_tokens_are_unknown(view: View) -> None:
    taken = received(WEB, entry(WEB.name, at=NOW))
    view.take([taken])
    assert view.unknown({WEB.name: taken.token}) == set()
    assert view.unknown({WEB.name: b"other", DB.name: taken.token}) == {WEB.name, DB.name}


def test_the_state_of_the_view_is_kept(view: View) -> None:
    assert (view.current_until(), view.revision, view.trust) == (None, 0, "")
    view.note(current=NOW, trust="keys")
    view.take([], revision=9)
    assert (view.current_until(), view.revision, view.trust) == (NOW, 9, "keys")
    view.note(current=NOW + 1)
    assert (view.current_until(), view.revision, view.trust) == (NOW + 1, 9, "keys")


def test_strangers_cannot_fill_the_disk_with_refusals(tmp_path: Path, clock: Clock) -> None:
    view = View(tmp_path / "view.sqlite", now=clock, refusals=3)
    _take(view, entry(WEB.name, at=NOW))
    names = [*(f"n{n}.example.com" for n in range(9)), WEB.name]
    view.take([ReceivedEntry(node=name, token=b"x", found="no") for name in names])
    assert {one.node for one in view.refused()} == {*names[:3], WEB.name}


def test_a_view_has_a_largest_size(tmp_path: Path, clock: Clock) -> None:
    web = entry(WEB.name, at=NOW)
    view = View(tmp_path / "view.sqlite", now=clock, most=len(signed(WEB, web)) + 10)
    _take(view, web)
    _take(view, entry(DB.name, at=NOW))
    assert _nodes(view) == [WEB.name]
    assert "no space left" in view.refused()[0].reason
    view.distrust(WEB.name, "gone")
    _take(view, entry(DB.name, at=NOW))
    assert _nodes(view) == [DB.name]


def test_a_damaged_file_is_an_error_and_can_be_rebuilt(view: View, tmp_path: Path) -> None:
    _take(view, entry(WEB.name, at=NOW))
    view.close()
    (tmp_path / "state" / "view.sqlite").write_bytes(b"rubbish" * 1000)
    with pytest.raises(DamagedError):
        view.current_until()
    view.rebuild()
    assert view.current_until() is None
    _take(view, entry(WEB.name, at=NOW))
    assert _nodes(view) == [WEB.name]


def test_a_damaged_entry_is_an_error_and_never_an_empty_answer(view: View, tmp_path: Path) -> None:
    _take(view, entry(WEB.name, at=NOW))
    with closing(sqlite3.connect(tmp_path / "state" / "view.sqlite")) as file, file:
        file.execute("UPDATE entries SET token = CAST('a.YQ.b' AS BLOB)")
    with pytest.raises(StateError, match="damaged entry"):
        list(view.entries())


def test_the_view_knows_which_nodes_published_since_a_revision(view: View) -> None:
    said = [(WEB, 3), (DB, 5)]
    view.take([received(one, entry(one.name, at=NOW), revision=revision) for one, revision in said])
    both, none = {WEB.name, DB.name}, set[str]()
    for revision, names in ((2, both), (3, {DB.name}), (5, none), (None, both)):
        assert view.since(revision) == names


@pytest.mark.parametrize(
    "damage", ["fact_values SET value = '{'", "fact_values SET value = ''", "nodes SET roles = '['"]
)
def test_a_damaged_row_is_no_empty_answer(view: View, tmp_path: Path, damage: str) -> None:
    _take(view, entry(WEB.name, at=NOW, facts={"os": {"family": "Debian"}}))
    with sqlite3.connect(tmp_path / "state" / "view.sqlite") as connection:
        connection.execute(f"UPDATE {damage}")
    connection.close()
    where = "facts.os.family = 'Debian' or facts.os ~ 'x' or facts.role = 'a'"
    column = "role" if "roles" in damage else f"inventory[certname] {{ {where} }}"
    with pytest.raises(StateError):
        if column == "role":
            FunctionCall.of("query_nodes", ["role=a"]).answer(view)
        FunctionCall.of("puppetdb_query", [column]).answer(view)


def test_an_entry_is_not_taken_for_another_that_was_written_before(view: View) -> None:
    for at, odd in ((NOW, 1), (NOW, 2)):
        _take(view, entry(WEB.name, at=at, facts={"odd": odd}, roles=("web",)))
        for _ in range(2):
            servers: Any = FunctionCall.of("servers_with_role", ["web"]).answer(view).result
            assert [server["odd"] for server in servers] == [odd]


@pytest.mark.parametrize(
    "names", [["web01.example.com"] * 2, ["WEB01.example.com"], ["1", 1, "1.0"]]
)
def test_names_that_occur_twice_or_share_a_term_are_names(view: View, names: list[Json]) -> None:
    _take(view, entry(WEB.name, at=NOW), entry(DB.name, at=NOW))
    query: Json = ["from", "nodes", ["in", "certname", ["array", [*names, DB.name]]]]
    found = FunctionCall.of("puppetdb_query", [query]).answer(view).names
    assert found == tuple(name for name in (DB.name, WEB.name) if name in (*names, DB.name))


_OF_FORMAT_4 = """
CREATE TABLE entries (node TEXT PRIMARY KEY, at REAL NOT NULL, token BLOB NOT NULL,
    revision INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE index_terms (path TEXT, term TEXT, node TEXT);
CREATE TABLE briefs (node TEXT PRIMARY KEY);
CREATE TABLE seen (node TEXT PRIMARY KEY, at REAL NOT NULL, forgotten REAL, forgotten_by TEXT)
    STRICT, WITHOUT ROWID;
CREATE TABLE state (one INTEGER PRIMARY KEY, current REAL, revision INTEGER NOT NULL,
    trust TEXT NOT NULL, size INTEGER NOT NULL) STRICT;
INSERT INTO state VALUES (1, 5, 7, 'x', 9);
PRAGMA user_version = 4;
"""


@pytest.mark.parametrize("how", ["converted", "rebuilt"])
def test_an_older_entry_stays_gone_in_a_new_file(view: View, tmp_path: Path, how: str) -> None:
    if how == "rebuilt":
        _take(view, entry(WEB.name, at=NOW))
        view.forget(Tombstone(node=NodeName(DB.name), at=NOW), by="alice")
        view.rebuild()
    else:
        (tmp_path / "state").mkdir(mode=0o700, exist_ok=True)
        with sqlite3.connect(tmp_path / "state" / "view.sqlite") as connection:
            connection.executescript(_OF_FORMAT_4)
            web = entry(WEB.name, at=NOW)
            connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?, 7)", (WEB.name, NOW, signed(WEB, web))
            )
            connection.execute("INSERT INTO seen VALUES (?, ?, NULL, NULL)", (WEB.name, NOW))
            connection.execute("INSERT INTO seen VALUES (?, 0, ?, 'alice')", (DB.name, NOW))
        connection.close()
    assert view.current_until() is None
    stored: list[str] = [WEB.name] if how == "converted" else []
    view.restore()
    assert _nodes(view) == stored
    if how == "converted":
        assert view.unknown(dict(view.tokens())) == set(), "its messages are stored as they came"
    _take(view, entry(WEB.name, at=NOW - 1), entry(DB.name, at=NOW))
    assert _nodes(view) == stored
    _take(view, entry(WEB.name, at=NOW), entry(DB.name, at=NOW + 1))
    assert _nodes(view) == [DB.name, WEB.name]
