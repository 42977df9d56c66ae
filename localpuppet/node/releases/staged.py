"""The record of a staged release."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.schema_number import check_schema, damage_errors
from localpuppet.base.value import Value
from localpuppet.node.releases.lock import Pin
from localpuppet.node.releases.manifest import parse_inner_path

SCHEMA = 1


class StagedRelease(Value):
    """The record of a staged release: its trees by digest.

    Attributes:
        release: Its name.
        pin: The pin of the release's tag, with the digest of its tree.
        composition: The name of its link directory.
        modules: Digests of its single modules by name.
        sources: Digests of its collections by path.
        moduledir: The directory of single modules in it; empty for its top.
    """

    release: ReleasePath
    pin: Pin
    composition: str
    modules: Mapping[str, str]
    sources: Mapping[str, str]
    moduledir: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "StagedRelease":
        """Return the record."""
        with damage_errors():
            check_schema(raw, SCHEMA)
            return cls(
                release=ReleasePath.parse(raw["release"], where="release"),
                pin=Pin.from_dict(raw["pin"], where="pin", allow_file=True),
                composition=str(raw["composition"]),
                modules=dict(raw["modules"]),
                sources=dict(raw["sources"]),
                moduledir=parse_inner_path(str(raw["moduledir"]), where="moduledir"),
            )

    @property
    def named(self) -> dict[ReleasePath, str]:
        """Digests of the trees with a name below `modules/`, by that name; the release's first."""
        sources = {ReleasePath(name): sha256 for name, sha256 in self.sources.items()}
        return {self.release: self.pin.tree_sha256, **sources}

    @property
    def trees(self) -> dict[str, str]:
        """Digests of all trees that it needs, by their names in messages."""
        modules = {f"module {name}": sha256 for name, sha256 in self.modules.items()}
        return {str(self.release): self.pin.tree_sha256, **modules, **self.sources}

    @property
    def digests(self) -> set[str]:
        """Digests of all trees that it needs."""
        return set(self.trees.values())


def composition(links: Mapping[str, str]) -> str:
    """Return the name of a link directory: the SHA-256 of its listing."""
    listing = "".join(f"{name} {links[name]}\n" for name in sorted(links))
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()
