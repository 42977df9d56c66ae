"""Select the facts that a node publishes, and normalise them.

- Secret facts and facts that change with every run are never published. A site can select a subset
  of the others; selecting a secret fact has no effect.
- A pattern is a shell glob over a dotted path (`networking.*.ip`); if it matches a mapping, it
  includes everything below.
- A secret is recognised by its key anywhere in the tree: `user-data`, `UserData` and `user_data`
  are one key. A private key or an address with a password is recognised by its text.
- Facts with the node's name (`fqdn`, `certname`) have the name that the node signs with.

Example: `Selection(facts=(), hide=("ssh*",)).of({"os": {...}, "ssh": {...}})` has `os` only.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from functools import lru_cache
from operator import methodcaller

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ClassName, NodeName, is_class_name
from localpuppet.base.formats.text import listed
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.bus import bus_limits as limits
from localpuppet.fleet.inventory.entry import MAIN, InventoryEntry, parse_role
from localpuppet.node.preview.node_capture import SECRET, matching, shows_secret

# Facts that change whenever they are read: with them, every run would publish a new entry.
VOLATILE = listed(
    "uptime* system_uptime load_averages* memory.*.used* memory.*.available* memory.*.capacity "
    "memoryfree* swapfree* mountpoints.*.used* mountpoints.*.available* mountpoints.*.capacity "
    "processors.speed"
)
# The facts with the node's name; Puppet uses all of these keys.
_NAMES = ("certname", "clientcert", "fqdn")


class FactSelection(Value):
    """Patterns of the facts that a site publishes (none for all), and of those that it hides."""

    facts: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()

    def of(self, facts: Mapping[str, Json], *, withheld: Collection[str] = ()) -> dict[str, Json]:
        """Return the published facts; `withheld` ones only if the site selects them."""
        if not self.facts:
            facts = {name: value for name, value in facts.items() if name not in withheld}
        wanted = _pattern(self.facts) if self.facts else None
        hidden = _pattern((*VOLATILE, *self.hide))
        return _selected(facts, "", wanted, hidden)

    def without_hidden(self, facts: Mapping[str, Json]) -> dict[str, Json]:
        """Return the facts that no pattern hides, also those with the name of a secret."""
        return _selected(facts, "", None, _pattern(self.hide or ("",)), secrets=True)


def _selected(
    tree: Mapping[str, Json],
    place: str,
    wanted: re.Pattern[str] | None,
    hidden: re.Pattern[str],
    *,
    secrets: bool = False,
) -> dict[str, Json]:
    selected: dict[str, Json] = {}
    refused = set() if secrets else matching(tree, SECRET)
    for key, value in tree.items():
        path = f"{place}{key}"
        if key in refused or hidden.match(path):
            continue
        # Everything below a selected fact is selected.
        left = None if wanted is None or wanted.match(path) else wanted
        kept = _kept(value, f"{path}.", left, hidden, secrets=secrets)
        if kept is not None or (value is None and left is None):
            selected[key] = kept
    return selected


def _kept(
    value: Json,
    place: str,
    wanted: re.Pattern[str] | None,
    hidden: re.Pattern[str],
    *,
    secrets: bool,
) -> Json:
    """Return the published part of a value; `None` if it has none."""
    if isinstance(value, dict):
        part = _selected(value, place, wanted, hidden, secrets=secrets)
        return part or (None if value else _if(wanted, value))
    if isinstance(value, str) and shows_secret(value) and not secrets:
        return None
    if isinstance(value, list) and wanted is None:
        return [_kept(item, place, None, hidden, secrets=secrets) for item in value]
    return _if(wanted, value)


def _if(wanted: re.Pattern[str] | None, value: Json) -> Json:
    return value if wanted is None else None


@lru_cache(maxsize=8)
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)))


def unpublished(path: Sequence[str]) -> str:
    """Return why no node publishes a fact, or a part of one; empty if a node may publish it."""
    if matching(path, SECRET):
        return "it may be a secret"
    deepest = max(map(methodcaller("count", "."), VOLATILE)) + 1
    places = (".".join(path[:steps]) for steps in range(1, min(len(path), deepest) + 1))
    return "it changes with every run" if any(map(_pattern(VOLATILE).match, places)) else ""


def is_secret(key: str) -> bool:
    """Return whether a key, in any spelling, is that of a possible secret."""
    return bool(matching((key,), SECRET))


def named_for(facts: Mapping[str, Json], node: NodeName) -> dict[str, Json]:
    """Return the facts with the node's own name in all name facts, as `admission` requires."""
    label, _, domain = node.partition(".")
    named: dict[str, Json] = {**facts, **dict.fromkeys(_NAMES, str(node))}
    flat: dict[str, Json] = {"hostname": label, "domain": domain}
    named |= {key: value for key, value in flat.items() if key in facts}
    networking = facts.get("networking")
    named["networking"] = {
        **(networking if isinstance(networking, dict) else {}),
        "fqdn": str(node),
        "hostname": label,
        "domain": domain,
    }
    return named


def with_roles(facts: Mapping[str, Json], roles: tuple[str, ...]) -> dict[str, Json]:
    """Return the facts with the node's roles as the fact `role`, or without it for no roles."""
    changed = {key: value for key, value in facts.items() if key != "role"}
    if roles:
        changed["role"] = roles[0] if len(roles) == 1 else list(roles)
    return changed


def roles_of(parameters: Mapping[str, Json], facts: Mapping[str, Json]) -> tuple[str, ...]:
    """Return a node's roles: the parameter `role` of its node document, or else the fact."""
    where, role = ("parameter", parameters.get("role"))
    if role is None:
        where, role = ("fact", facts.get("role"))
    if role is None:
        return ()
    roles: Iterable[Json] = role if isinstance(role, list) else [role]
    unique = tuple(dict.fromkeys(parse_role(item) for item in roles if isinstance(item, str)))
    strings = isinstance(role, str) or (
        isinstance(role, list) and all(isinstance(element, str) for element in role)
    )
    if not strings or len(unique) > limits.MAX_ROLES:
        raise InvalidInputError(
            f"must be a string or a list of at most {limits.MAX_ROLES} strings",
            where=f"{where} role",
        )
    return unique


def class_names(names: Iterable[str]) -> tuple[ClassName, ...]:
    """Return the classes of a catalog that an entry may name: sorted, each once, with `main`."""
    return tuple(map(ClassName, sorted({MAIN, *filter(is_class_name, names)})))


class PublishedRun(Value):
    """A node's last good run: its entry with all facts, without roles.

    `parameters` are those of the node document at top scope; facts of the cloud are `withheld`
    unless the site selects them.
    """

    entry: InventoryEntry
    parameters: Mapping[str, Json]
    withheld: Collection[str]


def entry_of(run: PublishedRun, selection: FactSelection) -> InventoryEntry:
    """Return the entry for a run; raise `InvalidInputError` for a role that is not text."""
    entry = run.entry
    roles = roles_of(run.parameters, entry.facts)
    facts = selection.of(entry.facts, withheld=run.withheld)
    return replace(
        entry,
        facts=with_roles(named_for(facts, entry.node), roles),
        roles=roles,
        classes=entry.classes[: limits.MAX_CLASSES],
        kicks=entry.kicks[: limits.MAX_KICKS],
        queries=entry.queries[: limits.MAX_ENTRY_QUERIES],
        paths=entry.paths[: limits.MAX_KICK_PATHS],
    ).digested()
