"""The members of a bus, and what NATS and etcd let each of them do.

- A member has no right that the roster does not name.
- An unknown name is rejected, so that a typo cannot silently remove a right.

One account has the stream; the other has the members, which reach the stream through imports. This
is a security boundary: a server publishes an answer to any subject that the requester names,
without a permission check. In one account, a node could so have an answer stored as another node's
value. An answer that crosses accounts goes to subscribers, and never to an import.

Certificates, ports and clusters are in the operator's part of the file.

The name of a member's role has a digest of its rights, so the script detects changes by names
alone. It grants the new role before it deletes the old one. It can be interrupted and run again at
any time.
"""

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.names import NodeName, SignerName, did_you_mean
from localpuppet.base.value import Value
from localpuppet.fleet.bus import jetstream_messages as jetstream
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.key_value import check_key
from localpuppet.fleet.bus.layout import KEYPREFIX, STORE


class Grant(Value):
    """A right to one key, or to a prefix, which ends with `/`.

    `write` grants write and remove; otherwise it grants read, list and watch.
    """

    key: str
    write: bool

    @property
    def prefix(self) -> bool:
        """Return whether the right is to all keys below a prefix."""
        return self.key.endswith("/")


class Member(Value):
    """A node or a person with their rights, without duplicates."""

    name: str
    grants: tuple[Grant, ...]


ALL = "*"
# Each keyword of `reads`, with the prefixes that it means.
READS = {
    "inventory": (layout.INVENTORY, layout.EXPORTS, layout.TOMBSTONES),
    "catalogs": (layout.CATALOGS,),
    "history": (layout.HISTORY,),
}


class RosterEntry(Value):
    """One entry of the roster.

    Attributes:
        reads: The keywords of `READS` that it may read of all nodes.
        forgets: Whether it may have nodes forgotten, if their policies allow that, too.
        takeover: The callers whose rollouts it may command and take over, if policies allow that.
    """

    name: SignerName
    node: bool
    triggers: tuple[NodeName, ...]
    asks: tuple[NodeName, ...]
    leases: tuple[str, ...]
    reads: tuple[str, ...]
    forgets: bool
    takeover: tuple[SignerName, ...]


class Roster(Value):
    """The members of a bus: nodes, then people, in the file's order."""

    entries: tuple[RosterEntry, ...]
    admins: tuple[SignerName, ...]
    keyprefix: str
    stream: str

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], *, where: str) -> "Roster":
        """Return the roster; reject a name that is malformed, a duplicate, or unknown."""
        nodes = [_parsed(NodeName, name, f"{where}: nodes") for name in raw.get("nodes", {})]
        people = raw.get("people") or {}
        admins = [_parsed(SignerName, name, f"{where}: admins") for name in raw.get("admins", [])]
        names = [*nodes, *(_parsed(SignerName, name, f"{where}: people") for name in people)]
        for name in (*names, *admins):
            if [*names, *admins].count(name) > 1:
                raise InvalidInputError(
                    f"{name} appears twice", where=where, hint="a name is one user of the engine"
                )
            if name == "root":
                raise InvalidInputError("root is etcd's own user", where=where)
        keyprefix = raw.get("keyprefix", KEYPREFIX)
        with errors_at(f"{where}: keyprefix"):
            check_key(keyprefix)
        return cls(
            entries=(
                *(_entry(n, raw["nodes"][n] or {}, names, f"{where}: nodes.{n}") for n in nodes),
                *(_entry(n, people[n] or {}, names, f"{where}: people.{n}") for n in people),
            ),
            admins=tuple(admins),
            keyprefix=keyprefix,
            stream=raw.get("stream", "localpuppet"),
        )

    def members(self) -> list[Member]:
        """Return all members except the admins, with their rights."""
        return [
            Member(name=entry.name, grants=tuple(self._grants(entry))) for entry in self.entries
        ]

    def _beside(self, entry: RosterEntry) -> list[RosterEntry]:
        """Return the members that share a rollout's control with an entry, itself included."""
        asking = [item for item in self.entries if item.asks]
        circles = [
            {member.name} | {to.name for to in asking if member.name in to.takeover}
            for member in asking
        ]
        beside = set[str]().union(*(circle for circle in circles if entry.name in circle))
        return [member for member in asking if member.name in beside]

    def _grants(self, entry: RosterEntry) -> list[Grant]:
        reads = [layout.STORE, layout.PRESENCE, layout.LEASES]
        writes = [layout.LEASES + name for name in entry.leases]
        writes += [
            layout.triggers_for(node, self.keyprefix) + entry.name for node in entry.triggers
        ]
        writes += [layout.requests_of(entry.name, node) for node in entry.asks]
        reads += [prefix for word in entry.reads for prefix in READS[word]]
        if entry.forgets:
            writes.append(layout.TOMBSTONES)
        if entry.asks:
            mine = [
                layout.rollouts_of(name) for name in dict.fromkeys((entry.name, *entry.takeover))
            ]
            reads += [layout.replies_to(entry.name), layout.commands_to(entry.name), *mine]
            writes += mine
            for other in self._beside(entry):
                writes.append(layout.commands_of(entry.name, other.name))
                writes.append(layout.replies_of(entry.name, other.name))
        if entry.node:
            me = NodeName(entry.name)
            reads += [layout.triggers_for(me, self.keyprefix), layout.requests_for(me)]
            writes += [layout.PRESENCE + me, layout.INVENTORY + me]
            writes += [layout.exports_of(me), layout.catalogs_of(me), layout.history_of(me)]
            writes += [layout.replies_of(me, item.name) for item in self.entries if me in item.asks]
        return [
            *(Grant(key=key, write=False) for key in dict.fromkeys(reads)),
            *(Grant(key=key, write=True) for key in dict.fromkeys(writes)),
        ]


