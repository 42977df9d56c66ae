"""Modules of the Forge: OWNER/NAME and a range of versions, as archives.

An archive is unpacked into the store once. Only a damaged tree, or another release with the same
module, needs it again, and the forge still has it then. So age decides how long archives are kept.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.values import Json, at
from localpuppet.base.machine.files import disk_errors, make_private, read_user_file
from localpuppet.node.releases.forge.pins import KIND, LIMITS, ForgeModule, ForgePin, Slug
from localpuppet.node.releases.git.git_names import parse_digest
from localpuppet.node.releases.limits import MAX_FORGE_TOKEN, Budget
from localpuppet.node.releases.module_metadata import (
    LATEST,
    METADATA,
    ModuleVersion,
    Range,
    newest,
    read_metadata,
)
from localpuppet.node.releases.modules import (
    Module,
    ModuleAccess,
    ModulePin,
    ModuleSource,
    Trees,
    check_fields,
    register,
)

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.forge_client import DirectoryForge, Forge


_TOP = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}\Z")


@register
class ForgeModules(ModuleSource):
    """The forge of the site."""

    kind = KIND
    form = "{forge: OWNER/NAME, version: V}"

    def __init__(self, forge: "Forge | DirectoryForge") -> None:
        self._forge = forge

    @classmethod
    def module(
        cls, name: str, raw: Mapping[str, str], *, where: str, allow_file: bool
    ) -> ForgeModule:
        """See `ModuleSource`."""
        if set(raw) != {"forge", "version"}:
            raise InvalidInputError("forge and version go together", where=where, hint=cls.form)
        slug = Slug.parse(raw["forge"], where=at(where, "forge"))
        if slug.module != name:
            raise InvalidInputError(
                f"{slug} is the module {slug.module!r}",
                where=where,
                hint=f"name it so: '{slug.module}: …'",
            )
        version = Range.parse(raw["version"], where=at(where, "version"))
        return ForgeModule(slug=slug, version=version)

    @classmethod
    def pin(cls, raw: Mapping[str, Json], *, where: str, allow_file: bool) -> ForgePin:
        """See `ModuleSource`."""
        fields = ("forge", "version", "archive_sha256", "tree_sha256")
        check_fields(raw, "archive", fields, where=where)
        text = cast("Mapping[str, str]", raw)
        return ForgePin(
            forge=Slug.parse(text["forge"], where=at(where, "forge")),
            version=ModuleVersion.parse(text["version"], where=at(where, "version")),
            archive_sha256=parse_digest(text["archive_sha256"], where=at(where, "archive_sha256")),
            tree_sha256=parse_digest(text["tree_sha256"], where=at(where, "tree_sha256")),
        )

    @classmethod
    def of_puppetfile(cls, name: str, version: str) -> ForgeModule:
        """See `ModuleSource`."""
        text = LATEST if version in ("", "present", "installed") else version
        return ForgeModule(slug=Slug.parse(name, where=""), version=Range.parse(text, where=""))

    @classmethod
    def old_archives(cls, state: Path, *, since: float) -> list[Path]:
        """See `ModuleSource`: whole archives and parts."""
        directory = state / KIND
        if not directory.is_dir():
            return []
        with disk_errors(directory):
            files = sorted(path for path in directory.iterdir() if path.is_file())
            return [path for path in files if path.lstat().st_mtime < since]

    @classmethod
    def address(cls, pin: ModulePin, access: ModuleAccess) -> str:
        """See `ModuleSource`."""
        return str(access.settings[KIND]["url"])

    @classmethod
    def open(cls, access: ModuleAccess, repository: object) -> "ForgeModules":
        """See `ModuleSource`."""
        from urllib.parse import unquote, urlsplit

        from localpuppet.node.releases.forge.forge_client import DirectoryForge, Forge, Transfer

        settings, cache = access.settings[KIND], access.state / KIND
        if settings["url"].startswith("file:") and not access.public:
            return cls(DirectoryForge(Path(unquote(urlsplit(settings["url"]).path)), scratch=cache))
        token_file = None if access.public else settings["token_file"]
        transfer = Transfer(
            url=settings["url"],
            ca=settings["ca"],
            proxy=settings["proxy"],
            token=_token(token_file) if token_file else "",
            timeout=access.patience,
            total=access.timeout,
            public=access.public,
        )
        return cls(Forge(transfer=transfer, cache=cache, progress=access.progress))

    def resolve(self, modules: Mapping[str, Module]) -> dict[str, ModulePin]:
        """See `ModuleSource`: the newest version in each range."""
        wanted = cast("Mapping[str, ForgeModule]", modules)
        versions = self._forge.versions([module.slug for module in wanted.values()])
        resolved: dict[str, ModulePin] = {}
        for name, module in wanted.items():
            version = newest(module.version, versions[module.slug])
            if version is None:
                highest = newest(Range.parse(LATEST, where=""), versions[module.slug])
                raise InvalidInputError(
                    f"the forge has no version {module.version.text} of {module.slug}",
                    where=f"modules.{name}",
                    hint=f"the newest there is {highest}"
                    if highest
                    else "it has only pre-releases",
                )
            resolved[name] = module.at(version)
        return resolved

    def write(self, pins: Mapping[str, ModulePin], directory: Path, budget: Budget) -> Trees:
        """See `ModuleSource`: the contents of archives."""
        keys = {pin: key for key, pin in pins.items() if isinstance(pin, ForgePin)}
        with closing(self._forge.archives(list(keys))) as arrivals:
            for number, (pin, archive, sha256) in enumerate(arrivals):
                target = directory / str(number)
                make_private(target)
                budget.take_archive(archive.stat().st_size, where=str(pin))
                top = unpack_module(archive, target, pin=pin, budget=budget)
                yield keys[pin], replace(pin, archive_sha256=sha256), top

    def confirm(self, pins: Iterable[ModulePin]) -> None:
        """See `ModuleSource`."""
        wanted = [pin for pin in pins if isinstance(pin, ForgePin)]
        for pin, now in self._forge.digests(wanted).items():
            if now and now != pin.archive_sha256:
                raise pin.other_archive(now)

    def newer(self, pins: Mapping[str, ModulePin]) -> dict[str, str]:
        """See `ModuleSource`."""
        wanted = {key: pin for key, pin in pins.items() if isinstance(pin, ForgePin)}
        versions = self._forge.versions([pin.forge for pin in wanted.values()])
        newer = {}
        for key, pin in wanted.items():
            version = newest(Range.parse(LATEST, where=""), versions[pin.forge])
            is_newer = version is not None and version.order > pin.version.order
            newer[key] = str(version) if is_newer else ""
        return newer


def _token(file: Path) -> str:
    token = read_user_file(file).decode("utf-8", "replace").strip()
    if not token or len(token) > MAX_FORGE_TOKEN or not token.isascii() or not token.isprintable():
        raise InvalidInputError("is not a token: one line of ASCII", where=str(file))
    return token


def unpack_module(archive: Path, target: Path, *, pin: ForgePin, budget: Budget) -> Path:
    """Unpack a module's archive into an empty directory.

    Returns:
        The module's directory, below `target`.
    """
    from localpuppet.node.releases.tar import TarRules, unpack

    rules = TarRules(top=_TOP, hint="build module archives with 'pdk build'", foreign=True)
    try:
        top = unpack(archive, target, rules=rules, limits=LIMITS, budget=budget)
    except IntegrityError as error:
        problem = error.at(str(pin))
        problem.hint = problem.hint or "name another version, or the module's git repository"
        raise problem from error
    try:
        metadata = None if (top / METADATA).is_symlink() else read_metadata(top)
    except InvalidInputError as error:
        raise IntegrityError(f"its metadata.json is refused: {error}", where=str(pin)) from error
    if metadata is None:
        raise IntegrityError("has no metadata.json of at most 1 MiB at its top", where=str(pin))
    name = str(metadata.get("name", "")).replace("/", "-", 1)
    if (name.lower(), metadata.get("version")) != (pin.forge.dashed.lower(), pin.version):
        raise IntegrityError(
            f"its metadata.json names {name[:120]!r} {str(metadata.get('version'))[:60]!r}",
            where=str(pin),
            hint="check 'forge.url': the forge sent another module's archive",
        )
    return top
