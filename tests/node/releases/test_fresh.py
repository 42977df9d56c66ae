"""`fresh` limits the age at which a release may be installed, by its signed timestamp."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.node.releases.limits import MAX_TAG_AHEAD
from localpuppet.node.releases.source import ReleaseSource
from tests.rigs.forge import Forge
from tests.rigs.node import Node
from tests.rigs.packages import build
from tests.rigs.signing import TAGGED_AT, Signing, sign_tag
from tests.rigs.staged import R1, R2, ReleaseSite, url

DAY = 86400


@pytest.fixture
def fresh(web_site: ReleaseSite) -> ReleaseSite:
    """The site with a source `web` that installs releases by `alice` for thirty days."""
    keys = web_site.root / "keys"
    keys.write_text("alice")
    web_site.sources["web"] = replace(web_site.source("web", keys), fresh=30 * DAY)
    tagged(web_site, "r1", days=0)
    return web_site


def tagged(site: ReleaseSite, tag: str, *, days: float, annotated: bool = True) -> None:
    """Publish a signed release whose tag timestamp is some days ago."""
    time = int(site.clock.now().timestamp() - days * DAY)
    files = site.files(tag)
    site.servers.publish(url("web"), tag, files, signer="alice", time=time, annotated=annotated)


def test_a_release_older_than_the_limit_of_its_source_is_refused(fresh: ReleaseSite) -> None:
    tagged(fresh, "r2", days=31)
    with pytest.raises(IntegrityError, match=r"r2: was tagged 31d ago, and web installs .* 30d"):
        fresh.staging().stage(R2)
    assert fresh.says(R2) == ""
    fresh.staging().stage(R1)
    tagged(fresh, "r2", days=29)
    fresh.staging().stage(R2)


def test_a_staged_release_stays_and_is_repaired_at_any_age(fresh: ReleaseSite) -> None:
    staged = fresh.staging().stage(R1)
    fresh.clock.advance(60 * DAY)
    assert fresh.staging().stage(R1) == staged
    assert fresh.staging().stage(R1, refresh=True) == staged
    fresh.store.remove(staged.pin.tree_sha256)
    assert fresh.staging().stage(R1) == staged
    staging = fresh.staging()
    staging.remove(staged, kept=[])
    with pytest.raises(IntegrityError, match="was tagged 60d ago"):
        fresh.staging().stage(R1)


def test_the_limit_applies_to_a_moved_tag(fresh: ReleaseSite) -> None:
    fresh.staging().stage(R1)
    tagged(fresh, "r1", days=40)
    with pytest.raises(IntegrityError, match="was tagged 40d ago"):
        fresh.staging().stage(R1, accept_moved=True)


def test_a_tag_timestamp_in_the_future_is_refused(fresh: ReleaseSite) -> None:
    tagged(fresh, "r2", days=-(MAX_TAG_AHEAD / DAY) - 1)
    with pytest.raises(IntegrityError, match="has a tag timestamp 2d from now"):
        fresh.staging().stage(R2)
    tagged(fresh, "r2", days=-0.5)
    fresh.staging().stage(R2)


def test_the_age_of_a_collection_is_that_of_the_release_that_pins_it(fresh: ReleaseSite) -> None:
    """The tag of `dist` is old, but the signed release that pins it was tagged today."""
    keys = fresh.root / "keys"
    fresh.sources["dist"] = replace(fresh.source("dist", keys), fresh=DAY)
    fresh.servers.publish(url("dist"), "r7", fresh.dist, signer="alice", time=1_700_000_000)
    tagged(fresh, "r2", days=0)
    fresh.staging().stage(R2)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"fresh": "30d"}, "sources.web: fresh needs require_signed"),
        (
            {"fresh": "soon", "require_signed": True, "signers": "keys"},
            r"sources.web.fresh: 'soon'",
        ),
        ({"signatures": 2}, "sources.web: signatures needs require_signed"),
    ],
)
def test_invalid_settings_of_a_source_are_refused(body: dict[str, object], problem: str) -> None:
    raw = {"git": "https://git.example.net/web.git", **body}
    with pytest.raises(InvalidInputError, match=problem):
        ReleaseSource.from_dict("web", raw, root=Path("/etc/puppet"), allow_file=False)


def test_a_node_refuses_an_old_release_but_keeps_a_staged_one(
    node: Node, forge: Forge, signing: Signing, tmp_path: Path
) -> None:
    """With real git, OpenSSH, and a clock that libfaketime moves."""
    web = forge.repo("web")
    web.commit({"manifest.yaml": "modules: {}\n", "web/manifests/init.pp": "class web {}\n"})
    for tag in ("r1", "r2"):
        sign_tag(web, tag, signing)
    source = {
        "git": web.url,
        "require_signed": True,
        "signers": str(signing.ssh_signers("ssh")),
        "fresh": "30d",
    }
    node.settings(allow_file_urls=True, sources={"web": source})
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")

    def after(days: int, tag: str) -> tuple[int, str]:
        moment = datetime.fromtimestamp(TAGGED_AT + days * DAY, UTC)
        done = node.run(
            *("stage", f"web/tags/{tag}", "--no-parse"),
            LD_PRELOAD=str(library),
            FAKETIME=f"@{moment:%Y-%m-%d %H:%M:%S}",
            TZ="UTC",
        )
        return done.code, done.err

    assert after(29, "r1")[0] == 0
    assert after(31, "r1")[0] == 0, "r1 is staged"
    code, message = after(31, "r2")
    assert code == 3
    assert "web/tags/r2: was tagged 31d ago" in message
    assert "web/tags/r2" not in json.dumps(node.run("release", "list", "--json").json)
    pack = build(node, "tar", tmp_path / "out", "web/tags/r1")
    (node.state / "staged" / "web%tags%r1.json").unlink()
    refused = node.run("stage", "web/tags/r1", "--pack", str(pack), "--no-parse", code=3)
    assert "limits the age of tags, and a package has no tag timestamp" in refused.err
