"""The lines that the network side of an agent sends to its run side: a verb and message ids.

- The run side is root, and the network side is exposed to the network. So a line has nothing to act
  upon: only ids of messages that the run side reads and verifies itself.
- An id is the SHA-256 of the message's bytes.
"""

import hashlib
import json
import re
from enum import StrEnum
from typing import NewType

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value

MessageId = NewType("MessageId", str)

MAX_IDS = 64
MAX_LINE = 8 * 1024
_ID = re.compile(r"[0-9a-f]{64}\Z")
_WHERE = "network side"


class RequestKind(StrEnum):
    """The requests of the network side."""

    HELLO = "hello"  # return the node's name and key
    RECEIVE = "receive"  # take these triggers
    SERVE = "serve"  # execute this request
    DESCRIBE = "describe"  # return the signed description of the node
    CONTENDED = "contended"  # note that another agent publishes as this node
    FOLLOW = "follow"  # send a line on each change of that, until the connection ends


_IDS = {RequestKind.RECEIVE: MAX_IDS, RequestKind.SERVE: 1}


def message_id(message: bytes) -> MessageId:
    """Return the id of a message."""
    return MessageId(hashlib.sha256(message).hexdigest())


class SplitMessage(Value):
    """One line.

    Attributes:
        ids: The ids of its messages: up to `MAX_IDS` for `receive`, one for `serve`, else none.
    """

    verb: RequestKind
    ids: tuple[MessageId, ...] = ()

    @classmethod
    def parse(cls, line: bytes) -> "SplitMessage":
        """Parse a line.

        Raises:
            InvalidInputError: The line is malformed.
        """
        raw = parse_object(line, where=_WHERE, limit=MAX_LINE)
        verb_text = raw.get("verb")
        if verb_text not in list(RequestKind):
            raise InvalidInputError("has an unknown verb", where=_WHERE)
        verb = RequestKind(str(verb_text))
        most = _IDS.get(verb, 0)
        if set(raw) != ({"verb", "ids"} if most else {"verb"}):
            raise InvalidInputError(f"{verb} has unexpected fields", where=_WHERE)
        return cls(verb=verb, ids=_ids(raw["ids"], most) if most else ())

    def line(self) -> bytes:
        """Return the line, with its newline."""
        ids = {"ids": list(self.ids)} if self.verb in _IDS else {}
        return json.dumps({"verb": self.verb.value, **ids}).encode() + b"\n"


def _ids(value: Json, most: int) -> tuple[MessageId, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise InvalidInputError(f"ids must be a list of 1 to {most}", where=_WHERE)
    ids = [item for item in value if isinstance(item, str) and _ID.match(item)]
    if len(ids) != len(value) or len(set(ids)) != len(ids):
        raise InvalidInputError(
            "ids must be different SHA-256 digests in lower-case hex", where=_WHERE
        )
    return tuple(MessageId(item) for item in ids)
