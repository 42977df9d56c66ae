"""Servers in SRV records: their order, and which server is asked when."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.site_file import (
    DEFAULT,
    Record,
    ServiceFetch,
    in_order,
    site_url,
)
from localpuppet.rollout.site_file import (
    SERVICE_MOST as MOST,
)
from tests.doubles.ports import FakeClock

NAME = "_x-puppet._tcp.example.com"
PATH = "/puppet/v3/environment/production"


def record(name: str, priority: int = 0, weight: int = 0, port: int = 8140) -> Record:
    target = NodeName(f"{name}.example.com")
    return Record(priority=priority, weight=weight, port=port, target=target)


@dataclass
class Servers:
    """Servers of which some are up, and each try takes a second."""

    found: Sequence[Record] | UnavailableError = ()
    up: set[str] = field(default_factory=set)
    asked: list[tuple[str, float]] = field(default_factory=list)
    clock: FakeClock = field(default_factory=FakeClock)

    def records(self, name: str) -> Sequence[Record]:
        assert name == NAME
        if isinstance(self.found, UnavailableError):
            raise self.found
        return self.found

    def client(self, seconds: float) -> "Client":
        return Client(self, seconds)

    def fetch(self, default: str = "") -> ServiceFetch:
        return ServiceFetch(
            self.client,
            look_up=self.records,
            timeout=30,
            now=self.clock.monotonic,
            draw=lambda _: 0,
            default=default,
        )


@dataclass
class Client:
    servers: Servers
    seconds: float

    def get(self, url: str, *, limit: int) -> bytes:
        self.servers.asked.append((url, self.seconds))
        self.servers.clock.advance(6)
        if not any(url.startswith(f"https://{one}/") for one in self.servers.up):
            raise UnavailableError("is down", where=url)
        return b"{}"


def test_the_first_server_that_answers_is_used_within_a_single_timeout() -> None:
    servers = Servers(
        found=[record("c", 20), record("a", 10, port=8141), record("b", 15)],
        up={"b.example.com:8140", "c.example.com:8140"},
    )
    assert servers.fetch().get(f"https://{NAME}{PATH}", limit=5) == b"{}"
    assert servers.asked == [
        (f"https://a.example.com:8141{PATH}", 10.0),
        (f"https://b.example.com:8140{PATH}", 12.0),
    ]


def test_if_no_server_answers_the_last_reason_is_reported() -> None:
    servers = Servers(found=[record(f"s{number:02}") for number in range(20)])
    with pytest.raises(UnavailableError, match=f"{NAME}: none of {MOST} servers .* is down"):
        servers.fetch(DEFAULT).get(f"https://{NAME}{PATH}", limit=5)
    assert len(servers.asked) == MOST


def test_no_record_and_no_answer_are_two_things() -> None:
    servers = Servers(up={DEFAULT})
    with pytest.raises(UnavailableError, match="has no SRV records"):
        servers.fetch().get(f"https://{NAME}{PATH}", limit=5)
    assert servers.fetch(DEFAULT).get(f"https://{NAME}{PATH}", limit=5) == b"{}"
    servers.found = UnavailableError("lookup failed", where=NAME)
    with pytest.raises(UnavailableError, match="lookup failed"):
        servers.fetch(DEFAULT).get(f"https://{NAME}{PATH}", limit=5)
    assert len(servers.asked) == 1


def test_a_url_with_a_server_is_fetched_directly() -> None:
    servers = Servers(up={"puppet:8140"})
    assert servers.fetch().get(f"https://puppet:8140{PATH}", limit=5) == b"{}"
    assert servers.asked == [(f"https://puppet:8140{PATH}", 30)]
    for name in (f"{NAME}:8140", f"me:secret@{NAME}"):
        with pytest.raises(InvalidInputError, match="SRV records name it") as caught:
            servers.fetch().get(f"https://{name}{PATH}", limit=5)
        assert "secret" not in str(caught.value)


@given(
    st.lists(
        st.builds(
            record, st.sampled_from("abcdef"), st.integers(0, 3), st.integers(0, 5), st.just(1)
        ),
        max_size=8,
    ),
    st.data(),
)
def test_each_record_is_tried_once_the_lower_priorities_first(
    records: list[Record], data: st.DataObject
) -> None:
    def draw(below: int) -> int:
        return data.draw(st.integers(0, below - 1))

    found = in_order(records, draw)
    assert [one.priority for one in found] == sorted(one.priority for one in records)
    assert sorted(map(str, found)) == sorted(map(str, records))


@pytest.mark.parametrize(("mark", "first"), [(0, "z"), (1, "a"), (3, "a"), (4, "b"), (9, "b")])
def test_a_weight_is_a_share(mark: int, first: str) -> None:
    """RFC 2782: of those with weight 0 one has a small chance, and a number falls into a share."""
    records = [record("b", weight=6), record("a", weight=3), record("z")]
    draws: list[Callable[[int], int]] = [lambda _: mark, lambda _: 0]
    found = in_order(records, lambda below: draws.pop(0)(below) if draws else 0)
    assert found[0].target == f"{first}.example.com"


def test_srv_names_an_environment_of_this_nodes_domain() -> None:
    assert site_url("srv:dev", lambda: NodeName("db.example.com")) == (
        "https://_x-puppet._tcp.example.com/puppet/v3/environment/dev"
    )
    assert site_url("site.yaml", lambda: pytest.fail("is not asked")) == "site.yaml"
    with pytest.raises(InvalidInputError, match="this node's name has no domain"):
        site_url("srv:dev", lambda: NodeName("db"))
    with pytest.raises(InvalidInputError, match="not a valid environment name"):
        site_url("srv:../x", lambda: NodeName("db.example.com"))
