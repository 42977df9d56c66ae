"""Accept or reject entries and tombstones: signature first, then form, then claims by policy.

- Each view checks the signer's right to `forget` with its own policy.

    # signers       roles     addresses
    *.web.example.com    web cache    10.0.1.0/24
    db01.example.com    db    10.0.2.7 fd00::7

- A node speaks for itself only: an entry, and every fact in it that contains the node's name, must
  name the signer. No policy changes that.
- With a policy, a line for the signer must list each role and each address of an entry; a signer
  may have several lines. Without a policy, all roles and addresses are accepted.
- If a signer may claim some addresses only, its address facts must be addresses. Other programs may
  read a value such as `010.1` as an address that localpuppet does not recognise.
- The fact `role` must be one of the entry's roles, so that no query finds an unchecked role.
- Loopback and link-local addresses are not claims.
- A line that does not parse makes the whole file invalid.
- Nothing is unpacked before its signature is verified.
- Any bytes result in an entry or in one printable line. The view checks that entries do not go back
  in time.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    NotInForceError,
)
from localpuppet.base.formats.converter import Message
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_TOMBSTONE
from localpuppet.fleet.inventory.entry import AHEAD, InventoryEntry, parse_role
from localpuppet.fleet.trust import policy as policies
from localpuppet.fleet.trust.signing import MessageKind, Verifier

if TYPE_CHECKING:
    from localpuppet.fleet.inventory.tables import EntryRows


class Tombstone(Message):
    """A forgotten node: entries up to `at` are forgotten; a later one brings the node back."""

    SCHEMA: ClassVar = 1
    WHERE: ClassVar = "tombstone"
    LIMIT: ClassVar = MAX_TOMBSTONE
    node: NodeName
    at: float


_COLUMNS = "signers, roles, addresses"
_FLAT = re.compile(r"ipaddress6?(_.+)?\Z", re.DOTALL)
_INTERFACE = re.compile(r"[A-Za-z0-9_.:-]{1,32}\Z")
_ADDRESS_KEYS = frozenset(("ip", "ip6", "address"))


class ClaimLine(Value):
    """What the signers of one line may claim."""

    signers: policies.Signers
    roles: frozenset[str] | None
    addresses: tuple[IPv4Network | IPv6Network, ...] | None


class ClaimPolicy(Value):
    """The claims that signers may make."""

    lines: tuple[ClaimLine, ...]

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> "ClaimPolicy":
        return cls(lines=tuple(policies.parse_lines(data, _parse_line, where=where)))

    def refusal(self, entry: InventoryEntry) -> str | None:
        """Return the first claim of an entry that no line allows; `None` if all are allowed."""
        lines = [line for line in self.lines if line.signers.include(entry.node)]
        for role in (*entry.roles, *(server.role for server in entry.servers)):
            if not any(line.roles is None or role in line.roles for line in lines):
                return f"{entry.node} may not claim the role {one_line(role)[:60]!r}"
        if any(line.addresses is None for line in lines):
            return None
        networks = [network for line in lines for network in line.addresses or ()]
        for place, value in _claimed_addresses(entry):
            address = _address(value)
            if address is None:
                return f"{entry.node} says in {one_line(place)[:60]} what is not an address"
            is_nobodys = address.is_loopback or address.is_link_local
            if not (is_nobodys or any(address in network for network in networks)):
                return f"{entry.node} may not claim the address {address}"
        return None


def refusal(entry: InventoryEntry, signer: str, policy: ClaimPolicy | None) -> str | None:
    """Return why an entry is rejected, in one line; without a policy, all claims are accepted."""
    if entry.node != signer:
        return f"signed by {signer}, claims to be {entry.node}"
    other = next(_other_names(entry), None)
    if other is not None:
        return f"its {other} is not the name of its signer"
    role = entry.facts.get("role")
    if role is not None and any(
        name not in entry.roles for name in (role if isinstance(role, list) else [role])
    ):
        return "its fact role is not among its roles"
    return None if policy is None else policy.refusal(entry)


def _other_names(entry: InventoryEntry) -> Iterator[str]:
    """Yield the places of facts with a name, or a part of one, that is not the node's."""
    label, _, domain = entry.node.partition(".")
    own: Mapping[str, tuple[Json, ...]] = {
        **dict.fromkeys(("certname", "clientcert", "fqdn"), (entry.node,)),
        "hostname": (label, entry.node, None),
        "domain": (domain, None),
    }
    places: Mapping[str, Json] = {"": dict(entry.facts)} | {
        f"{key}.": entry.facts.get(key) for key in ("networking", "trusted")
    }
    for place, facts in places.items():
        if isinstance(facts, dict):
            yield from (
                f"{place}{key}"
                for key, names in own.items()
                if key in facts and facts[key] not in names
            )