def _entry(
    name: str, raw: Mapping[str, Any], names: Sequence[NodeName | SignerName], where: str
) -> RosterEntry:
    nodes = [item for item in names if isinstance(item, NodeName)]
    leases = raw.get("leases", [])
    for lease in leases:
        with errors_at(f"{where}.leases"):
            layout.parse_lease_name(lease)
    triggers = _named(raw.get("triggers", []), nodes, f"{where}.triggers", "node")
    asks = _named(raw.get("asks", []), nodes, f"{where}.asks", "node")
    takeover = _named(raw.get("takeover", []), names, f"{where}.takeover", "name")
    return RosterEntry(
        name=SignerName(name),
        node=name in nodes,
        triggers=tuple(map(NodeName, triggers)),
        asks=tuple(map(NodeName, asks)),
        leases=tuple(dict.fromkeys(leases)),
        reads=tuple(dict.fromkeys(raw.get("reads", []))),
        forgets=raw.get("forgets", False),
        takeover=tuple(map(SignerName, takeover)),
    )


def _named(names: Sequence[str], known: Sequence[str], where: str, what: str) -> list[str]:
    if ALL in names:
        return [*known]
    for name in names:
        if name not in known:
            raise InvalidInputError(
                f"{name!r} is not a {what} of this file",
                where=where,
                hint=did_you_mean(name, [*known]) if known else "",
            )
    return list(dict.fromkeys(names))


def _parsed(kind: type[Any], name: str, where: str) -> Any:  # noqa: ANN401
    with errors_at(where):
        return kind.parse(name)


# The prefix of the API in the members' account; `buses.nats.api` in their settings.
API = "$JS.bus.API"
_OWN = "$JS.API"


