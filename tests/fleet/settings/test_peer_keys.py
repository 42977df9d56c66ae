"""The keys that `peer_settings` reads are those for which each command calls it."""

from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.formats.documents import Documents
from localpuppet.fleet.fleet_settings import peer_settings
from localpuppet.main import PEER_KEYS
from localpuppet.node.settings import SettingsFile


class RecordedKeys(dict[str, Any]):
    """A document that records which keys are read."""

    def __init__(self, full: dict[str, Any]) -> None:
        super().__init__(full)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


def test_each_command_checks_all_keys_of_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "localpuppet.yaml"
    settings = SettingsFile(
        root=tmp_path, state=tmp_path, path=file, raw={}, documents=Documents(None)
    )
    full = RecordedKeys(settings.full)
    monkeypatch.setattr(SettingsFile, "full", full)
    peer_settings(settings)
    assert full.read == PEER_KEYS
