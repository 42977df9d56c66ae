"""Builders of the node's values, with good defaults."""

import os
from pathlib import Path
from typing import Any

from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.enc.input import read_enc
from localpuppet.node.releases.fetch import Fetcher
from localpuppet.node.releases.forge.pins import ForgePin, Slug
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.manifest import ReleaseFiles
from localpuppet.node.releases.module_metadata import ModuleVersion
from localpuppet.node.releases.release_records import Rollback
from localpuppet.node.releases.store import Store
from localpuppet.node.runs.run import Outcome, RunState, Status

RUN = "20261120T140312.482913Z-7f3a"


def pin(name: str, tag: str, **more: Any) -> Pin:
    """Return a pin of a repository at `https://git.example.net/NAME.git`."""
    fields = {"tag_object": "a" * 40, "commit": "b" * 40, "tree_sha256": "c" * 64, **more}
    return Pin(url=GitUrl(f"https://git.example.net/{name}.git"), tag=Tag(tag), **fields)


def forge_pin(slug: str = "acme/ntp", version: str = "1.0.0", **digests: str) -> ForgePin:
    return ForgePin(
        forge=Slug.parse(slug, where=""),
        version=ModuleVersion.parse(version, where=""),
        **{"archive_sha256": "", "tree_sha256": "", **digests},
    )


def git(mirrors: Path, **program: Any) -> Git:
    """Return a git that may use repositories on this disk, with its mirrors in a directory."""
    fields: dict[str, Any] = {"env": os.environ, "allow_file": True, "timeout": 60, **program}
    return Git(mirrors, GitProgram(**fields))


def fetcher(state: Path) -> Fetcher:
    return Fetcher(repository=git(state / "mirrors"), store=Store(state))


def release_files(documents: Documents | None = None, *, allow_file: bool = False) -> ReleaseFiles:
    return ReleaseFiles(
        documents=documents or Documents(None), allow_file=allow_file, read_enc=read_enc
    )


def assignment(release: str = "web/tags/r1", serial: int = 1, **more: Any) -> Assignment:
    """Return an assignment by alice."""
    return Assignment(release=ReleasePath(release), serial=serial, by="choria=alice", **more)


def rollback(release: str = "web/tags/r1", **more: Any) -> Rollback:
    """Return a rollback from r2 by bob."""
    fields: dict[str, Any] = {
        "run": RunId(RUN),
        "node_document": {"classes": {}},
        "input_sha256": "0" * 64,
        "user": "bob",
        "since": "2026-11-20T14:00:00Z",
        "input_release": f"{release.partition('/')[0]}/tags/r2",
        "serial": 0,
    }
    return Rollback(release=ReleasePath(release), **{**fields, **more})


def status(outcome: Outcome | None = None, **more: Any) -> Status:
    """Return the status of a run of r1, which is finished if it has an outcome."""
    fields: dict[str, Any] = {
        "id": RunId(RUN),
        "state": RunState.FINISHED if outcome else RunState.RUNNING,
        "outcome": outcome,
        "release": "web/tags/r1",
        "started_at": "2026-11-20T14:03:12.482913Z",
    }
    return Status(**{**fields, **more})
