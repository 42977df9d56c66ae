"""The record of a staged release."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, ClassVar

from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.records import JsonForm, JsonRecord
from localpuppet.node.releases.lock import Pin
from localpuppet.node.releases.manifest import parse_inner_path

SCHEMA = 1


_pin = partial(Pin.from_dict, where="", allow_file=True)


class StagedRelease(JsonRecord):
    """The record of a staged release: its trees by digest.

    Attributes:
        release: Its name.
        pin: The pin of the release's tag, with the digest of its tree.
        composition: The name of its link directory.
        modules: Digests of its single modules by name.
        sources: Digests of its collections by path.
        moduledir: The directory of single modules in it; empty for its top.
    """

    SCHEMA: ClassVar = SCHEMA
    release: ReleasePath
    pin: Annotated[Pin, JsonForm(_pin, asdict)]
    composition: str
    modules: Mapping[str, str]
    sources: Mapping[str, str]
    moduledir: Annotated[str, partial(parse_inner_path, where="")]

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
