"""Builds the Forge client and the access settings of repositories from the settings."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.files import read_user_file
from localpuppet.node.releases.git.access import (
    GitAccess,
    access_for,
    check_credentials,
    rewrite_url,
)
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.archive import ModuleForge
    from localpuppet.node.settings.node import Settings

MAX_TOKEN = 4096


def site_forge(
    node: NodeWiring, *, progress: Callable[[int, int], None], public: bool = False
) -> "ModuleForge":
    """Return the forge of the site: a directory of archives, or a server.

    Args:
        node: The parts of the node.
        progress: Called with the numbers of fetched and of all documents or archives.
        public: Whether to ask a server as everybody can: directly, and without a token.

    Raises:
        InvalidInputError: The file of its token, or its CA, cannot be read.
    """
    from localpuppet.node.releases.forge.archive import PLACE

    settings = node.settings
    forge = settings.forge
    if forge.url.startswith("file:") and not public:
        from localpuppet.node.releases.forge.client import DirectoryForge

        return DirectoryForge(
            Path(unquote(urlsplit(forge.url).path)), scratch=settings.state / PLACE
        )
    from localpuppet.node.releases.forge.client import Forge, Transfer

    transfer = Transfer(
        url=forge.url,
        ca=forge.ca,
        proxy=forge.proxy,
        token=_token(forge.token_file) if forge.token_file and not public else "",
        timeout=settings.https_timeout,
        total=settings.git_timeout,
        public=public,
    )
    return Forge(transfer=transfer, cache=settings.state / PLACE, progress=progress)


def _token(file: Path) -> str:
    token = read_user_file(file).decode("utf-8", "replace").strip()
    if not token or len(token) > MAX_TOKEN or not token.isascii() or not token.isprintable():
        raise InvalidInputError("is not a token: one line of ASCII", where=str(file))
    return token


def find_access(settings: "Settings", address: str) -> GitAccess:
    """Return the access settings for an address, with checked credentials.

    Raises:
        InvalidInputError: The credentials file is invalid.
    """
    sources = settings.sources.values()
    access = access_for(
        address, {rewrite_url(source.url, settings.rewrite): source.access for source in sources}
    )
    if access.credentials is not None:
        check_credentials(read_user_file(access.credentials), where=str(access.credentials))
    return access
