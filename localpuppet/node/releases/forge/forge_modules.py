"""Modules of the Forge: archives over HTTPS with version 3 of its API, or from a directory.

An archive is unpacked into the store once. Only a damaged tree, or another release with the same
module, needs it again, and the forge still has it then. So age decides how long archives are kept.

This module decides which errors are retried, and what a status means. Trust, redirects, proxies,
deadlines and the receivers of the token follow `base.http`.

An archive in the cache, `STATE/forge/SHA256.tar.gz`, is complete. An interrupted download is kept
as a part and resumed. For what everybody can read, the cache counts only if the forge itself names
the digest: it may have archives that came with a token.
"""

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar, cast

from localpuppet.base import http
from localpuppet.base.errors import IntegrityError, InvalidInputError, UnavailableError
from localpuppet.base.formats import strict_json
from localpuppet.base.formats.text import url_without_secrets
from localpuppet.base.formats.values import Json, at
from localpuppet.base.machine import files
from localpuppet.base.value import Value
from localpuppet.node.releases import limits
from localpuppet.node.releases.forge.pins import KIND, LIMITS, ForgeModule, ForgePin, Slug
from localpuppet.node.releases.git.git_names import parse_digest
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
from localpuppet.node.releases.store import CHUNK, sha256_of

_TOP = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}\Z")


@register
class ForgeModules(ModuleSource):
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
        return ForgeModule(slug=Slug.parse(name), version=Range.parse(text))

    @classmethod
    def old_archives(cls, state: Path, *, since: float) -> list[Path]:
        """See `ModuleSource`: whole archives and parts."""
        directory = state / KIND
        if not directory.is_dir():
            return []
        with files.disk_errors(directory):
            archives = sorted(path for path in directory.iterdir() if path.is_file())
            return [path for path in archives if path.lstat().st_mtime < since]

    @classmethod
    def address(cls, pin: ModulePin, access: ModuleAccess) -> str:
        """See `ModuleSource`."""
        return str(access.settings[KIND]["url"])

    @classmethod
    def open(cls, access: ModuleAccess, repository: object) -> "ForgeModules":
        """See `ModuleSource`."""
        from urllib.parse import unquote, urlsplit

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
            if (version := newest(module.version, versions[module.slug])) is None:
                highest = newest(Range.parse(LATEST), versions[module.slug])
                raise InvalidInputError(
                    f"the forge has no version {module.version.text} of {module.slug}",
                    where=f"modules.{name}",
                    hint=f"the newest there is {highest}"
                    if highest
                    else "it has only pre-releases",
                )
            resolved[name] = module.at(version)
        return resolved

    def write(self, pins: Mapping[str, ModulePin], directory: Path, budget: limits.Budget) -> Trees:
        """See `ModuleSource`: the contents of archives."""
        keys = {pin: key for key, pin in pins.items() if isinstance(pin, ForgePin)}
        with closing(self._forge.archives(list(keys))) as arrivals:
            for number, (pin, archive, sha256) in enumerate(arrivals):
                target = directory / str(number)
                files.make_private(target)
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
            version = newest(Range.parse(LATEST), versions[pin.forge])
            is_newer = version is not None and version.order > pin.version.order
            newer[key] = str(version) if is_newer else ""
        return newer


def _token(file: Path) -> str:
    token = files.read_user_file(file).decode("utf-8", "replace").strip()
    if (
        not token
        or len(token) > limits.MAX_FORGE_TOKEN
        or not token.isascii()
        or not token.isprintable()
    ):
        raise InvalidInputError("is not a token: one line of ASCII", where=str(file))
    return token


def unpack_module(archive: Path, target: Path, *, pin: ForgePin, budget: limits.Budget) -> Path:
    """Unpack a module's archive into an empty directory; return the module's directory below it."""
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


ATTEMPTS = 3

_Received = TypeVar("_Received")


class MissingError(Exception):
    """The server has no document of that name."""


