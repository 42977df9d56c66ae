"""A compromised node: what it can and cannot make another node take, through the bus.

It has its own key, writes what it likes below its own keys, and signs an entry that names it.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.exports.recording import CollectorService
from localpuppet.fleet.exports.resource import PackedResources
from localpuppet.fleet.exports.search import CollectorResult, Search
from localpuppet.fleet.inventory.chunks import digest_of
from localpuppet.fleet.inventory.entry_publisher import publish
from tests.fleet.exports.test_bringing import NAME, OLD, Rig
from tests.fleet.make import resource

POLICY = f"{NAME}\tHost\t*\n{NAME}\tFile\t/srv/*\n"


def written(kind: str, title: str, **parameters: Any) -> dict[str, Any]:
    return resource(kind, title, **parameters).to_dict()


class TakenOver(Rig):
    """A node that an attacker has taken over and speaks for."""

    async def offer(self, *resources: dict[str, Any]) -> None:
        """Publish what localpuppet itself would not."""
        data = zlib.compress(json.dumps({"schema": 1, "resources": resources}).encode())
        packed = PackedResources(data=data, digest=digest_of(data), count=len(resources))
        self.outbox.write(packed.data)
        said = self.entry_for(packed)
        await publish(self.kv, said.to_payload(), self.voice())
        self.arrive(said)

    def collect(self, kind: str) -> CollectorResult:
        policy = self.directory / "collect.policy"
        policy.write_text(POLICY)
        collecting = CollectorService(self.held, me="me.example.com", policy=policy)
        return collecting.collect(kind, Search.parse(None))


@pytest.mark.parametrize(
    "said",
    [
        written("Host", "a\x1b[2Jb"),
        written("Host", "a\nb"),
        written("Host", "a", comment="x" * 10 * 1024**2),
        written("Host", "a", comment={"__ptype": "Deferred", "name": "system"}),
        written("Host", "a") | {"node": "db01.example.com"},
        written("Class", "a") | {"type": "file; rm"},
    ],
    ids=["escape", "newline", "10 MB", "deferred", "another's", "type"],
)
async def test_invalid_resources_of_an_attacker_change_nothing(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    evil = TakenOver(tmp_path)
    await evil.publish(OLD)
    await evil.read()
    await evil.offer(said)
    assert await evil.read() == ["old"]
    assert list(evil.held.refused()) == [NAME]
    (taken,) = evil.collect("Host").taken  # what it published before the attack
    assert taken.resource.title == "old"


async def test_valid_resources_of_an_attacker_are_checked_against_the_policy(
    tmp_path: Path,
) -> None:
    evil = TakenOver(tmp_path)
    guarded = {"alias": "sshd", "require": "File[/x]", "notify": "Exec[x]", "provider": "evil"}
    await evil.offer(
        written("Exec", "/bin/sh -c evil"),
        written("File", "/etc/sudoers", content="evil ALL"),
        written("File", "/srv/../etc/sudoers", content="evil ALL"),
        written("File", "/srv/x", path="/etc/sudoers", content="evil ALL"),
        written("Host", "h", ip="10.0.0.1", **guarded),
        written("Evil::Own", "x"),
    )
    await evil.read()
    for kind in ("Exec", "Evil::Own"):
        with pytest.raises(
            InvalidInputError, match=f"{NAME} exports it, and no policy line names {kind}"
        ):
            evil.collect(kind)
    (host,) = evil.collect("Host").taken
    assert dict(host.resource.parameters) == {"ip": "10.0.0.1"}
    files = evil.collect("File")
    assert [(one.resource.title, one.dropped) for one in files.taken] == [("/srv/x", ("path",))]
    reasons = [one.reason.partition(",")[0] for one in files.left_out]
    assert reasons == ["no policy line covers this signer and title", "its title has '..'"]
