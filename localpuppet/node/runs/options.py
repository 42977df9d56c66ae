"""The options of one run, besides its input, and the request that its record keeps."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.names import RunId
from localpuppet.base.value import Value
from localpuppet.node.enc.document import NodeDocument
from localpuppet.node.runs.run import SCHEMA


class RunOptions(Value):
    """How Puppet is run once.

    Attributes:
        document: An earlier node document to use unchanged (a rollback).
        despite_hold: Run while a hold is in force; only a noop run may.
        through: The owner of a hold that does not stop this run: the rollout that requests the run.
        causes: The agent's causes, as `Batch.to_dict()` gives them, and their `paths`.
    """

    noop: bool
    tags: str | None
    extra: tuple[str, ...]
    timeout: float
    user: str
    cause: str
    document: NodeDocument | None = None
    despite_hold: bool = False
    through: str | None = None
    causes: Mapping[str, Any] = field(default_factory=dict)

    def part(self, selection: Mapping[str, str]) -> str:
        """Return the options that choose a part of the catalog; empty for the whole catalog.

        Args:
            selection: The settings of puppet.conf for it, which the command line replaces.
        """
        extra = " ".join(self.extra)
        tags = "" if self.tags is None else f"--tags {self.tags}"
        own = [
            f"--{name} {value} (puppet.conf)"
            for name, value in selection.items()
            if value and f"--{name}" not in f"{tags} {extra}"
        ]
        return " ".join(filter(None, [tags, extra if "tags" in extra else "", *own]))


class RunRequest(JsonRecord):
    """`request.json`: the request for a run.

    Attributes:
        user: The login of the user (`alice`, also under sudo), or the uid.
        cause: What led to it: `manual`, `timer`.
        input: Where the input came from (a path, `-`, a URL).
        data: The ENC data of the input over the answer of the site's ENC, before the release's.
        causes: For a run of the agent: its first causes (`causes`), the number of all (`count`),
            and the paths of triggers (`paths`).
        work_tree: The directory of an unreleased work tree; empty for a release.
        assignment: For a run of an assigned release: `release`, `serial`, `by`, `at` and `rollout`;
            else empty.
    """

    SCHEMA: ClassVar = SCHEMA
    id: RunId
    requested_at: str
    user: str
    cause: str
    release: str
    modulepath: tuple[str, ...]
    environment: str
    input: str
    input_sha256: str
    layers: tuple[str, ...]
    noop: bool
    timeout: float
    command: tuple[str, ...]
    node_document: Mapping[str, Any]
    causes: Mapping[str, Any] = field(default_factory=dict)
    work_tree: str = ""
    instance_facts: tuple[str, ...] = ()
    assignment: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
