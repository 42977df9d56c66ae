"""Generate the accounts of a NATS server that isolate the members of a bus.

One account has the stream; the other has the members, which reach the stream through imports. This
is a security boundary: a server publishes an answer to any subject that the requester names,
without a permission check. In one account, a node could so have an answer stored as another node's
value. An answer that crosses accounts goes to subscribers, and never to an import.

Certificates, ports and clusters are in the operator's part of the file.
"""

import json
from collections.abc import Iterable, Sequence

from localpuppet.fleet.bus.nats.stream_config import (
    PLACES,
    advisories,
    inbox_of,
    place_of,
    subject_of,
    subjects_below,
)
from localpuppet.fleet.bus.roster import Grant, Member

# The prefix of the API in the members' account; `buses.nats.api` in their settings.
API = "$JS.bus.API"
_OWN = "$JS.API"


def accounts(members: Sequence[Member], admins: Iterable[str], *, stream: str) -> str:
    """Return the block `accounts` of a server's configuration.

    Args:
        members: The nodes and people.
        admins: The names with all rights on the streams, which create them.
        stream: The name of the stream; the inventory's stream has it as a prefix.
    """
    exports: list[str] = []
    imports: list[str] = []
    for place in PLACES:
        calls = _calls(stream + place.suffix)
        exports += [
            f'{{service: "{place.kept}.>"}}',
            *(f'{{service: "{_OWN}.{call}"{more}}}' for call, more in calls.items()),
            f'{{stream: "{place.live}.>"}}',
            f'{{stream: "{advisories(stream + place.suffix)}"}}',
        ]
        imports += [
            f'{{service: {{account: BUS, subject: "{place.kept}.>"}}}}',
            *(
                f'{{service: {{account: BUS, subject: "{_OWN}.{call}"}}, to: "{API}.{call}"}}'
                for call in calls
            ),
            f'{{stream: {{account: BUS, subject: "{place.live}.>"}}}}',
            f'{{stream: {{account: BUS, subject: "{advisories(stream + place.suffix)}"}}}}',
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
    subscribe = [f"{inbox_of(member.name)}.>"]
    for place in PLACES:
        name = stream + place.suffix
        grants = [grant for grant in member.grants if place_of(grant.key) is place]
        if not grants:
            continue
        publish += [
            f"{API}.STREAM.INFO.{name}",
            f"{API}.CONSUMER.DELETE.{name}.*",
            f"{API}.CONSUMER.MSG.NEXT.{name}.*",
        ]
        subscribe.append(advisories(name))
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
    return (subjects_below if grant.prefix else subject_of)(first, grant.key)


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
