"""The lifetime of signed requests and replies, and their claims of callers."""

from operator import attrgetter
from typing import Annotated

from localpuppet.base.formats.names import SignerName
from localpuppet.base.formats.records import text_form

# The receiver's limits in seconds: the lifetime of a message, and the difference of clocks.
MAX_LIFETIME = 300
# Seconds that a person waits for replies.
PATIENCE = 20.0
MAX_AHEAD = 30
# A signer as a caller id.
Caller = Annotated[SignerName, text_form(SignerName.parse_caller, write=attrgetter("caller"))]


def lifetime_problem(*, iat: int, exp: int, now: int) -> str:
    """Return why a message with these times is rejected; empty if it is accepted.

    Args:
        iat: When it was issued, seconds since 1970 by the sender's clock.
        exp: When it expires; it is expired in that second.
        now: The receiver's clock.
    """
    if exp <= iat:
        return "exp is not after iat"
    if exp - iat > MAX_LIFETIME:
        return f"exp is {exp - iat} s after iat, its lifetime may be {MAX_LIFETIME} s"
    if iat > now + MAX_AHEAD:
        return f"iat is {iat - now} s in the future (check both clocks)"
    if now >= exp:
        return f"expired {now - exp} s ago (check both clocks)"
    return ""
