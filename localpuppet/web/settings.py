"""`web:` in `localpuppet.yaml`: to whom the page shows itself over TLS.

web:
people: [alice, bob]                     # whose certificates of identity.ca let them look
certificate: ssl/fleet.example.com.pem   # what the page shows; identity.certificate where not set
key: ssl/fleet.example.com.key
"""

from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import SignerName
from localpuppet.node.settings.files import SettingsFile


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """To whom the page shows itself over TLS, and with which certificate.

    Attributes:
        people: The names in the certificates of those who may look.
        certificate: The page's own; `None` for the identity's.
        key: The key of that certificate; `None` as well.
    """

    people: frozenset[SignerName]
    certificate: Path | None
    key: Path | None


def web_settings(file: SettingsFile) -> WebSettings:
    """Return what `web:` says.

    Raises:
        InvalidInputError: A name is not a signer's, or one of certificate and key is missing.
    """
    body = file.raw.get("web", {})
    if ("certificate" in body) != ("key" in body):
        raise InvalidInputError(
            "needs certificate and key, or neither",
            where=f"{file.path}: web",
            hint="without them identity.certificate and identity.key are meant",
        )
    try:
        people = frozenset(SignerName.parse(name) for name in body.get("people", ()))
    except InvalidInputError as error:
        raise error.at(f"{file.path}: web.people") from error
    return WebSettings(
        people=people,
        certificate=file.root / body["certificate"] if "certificate" in body else None,
        key=file.root / body["key"] if "key" in body else None,
    )
