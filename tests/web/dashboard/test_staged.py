"""Releases that are staged: who signed them, and how they differ, with real trees."""

from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.staged_records import StagedRecords
from localpuppet.node.releases.tag_memory import TagMemory
from localpuppet.web.dashboard.releases import MOST_TEXT, NOBODY, UNTOLD, LocalStagedReleases
from tests.rigs.staged import R1, R2, ReleaseSite, url


class Signed:
    """A node on which two releases are staged, signed by alice."""

    def __init__(self, root: Path) -> None:
        self.site = ReleaseSite(root)
        self.signers = root / "signers"
        self.signers.write_text("alice bob\n")
        self.site.sources["web"] = self.site.source("web", self.signers)
        for app in (R1, R2):
            tag = app.rpartition("/")[2]
            files = self.site.files(tag)
            self.site.servers.publish(url("web"), tag, files, signer="alice")
            self.site.staging().stage(app)
        self.here = self.made()

    def made(self) -> LocalStagedReleases:
        site = self.site
        return LocalStagedReleases(
            StagedRecords(site.state),
            site.resolve,
            repository=site.repository,
            sources=site.sources,
            reader=site.release_files,
            tags=TagMemory(site.state),
            monotonic=site.clock.monotonic,
        )


@pytest.fixture
def signed(tmp_path: Path) -> Signed:
    return Signed(tmp_path)


def test_the_signer_follows_from_the_current_signers_file(signed: Signed) -> None:
    first, second = signed.here.all()
    assert signed.here.signed(first) == "alice"
    signed.signers.write_text("bob\n")
    assert signed.here.signed(first) == NOBODY
    assert signed.here.signed(second) == NOBODY
    signed.signers.write_text("alice carol\n")
    assert signed.here.signed(first) == "alice"
    signed.signers.unlink()
    assert signed.here.signed(first) == UNTOLD


def test_a_moved_tag_does_not_name_the_signer_of_the_staged_release(signed: Signed) -> None:
    site, first = signed.site, signed.here.all()[0]
    site.servers.publish(url("web"), "r1", {"a": b"b"}, signer="bob")
    site.repository.fetch([(url("web"), "r1")], refresh=True)
    assert site.repository.verify_signature(url("web"), "r1", signers=signed.signers).name == "bob"
    assert signed.here.signed(first) == UNTOLD
    assert [signed.here.subject(one) for one in signed.here.all()] == ["", "r2"]


def test_a_signature_is_judged_once_for_each_signers_file(signed: Signed) -> None:
    site, first = signed.site, signed.here.all()[0]
    signed.signers.write_text("bob\n")
    assert signed.here.signed(first) == NOBODY
    # The tag moves: a second judgement has another result.
    site.servers.publish(url("web"), "r1", {"a": b"b"}, signer="bob")
    site.repository.fetch([(url("web"), "r1")], refresh=True)
    assert signed.here.signed(first) == NOBODY
    assert signed.made().signed(first) == UNTOLD


def test_all_signers_are_named_if_several_are_required(signed: Signed) -> None:
    source = signed.site.sources["web"]
    signed.site.servers.countersign(url("web"), "r1", "bob")
    signed.site.repository.countersignatures(
        url("web"), "r1", signers=signed.signers, source="web", refresh=True
    )
    signed.site.sources["web"] = replace(source, signatures=2)
    assert signed.made().signed(signed.here.all()[0]) == "alice, bob"


def test_without_required_signatures_no_signer_is_named(signed: Signed) -> None:
    signed.site.sources["web"] = signed.site.source("web")
    assert signed.made().signed(signed.here.all()[0]) == ""


def test_two_releases_are_compared_file_by_file(signed: Signed) -> None:
    found = signed.here.differences(R1, R2)
    assert set(found) == {"dependencies", "files"}
    assert not found["dependencies"]
    assert list(found["files"].changed) == ["web/manifests/init.pp"]
    assert not any(signed.here.differences(R1, R1).values())


def test_differing_files_are_compared_as_text_up_to_a_limit(signed: Signed) -> None:
    found = signed.here.texts(R1, R2, ["web/manifests/init.pp", "manifest.yaml"])
    head = "--- web/tags/r1/web/manifests/init.pp\n+++ web/tags/r2/web/manifests/init.pp\n"
    text = "-class web { notify { 'r1': } }\n+class web { notify { 'r2': } }"
    assert found["web/manifests/init.pp"] == f"{head}@@ -1 +1 @@\n{text}"
    assert found["manifest.yaml"] == "no difference in content"
    with pytest.raises(InvalidInputError, match="web/tags/r3: is not staged"):
        signed.here.texts(R1, ReleasePath("web/tags/r3"), [])
    large = signed.site.files("r9") | dict.fromkeys("abc", (b"x" * 63 + b"\n") * 4000)
    signed.site.servers.publish(url("web"), "r9", large, signer="alice")
    signed.site.staging().stage(ReleasePath("web/tags/r9"))
    cut = signed.here.texts(R1, ReleasePath("web/tags/r9"), ["a", "b", "c"])
    assert [cut[name].startswith("--- ") for name in "abc"] == [True, True, False]
    assert cut["c"] == f"not shown: the diffs before it have {MOST_TEXT} characters"


def test_the_previous_release_is_that_by_tag_timestamp(signed: Signed) -> None:
    first, second = signed.here.all()
    memory = TagMemory(signed.site.state)
    memory.note_time(first.pin.tag_object, 2000)
    memory.note_time(second.pin.tag_object, 1000)
    assert signed.here.previous() == {R1: R2}
    (signed.site.state / "tags.json").write_text("[]")
    assert signed.here.previous() == {}


def test_only_staged_releases_are_compared(signed: Signed) -> None:
    asked = list(signed.site.repository.asked)
    with pytest.raises(InvalidInputError, match=r"web/tags/r3: is not staged.*localpuppet stage"):
        signed.here.differences(R1, ReleasePath("web/tags/r3"))
    assert signed.site.repository.asked == asked
