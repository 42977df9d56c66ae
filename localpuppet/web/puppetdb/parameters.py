"""Check the parameters of a request, from the query string, a form or a JSON body.

- As in PuppetDB, a parameter that the endpoint does not have is an error.
- `client_query` parses the query and its paging; this module has the other parameters.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.client_query import PARAMETERS
from localpuppet.fleet.inventory.query.syntax import check_values
from localpuppet.web.puppetdb.endpoints import ApiEndpoint

# What PuppetDB has and localpuppet has not; a client may still write that it does not need it.
_UNSUPPORTED = ("explain", "include_facts_expiration", "include_package_inventory")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParameters:
    """The parameters of a request.

    Attributes:
        query: The parameters of the query.
        pretty: Whether the JSON is indented.
        ast_only: Whether the answer is the query in AST form.
        timeout: Seconds for the answer; `None` for the limit.
        counts: The parameters of event counts.
    """

    query: Mapping[str, Json]
    pretty: bool
    ast_only: bool
    timeout: float | None
    counts: Mapping[str, Json]

    def digest(self, segments: Sequence[str]) -> bytes:
        """Return a digest of what a question depends on.

        Args:
            segments: The path.
        """
        text = compact([segments, self.query, self.counts])
        return hashlib.sha256(text.encode()).digest()


def from_texts(pairs: Sequence[tuple[str, str]], endpoint: ApiEndpoint) -> RequestParameters:
    """Return the parameters in a query string or a form.

    Raises:
        InvalidInputError: One is unsupported, missing, repeated or malformed.
    """
    texts: dict[str, Json] = {}
    for name, text in pairs:
        if name in texts:
            raise InvalidInputError(f"The query parameter '{name[:40]}' is repeated")
        texts[name] = text
    return from_body(texts, endpoint)


def from_body(values: Json, endpoint: ApiEndpoint) -> RequestParameters:
    """Return the parameters in a JSON body.

    Raises:
        InvalidInputError: One is unsupported, missing or malformed.
    """
    if not isinstance(values, dict):
        raise InvalidInputError("The body of the request must be a JSON object")
    check_values(values)
    missing = next((name for name in endpoint.required if name not in values), None)
    if missing is not None:
        raise InvalidInputError(f"Missing required query parameter '{missing}'")
    unknown = next((name for name in sorted(values) if name not in endpoint.allowed), None)
    if unknown is not None:
        raise InvalidInputError(f"Unsupported query parameter '{unknown[:40]}'")
    refused = next((name for name in _UNSUPPORTED if values.get(name) not in _OFF), None)
    if refused is not None:
        raise InvalidInputError(f"The query parameter '{refused}' is not supported")
    return RequestParameters(
        query={name: values[name] for name in PARAMETERS if name in values},
        pretty=_flag(values.get("pretty")),
        ast_only=_flag(values.get("ast_only")),
        timeout=_timeout(values.get("timeout")),
        counts={name: values[name] for name in endpoint.counts if name in values},
    )


_OFF = (None, False, "false", "")


def _flag(value: Json) -> bool:
    return str(value).lower() == "true"


def _timeout(value: Json) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidInputError(f"Query timeout must be non-negative number, not {str(value)[:40]}")
    return seconds or None
