"""The private members of nats-py: where localpuppet uses them, and that the library has them."""

import ast
from collections.abc import Iterator
from pathlib import Path

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from localpuppet.fleet.bus import nats_client

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
