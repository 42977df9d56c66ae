"""Signatures of webhooks, as Standard Webhooks has them: HMAC-SHA256 over ID.TIMESTAMP.BODY.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping

from localpuppet.base.errors import InvalidInputError

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64  # bytes of a secret
# Seconds between the clocks of both sides. While a sender changes its secret, it signs with both.
TOLERANCE = 300
MOST_SIGNATURES = 8


def parse_webhook_secret(text: str, *, where: str) -> bytes:
    """Return the bytes of a secret `whsec_BASE64`.

    Raises:
        InvalidInputError: It has another form or length; the text is not repeated.
    """
    try:
        secret = base64.b64decode(text.strip().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not text.startswith(PREFIX) or not SHORTEST <= len(secret) <= LONGEST:
        raise InvalidInputError(
            f"is no secret {PREFIX}BASE64 of {SHORTEST} to {LONGEST} bytes",
            where=where,
            hint=f'echo "{PREFIX}$(openssl rand -base64 32)"',
        ) from None
    return secret


def sign_webhook(secret: bytes, identifier: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header `webhook-signature`."""
    text = f"{identifier}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, text, hashlib.sha256)).decode()


def is_signed_webhook(
    secret: bytes, headers: Mapping[str, str], body: bytes, *, now: float
) -> bool:
    """Return whether one of the signatures in `webhook-signature` is right, and recent.

    Args:
        headers: The headers by name in lower case.
    """
    identifier, sent = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    is_recent = re.fullmatch("[0-9]{1,12}", sent) and abs(now - int(sent)) <= TOLERANCE
    right = sign_webhook(secret, identifier, int(sent) if is_recent else 0, body).encode()
    given = headers.get("webhook-signature", "").split(" ")[:MOST_SIGNATURES]
    matches = [hmac.compare_digest(right, one.encode()) for one in given]
    # With a dot in the id, a later part of the text could count as the time.
    return bool(identifier and "." not in identifier and is_recent and any(matches))
