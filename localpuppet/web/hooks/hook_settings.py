"""`hooks:` in `localpuppet.yaml`: the senders of deliveries, and what a new release leads to."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from hmac import new as new_hmac
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import JsonRecord, from_record
from localpuppet.base.formats.names import SignerName, check_known
from localpuppet.base.formats.values import Json
from localpuppet.base.formats.webhook_signature import is_signed_webhook, parse_webhook_secret
from localpuppet.fleet.trust.key_files import read_secret
from localpuppet.node.settings import Seconds, SettingsFile

# Characters of a secret that is no `whsec_…`.
SHORTEST = 16


class HookType(StrEnum):
    """The sender of deliveries, which decides how they are signed."""

    GITHUB = "github"
    GITEA = "gitea"
    FORGEJO = "forgejo"
    GITLAB = "gitlab"
    GITLAB_TOKEN = "gitlab-token"  # noqa: S105 - a kind of senders
    LOCALPUPPET = "localpuppet"

    @property
    def signs_time(self) -> bool:
        """Whether its signatures are those of Standard Webhooks, with an id and a time."""
        return self in (HookType.GITLAB, HookType.LOCALPUPPET)


# The header of a signature in hexadecimal digits, and what is before them.
_HEX = {
    HookType.GITHUB: ("x-hub-signature-256", "sha256="),
    HookType.GITEA: ("x-gitea-signature", ""),
    HookType.FORGEJO: ("x-forgejo-signature", ""),
}


class HookSettings(JsonRecord):
    type: HookType
    secret_file: Path
    source: str
    caller: SignerName  # the signer in whose name it acts: that of the process which serves it
    poll: Seconds = 900.0
    stage: str = ""  # the nodes that stage a new release, as a query; empty for a rollout
    # The options of the rollout of a new release, and its `query`; empty for none.
    rollout: Mapping[str, Json] = field(default_factory=dict)

    @property
    def query(self) -> str:
        """The nodes that get a new release."""
        return self.stage or str(self.rollout["query"])

    @property
    def options(self) -> Mapping[str, str]:
        """The options of the rollout as words, without its query."""
        return {
            key: " ".join(map(str, value)) if isinstance(value, list) else str(value)
            for key, value in self.rollout.items()
            if value is not False and key != "query"
        }

    def secret(self) -> bytes:
        """Return the key of its signatures, as it is now in the private file."""
        text, where = read_secret(self.secret_file), str(self.secret_file)
        if self.type.signs_time:
            return parse_webhook_secret(text, where=where)
        if len(text) < SHORTEST:
            raise InvalidInputError(
                f"is shorter than {SHORTEST} characters", where=where, hint="openssl rand -hex 32"
            )
        return text.encode()


def hook_settings(file: SettingsFile) -> Mapping[str, HookSettings]:
    """Return the section `hooks:`."""
    hooks, sources = {}, file.full.get("sources", {})
    for name, raw in file.full["hooks"].items():
        where = f"{file.path}: hooks.{name}"
        secret = str(file.root / raw["secret_file"])
        hook = from_record(HookSettings, {**raw, "secret_file": secret}, where=where)
        if bool(hook.stage) == bool(hook.rollout):
            raise InvalidInputError("must have either stage or rollout", where=where)
        problem = f"{hook.source!r} is not a source"
        check_known(hook.source, sources, problem, where=f"{where}.source")
        if hook.rollout and not sources[hook.source].get("require_signed"):
            raise InvalidInputError(
                "a rollout needs a source with require_signed",
                where=f"{where}.rollout",
                hint=f"sign the tags of {hook.source}, or use stage",
            )
        hooks[name] = hook
    return hooks


def is_signed(
    kind: HookType, secret: bytes, headers: Mapping[str, str], body: bytes, *, now: float
) -> bool:
    """Return whether a delivery with lower-case header names is signed; it is not parsed."""
    if kind.signs_time:
        return is_signed_webhook(secret, headers, body, now=now)
    if kind is HookType.GITLAB_TOKEN:
        # Digests, because the comparison would show the length of the token.
        right, given = secret, headers.get("x-gitlab-token", "").encode()
        return compare_digest(sha256(right).digest(), sha256(given).digest())
    header, start = _HEX[kind]
    right = f"{start}{new_hmac(secret, body, sha256).hexdigest()}".encode()
    return compare_digest(right, headers.get(header, "").encode())