@dataclass(slots=True, eq=False, kw_only=True)
class Transfer:
    """Gets documents and files of a forge.

    Attributes:
        ca: PEM file with the trusted authorities; `None` for the system's.
        token: Sent to the forge's own origin; empty for none.
        timeout: Seconds without a byte; `total` for one document or archive.
        public: Whether it is asked for what everybody can read, at public addresses only.
    """

    url: str
    ca: Path | None
    proxy: str | None
    token: str = field(repr=False)
    timeout: float
    total: float
    public: bool = False
    _client: http.HttpClient = field(init=False)

    def __post_init__(self) -> None:
        route = http.HttpRoute(ca=self.ca, proxy=self.proxy, public=self.public)
        self._client = http.HttpClient(route)

    def document(self, url: str) -> bytes:

        def receive(deadline: http.Deadline) -> bytes:
            with self._open(url, deadline) as answer:
                _refuse_status(answer.status, url)
                return answer.body(limits.MAX_FORGE_DOCUMENT)

        return self._attempt(receive, url)

    def file(self, url: str, part: Path) -> None:
        """Download a file; the bytes that are in `part` already are not requested again."""

        def receive(deadline: http.Deadline) -> None:
            start = part.stat().st_size if part.exists() else 0
            with self._open(url, deadline, start=start) as answer:
                if answer.status == 416 and start:
                    part.unlink()  # it is complete, or of another file
                    raise http.HttpError("the forge rejected the range of a resumed download")
                _refuse_status(answer.status, url)
                resumed = answer.status == 206
                with part.open("ab" if resumed else "wb") as file:
                    for chunk in answer.chunks(LIMITS.file - (start if resumed else 0)):
                        file.write(chunk)

        self._attempt(receive, url)

    def _open(
        self, url: str, deadline: http.Deadline, *, start: int = 0
    ) -> AbstractContextManager[http.HttpAnswer]:
        request = http.HttpRequest(
            url=url,
            headers={"Range": f"bytes={start}-"} if start else {},
            token=self.token,
            token_url=self.url,
            redirects=limits.MAX_REDIRECTS,
        )
        return self._client.open(request, deadline)

    def _attempt(self, receive: Callable[[http.Deadline], _Received], url: str) -> _Received:
        """Return the result of `receive`; retry after a broken connection."""
        where = url_without_secrets(url)
        deadline = http.Deadline(self.total, silence=self.timeout)
        for left in reversed(range(ATTEMPTS)):
            try:
                return receive(deadline)
            except http.BodyTooLargeError as error:
                raise IntegrityError("is too large", where=where) from error
            except http.HttpError as error:
                if left == 0:
                    raise UnavailableError(
                        f"cannot be downloaded: {error}",
                        where=where,
                        hint="check 'forge: {url, ca, proxy}' in localpuppet.yaml",
                    ) from error
        raise AssertionError("the last attempt raises")


def _refuse_status(status: int, url: str) -> None:
    """Raise the error of a status without a body; server errors may be retried."""
    if status in (200, 206):
        return
    if status in (404, 410):
        raise MissingError
    problem = f"the forge answered {status}"
    if status >= 500:
        raise http.HttpError(problem)
    hint = "'forge: {token_file: FILE}' in localpuppet.yaml names its token"
    raise UnavailableError(
        problem, where=url_without_secrets(url), hint=hint if status in (401, 403) else ""
    )