def accounts(members: Sequence[Member], admins: Iterable[str], *, stream: str) -> str:
    """Return the block `accounts` of a server's configuration.

    Admins have all rights on the streams, whose names begin with `stream`.
    """
    exports: list[str] = []
    imports: list[str] = []
    for place in jetstream.PLACES:
        calls = _calls(stream + place.suffix)
        advisories = jetstream.advisories(stream + place.suffix)
        exports += [
            f'{{service: "{place.kept}.>"}}',
            *(f'{{service: "{_OWN}.{call}"{more}}}' for call, more in calls.items()),
            f'{{stream: "{place.live}.>"}}',
            f'{{stream: "{advisories}"}}',
        ]
        imports += [
            f'{{service: {{account: BUS, subject: "{place.kept}.>"}}}}',
            *(
                f'{{service: {{account: BUS, subject: "{_OWN}.{call}"}}, to: "{API}.{call}"}}'
                for call in calls
            ),
            f'{{stream: {{account: BUS, subject: "{place.live}.>"}}}}',
            f'{{stream: {{account: BUS, subject: "{advisories}"}}}}',
        ]
    lines = [
        "accounts {",
        "  # Has the streams.",
        "  BUS {",
        "    jetstream: enabled",
        *_list("users", [_user(name) for admin in admins for name in _names(admin)]),
        *_list("exports", exports),
        "  }",
        "  # Apart, so that no answer of the server can be turned into a write.",
        "  NODES {",
        *_list("imports", imports),
        *_list("users", [user for member in members for user in _users(member, stream)]),
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def permissions(member: Member, *, stream: str) -> dict[str, list[str]]:
    """Return the only subjects that a member may publish and subscribe to."""
    publish: list[str] = []
    subscribe = [f"{jetstream.inbox_of(member.name)}.>"]
    for place in jetstream.PLACES:
        name = stream + place.suffix
        grants = [grant for grant in member.grants if jetstream.place_of(grant.key) is place]
        if not grants:
            continue
        publish += [
            f"{API}.STREAM.INFO.{name}",
            f"{API}.CONSUMER.DELETE.{name}.*",
            f"{API}.CONSUMER.MSG.NEXT.{name}.*",
        ]
        subscribe.append(jetstream.advisories(name))
        for grant in grants:
            subject = _subject(place.kept, grant)
            if grant.write:
                publish.append(subject)
            else:
                publish.append(f"{API}.DIRECT.GET.{name}.{subject}")
                publish.append(f"{API}.CONSUMER.CREATE.{name}.*.{subject}")
                subscribe.append(_subject(place.live, grant))
    return {"publish": publish, "subscribe": subscribe}


def _calls(stream: str) -> dict[str, str]:
    """Return the API calls of members for a stream, with options of the export."""
    return {
        f"STREAM.INFO.{stream}": "",
        f"DIRECT.GET.{stream}.>": "",
        f"CONSUMER.CREATE.{stream}.>": "",
        f"CONSUMER.DELETE.{stream}.*": "",
        # One request, many answers.
        f"CONSUMER.MSG.NEXT.{stream}.*": ", response_type: stream",
    }


def _subject(first: str, grant: Grant) -> str:
    return (jetstream.subjects_below if grant.prefix else jetstream.subject_of)(first, grant.key)


def _list(name: str, items: Sequence[str]) -> list[str]:
    return [f"    {name}: [", *(f"      {item}" for item in items), "    ]"]


def _users(member: Member, stream: str) -> list[str]:
    body = "".join(
        f"\n        {verb}: [\n"
        + "".join(f"          {json.dumps(subject)}\n" for subject in subjects)
        + "        ]"
        for verb, subjects in permissions(member, stream=stream).items()
    )
    return [_user(name, f", permissions: {{{body}\n      }}") for name in _names(member.name)]


def _names(name: str) -> tuple[str, str]:
    """Return the names that a server finds in a certificate: its DNS name, or else its subject."""
    return name, f"CN={name}"


def _user(name: str, more: str = "") -> str:
    # Without a password: the server would require it even with a certificate.
    return f"{{user: {json.dumps(name)}{more}}}"


_HEAD = """\
set -eu
export ETCDCTL_API=3

# Output that is only there for people.
quietly() {
    "$@" >/dev/null
}

# among WORD LIST: whether a list of words has it.
among() {
    case " $2 " in
    *" $1 "*) return 0 ;;
    esac
    return 1
}

words() {
    tr '\\n' ' '
}

# member USER ROLE: what follows until the next `given` is what the role allows.
member() {
    user=$1
    role=$2
    members="$members $user"
    wanted="$wanted $role"
    among "$user" "$users" || quietly etcdctl user add "$user" --no-password
    has=$(etcdctl user get "$user" | sed -n 's/^Roles: *//p' | words)
    among "$role" "$has" || among "$role" "$roles" || quietly etcdctl role add "$role"
}

may() {
    among "$role" "$has" || quietly etcdctl role grant-permission "$role" "$@"
}

# The role is whole now.
given() {
    among "$role" "$has" || quietly etcdctl user grant-role "$user" "$role"
}

# When the store began: a member must not change that.
among STORE "$(etcdctl get STORE --keys-only | words)" || quietly etcdctl put STORE "$(date +%s)"

users=$(etcdctl user list | words)
roles=$(etcdctl role list | words)
members=''
wanted=''
among root "$users" || quietly etcdctl user add root --no-password
among root "$roles" || quietly etcdctl role add root
quietly etcdctl user grant-role root root
"""

_TAIL = """
# What is not wanted any more: roles of an earlier run, and users that are not in the file.
for role in $roles; do
    case $role in
    localpuppet.*)
        among "$role" "$wanted" && continue
        quietly etcdctl role delete "$role"
        user=${role#localpuppet.}
        user=${user%.*}
        if among "$user" "$users" && ! among "$user" "$members"; then
            quietly etcdctl user delete "$user"
        fi
        ;;
    esac
done
quietly etcdctl auth enable
"""


def script(members: Sequence[Member]) -> str:
    """Return a POSIX shell script that creates users and roles and enables authentication."""
    return _HEAD.replace("STORE", STORE) + "".join(_member(member) for member in members) + _TAIL


def _member(member: Member) -> str:
    rights = "".join(f"may {_right(grant)}\n" for grant in member.grants)
    digest = hashlib.sha256(rights.encode()).hexdigest()[:16]
    name = shlex.quote(member.name)
    return f"\nmember {name} {shlex.quote(f'localpuppet.{member.name}.{digest}')}\n{rights}given\n"


def _right(grant: Grant) -> str:
    option = "--prefix " if grant.prefix else ""
    return f"{option}{'write' if grant.write else 'read'} {shlex.quote(grant.key)}"
