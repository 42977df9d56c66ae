"""The keys that `peer_settings` reads are those for which each command calls it."""

from pathlib import Path
from typing import Any

from localpuppet.base.formats.documents import Documents
from localpuppet.fleet.settings.peers import peer_settings
from localpuppet.main import PEER_KEYS
from localpuppet.node.settings.node import SettingsFile


class RecordedKeys(dict[str, Any]):
    """An empty document that records which keys are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)


def test_each_command_checks_all_keys_of_peers(tmp_path: Path) -> None:
    raw = RecordedKeys()
    file = tmp_path / "localpuppet.yaml"
    documents = Documents(None)
    peer_settings(
        SettingsFile(root=tmp_path, state=tmp_path, path=file, raw=raw, documents=documents)
    )
    assert raw.read == PEER_KEYS
