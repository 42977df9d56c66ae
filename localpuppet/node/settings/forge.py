"""`forge:` in `localpuppet.yaml`: where modules of the Forge come from.

forge:
url: https://forge.example.com       # or file:///srv/forge, a directory of archives
ca: keys/ca.pem
proxy: http://proxy.example.com:3128
token_file: keys/forge.token
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError

MAX_PORT = 65535
PUBLIC = "https://forgeapi.puppet.com"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::(?P<port>[0-9]{1,5}))?"
_URL = rf"https://{_HOST}(?:/[A-Za-z0-9_.~+/-]*)?\Z|file:///[A-Za-z0-9_.~+/@%-]*\Z"
_PROXY = rf"https?://{_HOST}/?\Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeSettings:
    """The source of Forge modules.

    Attributes:
        url: An https URL, or `file://` and a directory of archives; without a slash at the end.
        ca: PEM file with the authorities to trust; `None` for the system's.
        proxy: The proxy; `None` for the one in the environment.
        token_file: A file with the token, or `None`.
    """

    url: str
    ca: Path | None
    proxy: str | None
    token_file: Path | None


def forge_settings(raw: Mapping[str, Any], root: Path, file: Path) -> ForgeSettings:
    """Return the section `forge:`.

    Raises:
        InvalidInputError: A URL is invalid; the message does not repeat it.
    """
    body = raw.get("forge", {})
    for key, form, hint in (
        ("url", _URL, "https://HOST or file:///DIRECTORY, without credentials"),
        ("proxy", _PROXY, "http://HOST:PORT, without credentials"),
    ):
        match = re.match(form, body[key]) if key in body else None
        if key in body and (match is None or int(match["port"] or 0) > MAX_PORT):
            where = f"{file}: forge.{key}"
            raise InvalidInputError("is not an allowed URL", where=where, hint=hint)
    return ForgeSettings(
        url=body.get("url", PUBLIC).rstrip("/"),
        ca=root / body["ca"] if "ca" in body else None,
        proxy=body.get("proxy"),
        token_file=root / body["token_file"] if "token_file" in body else None,
    )
