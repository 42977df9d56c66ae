"""The options of one run, besides its input."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from localpuppet.node.enc.document import NodeDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How Puppet is run once.

    Attributes:
        noop: Change nothing (`--noop`).
        tags: Only resources with these tags.
        extra: More options for Puppet.
        timeout: Seconds.
        user: The user who asks.
        cause: What led to it.
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

    @property
    def part(self) -> str:
        """The options that choose a part of the catalog; empty for the whole catalog."""
        extra = " ".join(self.extra)
        chosen = [
            "" if self.tags is None else f"--tags {self.tags}",
            extra if "tags" in extra else "",
        ]
        return " ".join(filter(None, chosen))
