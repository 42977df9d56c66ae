"""What was verified, and by which signers file."""

from pathlib import Path

from localpuppet.releases.git.names import GitUrl, Tag
from localpuppet.releases.lock import Pin
from localpuppet.releases.source import Source
from localpuppet.releases.verified import Verified, rules_digest

URL = GitUrl("https://git.example.net/web.git")
PIN = Pin(url=URL, tag=Tag("r1"), tag_object="a" * 40, commit="b" * 40, tree_sha256="c" * 64)


def test_a_signer_who_is_removed_while_a_release_is_staged_vouches_for_nothing(
    tmp_path: Path,
) -> None:
    signers = tmp_path / "signers"
    signers.write_text("mallory key\n")
    source = Source(name="web", url=URL, signers=signers)
    verified = Verified(tmp_path / "state")
    rules = rules_digest(source)  # git verifies by these
    signers.write_text("alice key\n")
    verified.note(source, PIN, rules=rules)
    assert not verified.accepts(source, PIN)
    verified.note(source, PIN, rules=rules_digest(source))
    assert verified.accepts(source, PIN)
