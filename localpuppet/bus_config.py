"""The settings of the bus and of the agent: `localpuppet.yaml`, and `localpuppet-agent.yaml`.

Owns: the second file, which Puppet may write (class `localpuppet::agent`) while the first stays the
operator's, and that a key stands in one of them only. Apart from `config`, so that what needs no
bus does not pay for its settings.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpuppet import config
from localpuppet.documents import Documents
from localpuppet.errors import InvalidInputError
from localpuppet.files import read_user_file
from localpuppet.key_value import check_key
from localpuppet.model.bus_settings import AgentSettings, BusSettings
from localpuppet.model.names import NodeName

FILE = "localpuppet-agent.yaml"
KEYS = ("node", "bus", "buses", "agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What a node needs to know to be one of a fleet.

    Attributes:
        node: Its name, if a file says so.
        bus: The bus.
        agent: Its agent.
    """

    node: NodeName | None
    bus: BusSettings
    agent: AgentSettings


def load(settings: config.Settings, documents: Documents) -> Fleet:
    """Return the settings of the root.

    Raises:
        InvalidInputError: A file is refused, or both have the same key.
    """
    root = settings.root
    files = (
        (root / config.FILE, "settings"),
        (root / FILE, "agent"),
    )
    merged: dict[str, Any] = {}
    places: dict[str, Path] = {}
    for file, schema in files:
        for key, value in _read(file, schema, documents).items():
            if key in KEYS:
                if key in places:
                    raise InvalidInputError(
                        f"{key} is in {places[key]}, too", where=str(file), hint="say it once"
                    )
                merged[key] = value
                places[key] = file

    def place(key: str) -> str:
        return str(places.get(key, root / config.FILE))

    try:
        node = NodeName.parse(merged["node"]) if "node" in merged else None
    except InvalidInputError as error:
        raise error.at(f"{place('node')}: node") from error
    fleet = Fleet(
        node=node,
        bus=BusSettings.from_dict(
            merged, root=root, sqlite=settings.state / "bus" / "bus.sqlite", where=place("bus")
        ),
        agent=AgentSettings.from_dict(
            merged,
            root=root,
            run=Path("/run") if root == config.SYSTEM_ROOT else root / "run",
            where=place("agent"),
        ),
    )
    for path in (fleet.agent.sides.socket, fleet.agent.sides.relay):
        if len(os.fsencode(path)) > config.MAX_SOCKET:
            raise InvalidInputError(
                f"the socket {path} has more than {config.MAX_SOCKET} bytes",
                where=f"{place('agent')}: agent.network",
                hint="name a shorter one",
            )
    try:
        check_key(fleet.agent.keyprefix)
    except InvalidInputError as error:
        raise error.at(f"{place('agent')}: agent.keyprefix") from error
    return fleet


def _read(file: Path, schema: str, documents: Documents) -> Mapping[str, Any]:
    if not file.exists():
        return {}
    return documents.parse(read_user_file(file), schema=schema, where=str(file), may_be_empty=True)