AT_ONCE = 4
AHEAD = 2 * AT_ONCE
_EXCLUDED = "readme,changelog,license,reference,tasks,plans,docs"

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Forge(Value):
    transfer: Transfer
    cache: Path
    progress: Callable[[int, int], None] = lambda _done, _all: None

    def versions(self, slugs: Sequence[Slug]) -> Mapping[Slug, Sequence[ModuleVersion]]:
        """Return the available versions of modules, several modules at a time."""
        return dict(self._several(list(dict.fromkeys(slugs)), self._versions))

    def digests(self, pins: Sequence[ForgePin]) -> Mapping[ForgePin, str]:
        """Return the SHA-256 of archives as the forge reports it; empty if it reports none."""
        digests = self._several(list(dict.fromkeys(pins)), self._release)
        return {pin: sha256 for pin, (sha256, _) in digests}

    def archives(
        self, pins: Sequence[ForgePin]
    ) -> Generator[tuple[ForgePin, Path, str], None, None]:
        """Get archives, several at a time; yield pin, archive and its SHA-256, in any order.

        The archive exists until the generator resumes.
        """
        files.make_private(self.cache)
        for pin, sha256 in self._several(pins, self._archive):
            yield pin, self._place(sha256), sha256

    def _several(
        self, items: Sequence[_Item], work: Callable[[_Item], _Result]
    ) -> Generator[tuple[_Item, _Result], None, None]:
        """Apply a function to items, four at a time; yield each item with its result, in order.

        At most `AHEAD` results wait for the caller, which counts them.
        """
        left = iter(items)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            jobs = deque((item, pool.submit(work, item)) for item in islice(left, AHEAD))
            try:
                for done in range(1, len(items) + 1):
                    item, job = jobs.popleft()
                    outcome = job.result()
                    self.progress(done, len(items))
                    yield item, outcome
                    jobs.extend((item, pool.submit(work, item)) for item in islice(left, 1))
            finally:
                for _, job in jobs:
                    job.cancel()

    def _document(self, path: str, what: str) -> dict[str, Json]:
        url = f"{self.transfer.url}{path}"
        try:
            data = self.transfer.document(url)
        except MissingError as error:
            raise InvalidInputError(
                f"the forge has no {what}",
                where=url_without_secrets(url),
                hint="check the name, and whether its owner deleted it",
            ) from error
        try:
            return strict_json.parse_object(data, where=what, limit=limits.MAX_FORGE_DOCUMENT)
        except InvalidInputError as error:
            raise UnavailableError(
                f"the forge's answer is refused: {error}", where=url_without_secrets(url)
            ) from error

    def _versions(self, slug: Slug) -> list[ModuleVersion]:
        path = f"/v3/modules/{slug.dashed}?exclude_fields={_EXCLUDED}"
        listed = self._document(path, f"module {slug}").get("releases")
        if not isinstance(listed, list):
            raise UnavailableError("the forge lists no releases", where=str(slug))
        versions = []
        for item in listed:
            if not isinstance(item, dict) or item.get("deleted_at"):
                continue
            try:
                versions.append(ModuleVersion.parse(str(item.get("version")), where=slug))
            except InvalidInputError:
                continue  # not a semantic version
        return versions

    def _release(self, pin: ForgePin) -> tuple[str, str]:
        """Return the digest of a version's archive, and its URL."""
        path = f"/v3/releases/{pin.forge.dashed}-{pin.version}?exclude_fields={_EXCLUDED}"
        document = self._document(path, f"release {pin}")
        sha256, uri = document.get("file_sha256") or "", document.get("file_uri")
        if not isinstance(sha256, str) or not isinstance(uri, str):
            raise UnavailableError("the forge lists no archive", where=str(pin))
        if sha256:
            parse_digest(sha256, where=str(pin))
        # As r10k does: a path is the API's own, a whole URL may be elsewhere.
        url = uri if "://" in uri else f"{self.transfer.url}/{uri.lstrip('/')}"
        return sha256, url

    def _archive(self, pin: ForgePin) -> str:
        """Put the archive into the cache; return its digest."""
        public, pinned = self.transfer.public, pin.archive_sha256
        if pinned and not public and self._sound(pinned):
            return pinned
        reported, url = self._release(pin)
        if pinned and reported and reported != pinned:
            raise pin.other_archive(reported)
        expected = pinned or reported
        kept = reported if public else expected
        if kept and self._sound(kept):
            return kept
        part = self.cache / f".{pin.file}.{(expected or 'unknown')[:16]}.part"
        try:
            if not kept:  # without a digest, an earlier part may be of another file
                part.unlink(missing_ok=True)
            self.transfer.file(url, part)
            sha256 = sha256_of(part)
            if expected and sha256 != expected:
                part.unlink()
                raise replace(pin, archive_sha256=expected).other_archive(sha256)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.rename(self._place(sha256))
        except MissingError as error:
            raise InvalidInputError(
                f"the forge has no archive of {pin}", where=url_without_secrets(url)
            ) from error
        except OSError as error:
            raise files.state_problem(error, part) from error
        return sha256

    def _place(self, sha256: str) -> Path:
        return self.cache / f"{sha256}.tar.gz"

    def _sound(self, sha256: str) -> bool:
        place = self._place(sha256)
        if not place.is_file():
            return False
        if sha256_of(place) == sha256:
            return True
        place.unlink()
        return False


