"""The policy's file: a file that is not there, and one that only seems not to be."""

from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.trust.policy import peer_refusal, read_policy

SENDER = NodeName("web01.example.com")


def test_no_file_is_no_policy(tmp_path: Path) -> None:
    path = tmp_path / "policies" / "puppet.policy"
    assert read_policy(path) is None
    assert peer_refusal(path, SENDER, "trigger") is None, "each trusted sender may trigger"


def test_a_dangling_link_denies(tmp_path: Path) -> None:
    path = tmp_path / "puppet.policy"
    path.symlink_to("elsewhere.policy")
    with pytest.raises(InvalidInputError, match="is a broken link"):
        read_policy(path)
    assert "is a broken link" in (peer_refusal(path, SENDER, "trigger") or "")


def test_a_policy_that_others_could_write_denies(tmp_path: Path) -> None:
    path = tmp_path / "puppet.policy"
    path.write_text("policy default allow\n")
    path.chmod(0o666)
    assert "writable by others" in (peer_refusal(path, SENDER, "trigger") or "")
