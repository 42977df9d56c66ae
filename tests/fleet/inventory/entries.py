"""Entries of nodes, as tests of the inventory make and sign them."""

from typing import Any

from localpuppet.base.formats.names import EnvironmentName, NodeName, RunId
from localpuppet.fleet.bus.layout import INVENTORY
from localpuppet.fleet.inventory.admission import ReceivedEntry
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.tables import EntryRows
from localpuppet.fleet.trust.signing import MessageKind
from tests.doubles.identities import Person

RUN = RunId.parse("20261120T140000.000000Z-00aa")


def entry(node: str, *, at: float, **more: Any) -> InventoryEntry:
    """Return an entry; `more` are fields of it."""
    fields: dict[str, Any] = {
        "node": NodeName.parse(node),
        "at": at,
        "run": RUN,
        "release": "app/tags/r1",
        "environment": EnvironmentName.parse("production", where=""),
        "facts": {"os": {"family": "Debian"}, "fqdn": node},
        "roles": (),
        **more,
    }
    return InventoryEntry(**fields).digested()


def signed(by: Person, said: InventoryEntry) -> bytes:
    return by.signer.sign(said.to_payload(), MessageKind.INVENTORY)


def key_of(node: str) -> str:
    return f"{INVENTORY}{node}"


def received(by: Person, said: InventoryEntry, *, revision: int = 0) -> ReceivedEntry:
    return ReceivedEntry(
        node=str(said.node), token=signed(by, said), found=EntryRows.of(said), revision=revision
    )
