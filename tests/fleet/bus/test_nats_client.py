"""NATS without a server: private members of nats-py, subjects, times, versions."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.bus import nats_client
from localpuppet.fleet.bus.etcd_bus import weakness as weakness_of_etcd
from localpuppet.fleet.bus.jetstream_messages import (
    ServerClock,
    key_of,
    seconds,
    subject_of,
    subjects_below,
)
from localpuppet.fleet.bus.nats_bus import open_nats, weakness
from tests.rigs.reaching import servers_at

PACKAGE = Path(nats_client.__file__).parent
# What nats_client.py adds to the library's class.
OURS = {"_socket", "_takers"}


def private(name: str | None) -> bool:
    return name is not None and name.startswith("_") and not name.startswith("__")


def members_used(tree: ast.Module) -> Iterator[str]:
    """Yield the private members that code reads, sets, overrides or passes by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg is not None and private(node.arg):
            yield node.arg
        elif isinstance(node, ast.ClassDef):
            for step in node.body:
                if isinstance(step, ast.FunctionDef | ast.AsyncFunctionDef) and private(step.name):
                    yield step.name


def members_of_the_library() -> set[str]:
    transport = TcpTransport()  # type: ignore[no-untyped-call]
    library = (Client(), Subscription(None), transport, Msg(Client()))
    return {name for thing in library for name in dir(thing)}


def test_the_library_has_all_private_members_that_localpuppet_uses() -> None:
    used = set(members_used(ast.parse(Path(nats_client.__file__).read_text()))) - OURS
    assert "_process_msg" in used
    missing = sorted(used - members_of_the_library())
    assert not missing, (
        f"this nats-py lacks {', '.join(missing)}: see localpuppet/fleet/bus/nats_client.py"
    )


def test_no_other_file_uses_a_private_member_of_another_object() -> None:
    files = sorted([*PACKAGE.glob("jetstream*.py"), *PACKAGE.glob("nats_*.py")])
    assert len(files) == 5
    for path in files:
        if path.name == "nats_client.py":
            continue
        strange = [
            f"{path.name}:{node.lineno}: {node.attr}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
            and private(node.attr)
            and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        ]
        assert not strange


async def test_a_credentials_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="file not found"):
        await open_nats(
            servers_at("nats://127.0.0.1:1", credentials=tmp_path / "none"), timeout=60.0
        )


def test_keys_and_subjects() -> None:
    assert subject_of("lp", "/a/web01.example.com") == "lp.a.web01~example~com"
    assert subjects_below("lp", "/a/b.c/") == "lp.a.b~c.>"
    assert key_of("lp", "lp.a.web01~example~com") == "/a/web01.example.com"


def test_times_of_the_server() -> None:
    assert seconds("1970-01-01T00:00:01Z") == 1.0
    assert seconds("1970-01-01T00:00:01.123456789Z") == pytest.approx(1.123456789)
    assert seconds("1970-01-01T02:00:01.5+02:00") == 1.5
    clock = ServerClock()
    assert clock.passed() == 0.0
    clock.learn("no time")
    assert not clock.known
    clock.learn("1970-01-01T01:00:00Z")
    assert 3599.0 < clock.passed() < 3600.0 + 60.0


@pytest.mark.parametrize(
    ("weakness_of", "version", "weak"),
    [
        *((weakness, version, True) for version in ("2.9.25", "", "2.\u00b2", f"2.{'9' * 5000}")),
        *((weakness, version, False) for version in ("2.10.0", "2.15.1-beta", "3.0.0")),
        (weakness_of_etcd, "3.4.99", True),
        (weakness_of_etcd, "3.5.32", True),
        (weakness_of_etcd, "3.5.33", False),
        (weakness_of_etcd, "3.6.13", True),
        (weakness_of_etcd, "3.6.14", False),
        (weakness_of_etcd, "3.7.0", False),
        (weakness_of_etcd, "4.0.0", False),
        (weakness_of_etcd, "3.5.33-rc.1", False),
        (weakness_of_etcd, "\x1b[2J", True),
        (weakness_of_etcd, "3.5.\u00b2", True),
        (weakness_of_etcd, f"3.5.{'9' * 5000}", True),
    ],
)
def test_versions(weakness_of: Callable[[str], str | None], version: str, weak: bool) -> None:
    said = weakness_of(version)
    assert (said is not None) is weak
    assert "\x1b" not in (said or "")
