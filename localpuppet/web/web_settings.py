"""`web:` in `localpuppet.yaml`: access to the dashboard over TLS, and to the PuppetDB API."""

from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.names import SignerName
from localpuppet.node.settings import SettingsFile


class ApiReaders(JsonRecord):
    """The readers of the PuppetDB API."""

    users: frozenset[str]
    names: frozenset[SignerName]


class WebSettings(JsonRecord):
    """The people with access over TLS, and a certificate instead of the identity's."""

    people: frozenset[SignerName]
    release_readers: frozenset[SignerName]
    certificate: Path | None = None
    key: Path | None = None
    captures: Path | None = None
    puppetdb: ApiReaders


def web_settings(file: SettingsFile) -> WebSettings:
    """Return the section `web:`."""
    settings = file.section(WebSettings, "web")
    if (settings.certificate is None) != (settings.key is None):
        raise InvalidInputError(
            "must have both certificate and key, or neither",
            where=f"{file.path}: web",
            hint="without them the dashboard uses identity.certificate and identity.key",
        )
    return settings
