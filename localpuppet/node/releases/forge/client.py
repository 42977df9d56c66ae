"""A forge over https: version 3 of the Puppet Forge's API, with a cache of archives.

An archive in the cache, `STATE/forge/SHA256.tar.gz`, is complete. An interrupted download is kept
as a part and resumed. For what everybody can read, the cache counts only if the forge itself names
the digest: it may have archives that came with a token.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats import strict_json
from localpuppet.base.formats.text import url_without_secrets
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import make_private, state_problem
from localpuppet.base.value import Value
from localpuppet.node.releases.forge.archive import sha256_of
from localpuppet.node.releases.forge.names import Slug
from localpuppet.node.releases.forge.ports import ForgeRelease, other_archive
from localpuppet.node.releases.forge.transfer import MAX_DOCUMENT, MissingError, Transfer
from localpuppet.node.releases.forge.versions import ModuleVersion
from localpuppet.node.releases.git.names import parse_digest

AT_ONCE = 4
AHEAD = 2 * AT_ONCE
_EXCLUDED = "readme,changelog,license,reference,tasks,plans,docs"

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Forge(Value):
    """A forge.

    Attributes:
        transfer: HTTPS to it.
        cache: The directory of archives.
        progress: Called with the number of finished documents or archives, and of all.
    """

    transfer: Transfer
    cache: Path
    progress: Callable[[int, int], None] = lambda _done, _all: None

    def versions(self, slugs: Sequence[Slug]) -> Mapping[Slug, Sequence[ModuleVersion]]:
        """Return the versions of modules; see `node.releases.forge.ports.ModuleForge`."""
        return dict(self._several(list(dict.fromkeys(slugs)), self._versions))

    def digests(self, releases: Sequence[ForgeRelease]) -> Mapping[ForgeRelease, str]:
        """Return digests of archives; see `node.releases.forge.ports.ModuleForge`."""
        digests = self._several(list(dict.fromkeys(releases)), self._release)
        return {release: sha256 for release, (sha256, _) in digests}

    def archives(
        self, wanted: Mapping[ForgeRelease, str]
    ) -> Generator[tuple[ForgeRelease, Path, str], None, None]:
        """Download archives; see `node.releases.forge.ports.ModuleForge`."""
        make_private(self.cache)

        def download(release: ForgeRelease) -> str:
            return self._archive(release, wanted[release])

        for release, sha256 in self._several(list(wanted), download):
            yield release, self._place(sha256), sha256

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
            return strict_json.parse_object(data, where=what, limit=MAX_DOCUMENT)
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

    def _release(self, release: ForgeRelease) -> tuple[str, str]:
        """Return the digest of a release's archive, and its URL."""
        path = f"/v3/releases/{release.slug.dashed}-{release.version}?exclude_fields={_EXCLUDED}"
        document = self._document(path, f"release {release}")
        sha256, uri = document.get("file_sha256") or "", document.get("file_uri")
        if not isinstance(sha256, str) or not isinstance(uri, str):
            raise UnavailableError("the forge lists no archive", where=str(release))
        if sha256:
            parse_digest(sha256, where=str(release))
        # As r10k does: a path is the API's own, a whole URL may be elsewhere.
        url = uri if "://" in uri else f"{self.transfer.url}/{uri.lstrip('/')}"
        return sha256, url

    def _archive(self, release: ForgeRelease, pinned: str) -> str:
        """Put the archive into the cache; return its digest."""
        public = self.transfer.public
        if pinned and not public and self._sound(pinned):
            return pinned
        sha256_expected, url = self._release(release)
        if pinned and sha256_expected and sha256_expected != pinned:
            raise other_archive(release, pinned=pinned, now=sha256_expected)
        expected = pinned or sha256_expected
        kept = sha256_expected if public else expected
        if kept and self._sound(kept):
            return kept
        part = self.cache / f".{release.file}.{(expected or 'unknown')[:16]}.part"
        try:
            if not kept:  # without a digest, an earlier part may be of another file
                part.unlink(missing_ok=True)
            self.transfer.file(url, part)
            sha256 = sha256_of(part)
            if expected and sha256 != expected:
                part.unlink()
                raise other_archive(release, pinned=expected, now=sha256)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.rename(self._place(sha256))
        except MissingError as error:
            raise InvalidInputError(
                f"the forge has no archive of {release}", where=url_without_secrets(url)
            ) from error
        except OSError as error:
            raise state_problem(error, part) from error
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
