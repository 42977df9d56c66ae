"""Names of modules of the Forge, as a manifest wants them and a lock pins them."""

import re
from dataclasses import replace
from typing import ClassVar, cast

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.node.releases.limits import Limits
from localpuppet.node.releases.module_metadata import ModuleVersion, Range
from localpuppet.node.releases.modules import Module, ModulePin

KIND = "forge"
LIMITS = Limits(file=256 * 1024**2, unpacked=1024**3, members=100_000)
_PAGES = "https://forge.puppet.com/modules"
_SLUG = r"([A-Za-z0-9]{1,64})[/-]([a-z][a-z0-9_]{0,99})\Z"


class Slug(str):
    """A module of the Forge as `OWNER/NAME`; `OWNER-NAME` is read as well."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, *, where: str = "") -> "Slug":
        if (match := re.match(_SLUG, text)) is None:
            raise InvalidInputError(
                f"{text[:60]!r} is not a module of the Forge",
                where=where,
                hint="OWNER/NAME, such as puppetlabs/stdlib",
            )
        return cls(f"{match[1]}/{match[2]}")

    @property
    def module(self) -> str:
        """The module's own name, which is its directory."""
        return self.partition("/")[2]

    @property
    def dashed(self) -> str:
        """`OWNER-NAME`, as in the API and in `metadata.json`."""
        return self.replace("/", "-", 1)


class ForgePin(ModulePin):
    """A locked version of a Forge module; all mirrors of a forge have the same bytes."""

    kind: ClassVar = KIND
    forge: Slug
    version: ModuleVersion
    archive_sha256: str
    tree_sha256: str

    @property
    def name(self) -> str:
        """See `ModulePin`."""
        return self.version

    @property
    def short(self) -> str:
        """See `ModulePin`."""
        return self.archive_sha256[:12]

    @property
    def place(self) -> str:
        """See `ModulePin`."""
        return self.forge

    @property
    def file(self) -> str:
        """The name of its archive."""
        return f"{self.forge.dashed}-{self.version}.tar.gz"

    def __str__(self) -> str:
        return f"{self.forge} {self.version}"

    def bound(self, pin: ModulePin) -> ModulePin:
        same = isinstance(pin, ForgePin) and str(pin) == str(self)
        return pin if same else self

    def unbound(self) -> "ForgePin":
        """See `ModulePin`."""
        return replace(self, archive_sha256="", tree_sha256="")

    def changes(self, old: ModulePin) -> str:
        """See `ModulePin`; a mirror of the Forge has the same modules."""
        return f"{_PAGES}/{self.forge}/changelog" if isinstance(old, ForgePin) else ""

    def other_archive(self, now: str) -> IntegrityError:
        """Return the error for an archive that differs from the pin."""
        return IntegrityError(
            f"the archive has different bytes: it was {self.archive_sha256[:16]}…,"
            f" now it is {now[:16]}…",
            where=str(self),
            hint="find out who published it again and why; '--accept-moved' accepts the new bytes",
        )


class ForgeModule(Module):
    kind: ClassVar = KIND
    slug: Slug
    version: Range

    @property
    def fields(self) -> dict[str, str]:
        return {"forge": self.slug, "version": self.version.text}

    @property
    def place(self) -> str:
        return self.slug

    def fits(self, pin: ModulePin) -> bool:
        same = isinstance(pin, ForgePin) and pin.forge == self.slug
        return same and self.version.has(cast("ForgePin", pin).version)

    def draft(self) -> ForgePin | None:
        return None if self.version.exact is None else self.at(self.version.exact)

    def at(self, version: ModuleVersion) -> ForgePin:
        """Return the pin of a version, without digests."""
        return ForgePin(forge=self.slug, version=version, archive_sha256="", tree_sha256="")