def _claimed_addresses(entry: InventoryEntry) -> Iterator[tuple[str, Json]]:
    """Yield the values of address facts with their places, except null and empty ones."""
    waiting: list[tuple[str, str, Json]] = [("networking", "", entry.facts.get("networking"))]
    waiting += [("an exported server", "ip", server.ipaddress) for server in entry.servers]
    waiting += [(key, "ip", value) for key, value in entry.facts.items() if _FLAT.match(key)]
    while waiting:
        place, key, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(place, key, inner) for inner in value]
        elif isinstance(value, dict):
            waiting += [(f"{place}.{name}", name, inner) for name, inner in value.items()]
        elif key in _ADDRESS_KEYS and value is not None and value != "":
            yield place, value


def _address(value: Json) -> IPv4Address | IPv6Address | None:
    """Return the address in a fact's value, or `None`; a link-local one may have `%eth0`."""
    if not isinstance(value, str):
        return None
    text, percent, interface = value.partition("%")
    try:
        address = ip_address(text)
    except ValueError:
        return None
    scoped = address.version == 6 and address.is_link_local and _INTERFACE.match(interface)
    return None if percent and not scoped else address


def _parse_line(line: str, _number: int) -> ClaimLine:
    fields = policies.columns(line)
    if len(fields) != 3:
        raise InvalidInputError(
            "is not a line of a policy", hint=f"write three tab-separated columns: {_COLUMNS}"
        )
    signers, roles, addresses = map(policies.words, fields)
    return ClaimLine(
        signers=policies.Signers.parse(signers),
        roles=None if roles is None else frozenset(map(parse_role, roles)),
        addresses=None if addresses is None else tuple(map(_network, addresses)),
    )


def _network(word: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(word)
    except ValueError as error:
        raise InvalidInputError(
            f"{word[:60]!r} is not an address or network", hint="10.0.1.0/24, 10.0.2.7, fd00::/64"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEntry:
    """An entry from the bus: its rows, or why it is rejected."""

    node: str
    token: bytes
    found: "EntryRows | str"
    revision: int = 0


class RefusedEntry(Value):
    """A node whose entry on the bus was rejected."""

    node: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class EntryAdmission:
    """Decides which entries this node accepts; `policy` says who may forget nodes."""

    verifier: Verifier
    _: KW_ONLY
    claims: Path
    policy: Path
    now: Callable[[], float]

    def entries(self, tokens: Mapping[str, bytes]) -> Iterator[tuple[str, InventoryEntry | str]]:
        """Yield each node with the entry in its message, or why it is rejected."""
        # All signatures first: that takes a seventh less, as it stays in the processor's caches.
        payloads = [(name, self._payload(name, token)) for name, token in tokens.items()]
        claims = cache(partial(read_claims, self.claims))
        for name, payload in payloads:
            yield name, payload if isinstance(payload, str) else self._entry(name, payload, claims)

    def _payload(self, name: str, token: bytes) -> bytes | str:
        try:
            signed = self.verifier.verify(token, MessageKind.INVENTORY)
        except LocalpuppetError as error:
            return one_line(str(error))
        if signed.signer != name:
            return f"signed by {signed.signer}, but found at the key of {name}"
        return signed.payload

    def _entry(
        self, name: str, payload: bytes, claims: Callable[[], ClaimPolicy | None]
    ) -> InventoryEntry | str:
        try:
            entry = InventoryEntry.parse(payload)
            problem = refusal(entry, name, claims())
        except LocalpuppetError as error:
            return one_line(str(error))
        if entry.at > self.now() + AHEAD:
            problem = problem or "has a timestamp in the future (check its node's clock)"
        return problem or entry

    def distrust(self, name: str, token: bytes) -> str | None:
        """Return why an entry is not trusted now; old dates and unreadable files do not count."""
        try:
            payload = self.verifier.verify(token, MessageKind.INVENTORY).payload
            claims = read_claims(self.claims)
            return refusal(InventoryEntry.parse(payload), name, claims)
        except (NotInForceError, InvalidInputError):
            return None
        except IntegrityError as error:
            return one_line(str(error))

    def tombstone(self, name: str, token: bytes) -> tuple[Tombstone, SignerName] | str:
        """Return a tombstone and its signer, or why it is rejected."""
        try:
            signed = self.verifier.verify(token, MessageKind.TOMBSTONE)
            tombstone = Tombstone.parse(signed.payload)
            reason = policies.refusal(self.policy, signed.signer, "forget")
        except LocalpuppetError as error:
            return one_line(str(error))
        if tombstone.node != name:
            return f"is about {tombstone.node}, but found at the key of {name}"
        if tombstone.at > self.now() + AHEAD:
            return "has a timestamp in the future (check its signer's clock)"
        return reason or (tombstone, signed.signer)


def read_claims(path: Path) -> ClaimPolicy | None:
    """Return the claim policy; `None` if the site has none. Other users must not write it."""
    return policies.read_policy_file(path, ClaimPolicy.parse)
