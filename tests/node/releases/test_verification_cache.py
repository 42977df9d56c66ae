"""Stored verifications of tags, with the digest of the signers file."""

from dataclasses import replace
from pathlib import Path

from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.source import ReleaseSource
from localpuppet.node.releases.staged_records import StagedRelease
from localpuppet.node.releases.verification import VerificationCache, rules_digest

APP = ReleasePath("web/tags/r1")
URL = GitUrl("https://git.example.net/web.git")
PIN = Pin(url=URL, tag=Tag("r1"), tag_object="a" * 40, commit="b" * 40, tree_sha256="c" * 64)


def test_a_signer_that_is_removed_during_staging_is_not_trusted(
    tmp_path: Path,
) -> None:
    signers = tmp_path / "signers"
    signers.write_text("mallory key\n")
    source = ReleaseSource(name="web", url=URL, signers=signers)
    verified = VerificationCache(tmp_path / "state")
    rules = rules_digest(source)  # git verifies with these
    signers.write_text("alice key\n")
    verified.note([(source, PIN, rules)])
    assert not verified.current().accepts(source, PIN)
    verified.note([(source, PIN, rules_digest(source))])
    assert verified.current().accepts(source, PIN)


def test_unverified_returns_the_first_part_of_a_release_without_a_stored_verification(
    tmp_path: Path,
) -> None:
    signers = tmp_path / "signers"
    signers.write_text("alice key\n")
    sources = {name: ReleaseSource(name=name, url=URL, signers=signers) for name in ("web", "dist")}
    sources["open"] = ReleaseSource(name="open", url=URL, signers=None)
    dist = replace(PIN, tag=Tag("r7"), tree_sha256="d" * 64)
    collections = {"open/tags/r1": "e" * 64, "dist/tags/r7": dist.tree_sha256}
    staged = StagedRelease(
        release=APP, pin=PIN, composition="", modules={}, sources=collections, moduledir=""
    )
    verified = VerificationCache(tmp_path / "state")
    assert verified.current().unverified(staged, sources) == APP
    assert verified.current().unverified(staged, {}) is None
    rules = {name: rules_digest(source) for name, source in sources.items()}
    verified.note([(sources["web"], PIN, rules["web"]), (sources["open"], PIN, "")])
    assert verified.current().unverified(staged, sources) == "dist/tags/r7"
    verified.note([(sources["web"], PIN, rules["web"]), (sources["dist"], dist, rules["dist"])])
    assert verified.current().unverified(staged, sources) is None
    signers.write_text("bob key\n")
    assert verified.current().unverified(staged, sources) == APP
