"""`web:` in `localpuppet.yaml`: access to the dashboard over TLS, and to the PuppetDB API.

web:
people: [alice, bob]                     # people with a certificate of identity.ca
release_readers: [alice]                 # those of them who may read the code of releases
certificate: ssl/fleet.example.com.pem   # of the dashboard; default: identity.certificate
key: ssl/fleet.example.com.key
captures: captures                       # captures of nodes, for previews of rollouts
puppetdb:
  users: [www-data]                      # local users who may read on loopback
  names: [puppetboard]                   # certificates of identity.ca that may read over TLS
"""

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
    """Return the section `web:`.

    Raises:
        InvalidInputError: A name is not a signer's, or one of certificate and key is missing.
    """
    settings = file.section(WebSettings, "web")
    if (settings.certificate is None) != (settings.key is None):
        raise InvalidInputError(
            "must have both certificate and key, or neither",
            where=f"{file.path}: web",
            hint="without them the dashboard uses identity.certificate and identity.key",
        )
    return settings
