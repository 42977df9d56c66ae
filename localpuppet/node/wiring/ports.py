"""Ports of a node, to which layers above connect; a node alone has the no-op defaults."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from localpuppet.node.settings.files import SettingsFile

SectionReader = Callable[[SettingsFile], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """What layers above add to a node.

    Attributes:
        sections: Returns the readers of further sections of `localpuppet.yaml`: whatever the
            command is, an invalid section is an error.
    """

    sections: Callable[[], Sequence[SectionReader]] = lambda: ()


ALONE = NodePorts()
