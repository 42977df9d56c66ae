"""Replaces what identifies a node by placeholders, so that equal differences look equal.

    File[/etc/web01.conf]: content: listen 10.0.0.1  ->  File[/etc/⟨hostname⟩.conf]: listen ⟨ip⟩

- Replaced are the certname, the names and the addresses of the node. Loopback addresses stay.
- A name is replaced as a whole word only: `web1` is not a part of `web10`, and no part of `web1x`.
- Longer words win: `web01.example.com` is `⟨fqdn⟩`, not `⟨hostname⟩.example.com`.
- A `⟨` of the catalog is doubled, so that no text looks like a placeholder.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address

from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.node.preview.difference import CatalogDifference, ParameterChange, ResourceChange

OPEN, CLOSE = "⟨", "⟩"
_ADDRESSES = ("ip", "ip6", "mac")
# What may not be before or after a word: more of a name, or of an address.
_BEFORE, _AFTER = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"


@dataclass(frozen=True, slots=True)
class NodePlaceholders:
    """The words that identify a node.

    Attributes:
        words: Word → placeholder without brackets.
    """

    words: Mapping[str, str]
    _pattern: "re.Pattern[str]" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words = sorted(self.words, key=lambda word: (-len(word), word))
        inner = "|".join(map(re.escape, words))
        pattern = f"{_BEFORE}(?:{inner}){_AFTER}|{OPEN}" if words else OPEN
        object.__setattr__(self, "_pattern", re.compile(pattern))

    @classmethod
    def of(cls, node: str, facts: Mapping[str, Json]) -> "NodePlaceholders":
        """Return the placeholders of a node.

        Args:
            node: Its certname.
            facts: Its facts, structured and legacy ones.
        """
        words: dict[str, str] = {}
        networking = mapping_of(facts.get("networking"))
        for word, name in (
            *_names(node, facts, networking),
            *_addresses(facts, networking),
        ):
            if word and isinstance(word, str):
                words.setdefault(word, name)
        return cls(words)

    def text(self, text: str) -> str:
        """Return a text with placeholders."""
        return self._pattern.sub(self._placeholder, text)

    def value(self, value: Json) -> Json:
        """Return a value with placeholders in its texts and keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in value.items()}
        return value

    def difference(self, difference: CatalogDifference) -> CatalogDifference:
        """Return a difference with placeholders, sorted again."""
        resources = [
            ResourceChange(
                action=change.action,
                type=change.type,
                title=self.text(change.title),
                parameters=tuple(map(self._parameter, change.parameters)),
            )
            for change in difference.resources
        ]
        relationships = [
            replace(change, source=self.text(change.source), target=self.text(change.target))
            for change in difference.relationships
        ]
        return replace(
            difference,
            resources=tuple(sorted(resources, key=lambda change: (change.type, change.title))),
            relationships=tuple(sorted(relationships)),
        )

    def _parameter(self, change: ParameterChange) -> ParameterChange:
        return replace(change, before=self.value(change.before), after=self.value(change.after))

    def _placeholder(self, match: "re.Match[str]") -> str:
        word = match.group()
        return OPEN * 2 if word == OPEN else f"{OPEN}{self.words[word]}{CLOSE}"


def _names(
    node: str, facts: Mapping[str, Json], networking: Mapping[str, Json]
) -> Iterator[tuple[Json, str]]:
    fqdn = networking.get("fqdn") or facts.get("fqdn")
    hostname = networking.get("hostname") or facts.get("hostname")
    # The certname is usually the FQDN: both have one name.
    yield node, "fqdn" if fqdn in (None, node) else "certname"
    yield fqdn, "fqdn"
    yield hostname or node.partition(".")[0], "hostname"


def _addresses(
    facts: Mapping[str, Json], networking: Mapping[str, Json]
) -> Iterator[tuple[Json, str]]:
    legacy = {"ip": "ipaddress", "ip6": "ipaddress6", "mac": "macaddress"}
    for name in _ADDRESSES:
        yield _own(networking.get(name) or facts.get(legacy[name])), name
    for interface, raw in sorted(mapping_of(networking.get("interfaces")).items()):
        values = mapping_of(raw)
        for name in _ADDRESSES:
            yield _own(values.get(name)), f"{name} of {interface}"
        for name, key in (("ip", "bindings"), ("ip6", "bindings6")):
            listed = values.get(key)
            for number, binding in enumerate(listed if isinstance(listed, list) else (), 1):
                address = _own(mapping_of(binding).get("address"))
                yield address, f"{name} {number} of {interface}"


def _own(address: Json) -> Json:
    """Return an address that other nodes do not have: no loopback, and none that is empty."""
    if not isinstance(address, str) or not address:
        return None
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return None if set(address) <= set("0:") else address  # a MAC address
    return None if parsed.is_loopback or parsed.is_unspecified else address