def copy_archive(file: Path, target: Path) -> str:
    """Copy an archive that may change meanwhile to a new file; return the SHA-256 of the copy."""
    sha256 = hashlib.sha256()
    with files.open_user_file(file, limit=LIMITS.file) as source:
        left = LIMITS.file
        with files.disk_errors(target), target.open("xb") as copy:
            while left and (data := source.read(min(CHUNK, left))):
                sha256.update(data)
                copy.write(data)
                left -= len(data)
    return sha256.hexdigest()


class DirectoryForge:
    """Archives in a directory, named OWNER-NAME-VERSION.tar.gz."""

    def __init__(self, directory: Path, scratch: Path) -> None:
        self._directory = directory
        self._scratch = scratch

    def versions(self, slugs: Sequence[Slug]) -> Mapping[Slug, Sequence[ModuleVersion]]:
        """Return the versions of modules; see `Forge`."""
        return {slug: self._versions(slug) for slug in slugs}

    def _versions(self, slug: Slug) -> list[ModuleVersion]:
        self._look()
        versions = []
        for file in sorted(self._directory.glob(f"{slug.dashed}-*.tar.gz")):
            text = file.name.removeprefix(f"{slug.dashed}-").removesuffix(".tar.gz")
            try:
                versions.append(ModuleVersion.parse(text, where=str(file)))
            except InvalidInputError:
                continue
        if not versions:
            raise InvalidInputError(
                f"the forge has no module {slug}",
                where=str(self._directory),
                hint=f"put {slug.dashed}-VERSION.tar.gz there",
            )
        return versions

    def digests(self, pins: Sequence[ForgePin]) -> Mapping[ForgePin, str]:
        """Return digests of archives; see `Forge`."""
        self._look()
        return {pin: sha256_of(self._file(pin)) for pin in pins}

    def archives(
        self, pins: Sequence[ForgePin]
    ) -> Generator[tuple[ForgePin, Path, str], None, None]:
        """Copy archives; see `Forge`."""
        self._look()
        files.make_private(self._scratch)
        copy = self._scratch / ".archive"
        try:
            for pin in pins:
                files.remove_tree(copy)
                # The hashed copy is unpacked, whatever the file is by then.
                sha256 = copy_archive(self._file(pin), copy)
                if pin.archive_sha256 and sha256 != pin.archive_sha256:
                    raise pin.other_archive(sha256)
                yield pin, copy, sha256
        finally:
            files.remove_tree(copy)

    def _look(self) -> None:
        if not self._directory.is_dir():
            raise UnavailableError(
                "the forge's directory does not exist", where=str(self._directory)
            )

    def _file(self, pin: ForgePin) -> Path:
        file = self._directory / pin.file
        if not file.is_file():
            raise InvalidInputError(
                f"the forge has no archive of {pin}",
                where=str(self._directory),
                hint=f"put {pin.file} there",
            )
        return file
