"""Which facts leave a node, and what they are turned into on the way.

Owns: the lists of what never leaves (secrets) and what would change with every run, how a site
narrows them, and what a node is for. Refuses to know: files, signatures.

- A pattern is a shell's glob over a dotted path (`networking.*.ip`); one that matches a part of the
  tree stands for everything below it.
- A secret is known by the name of a key anywhere in the tree, however it is written: `user-data`,
  `UserData` and `user_data` are one name. What a site selects does not bring a secret back.
- A node is known by the name that it signs in: `fqdn`, `certname` and their like say that name.

Example: `Selection(facts=(), hide=("ssh*",)).of({"os": {...}, "ssh": {...}})` has `os` alone.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ClassName, Environment, NodeName, RunId, is_class_name
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.component import Component
from localpuppet.fleet.inventory.entry import (
    MAX_CLASSES,
    MAX_KICKS,
    MAX_PATHS,
    MAX_QUERIES,
    MAX_ROLES,
    NO_EXPORTS,
    AskedQuery,
    ExportsSummary,
    InventoryEntry,
    parse_role,
)
from localpuppet.fleet.inventory.server import ExportedServer

# Facts that are another each time somebody looks: with them every run would be news.
VOLATILE = (
    "uptime*",
    "system_uptime",
    "load_averages*",
    "memory.*.used*",
    "memory.*.available*",
    "memory.*.capacity",
    "memoryfree*",
    "swapfree*",
    "mountpoints.*.used*",
    "mountpoints.*.available*",
    "mountpoints.*.capacity",
    "processors.speed",
)
# Names of keys, in lower case and without '_' and '-', of what may be secret.
SECRET = (
    "*userdata*",
    "*customdata*",
    "*startupscript*",
    "*password*",
    "*passwd*",
    "*passphrase*",
    "*secret*",
    "*credential*",
    "*token*",
    "*accesskey*",
    "*apikey*",
    "*privatekey*",
    "*sharedkey*",
    "*sessionkey*",
    "*sshkeys",
    "*kubeconfig*",
)
# The facts that say who the node is; Puppet has them under each of these names.
_NAMES = ("certname", "clientcert", "fqdn")
_SEPARATORS = str.maketrans("", "", "_-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which facts a site lets leave its nodes.

    Attributes:
        facts: Patterns of those that are published; empty for all.
        hide: Patterns of those that are not.
    """

    facts: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()

    def of(self, facts: Mapping[str, Json], *, withheld: Collection[str] = ()) -> dict[str, Json]:
        """Return the facts that are published.

        Args:
            facts: All facts of a run, structured.
            withheld: Names of those that are published only where the site itself selects them.
        """
        if not self.facts:
            facts = {name: value for name, value in facts.items() if name not in withheld}
        wanted = _pattern(self.facts) if self.facts else None
        hidden = _pattern((*VOLATILE, *self.hide))
        return _selected(facts, "", wanted, hidden)


def _selected(
    tree: Mapping[str, Json], place: str, wanted: re.Pattern[str] | None, hidden: re.Pattern[str]
) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in tree.items():
        path = f"{place}{key}"
        if hidden.match(path) or is_secret(key):
            continue
        # Below what a site wants, everything is wanted.
        left = None if wanted is None or wanted.match(path) else wanted
        kept = _kept(value, f"{path}.", left, hidden)
        if kept is not None or (value is None and left is None):
            found[key] = kept
    return found


def _kept(value: Json, place: str, wanted: re.Pattern[str] | None, hidden: re.Pattern[str]) -> Json:
    """Return what is published of a value; `None` where that is nothing."""
    if isinstance(value, dict):
        return _selected(value, place, wanted, hidden) or (None if value else _if(wanted, value))
    if isinstance(value, list) and wanted is None:
        return [_kept(item, place, None, hidden) for item in value]
    return _if(wanted, value)


def _if(wanted: re.Pattern[str] | None, value: Json) -> Json:
    return value if wanted is None else None


@lru_cache(maxsize=8)
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)))


_SECRETS = re.compile("|".join(map(translate, SECRET)))


@lru_cache(maxsize=4096)
def is_secret(key: str) -> bool:
    """Return whether a key has the name of what may be secret, however the key is written."""
    return _SECRETS.match(key.lower().translate(_SEPARATORS)) is not None


def named_for(facts: Mapping[str, Json], node: NodeName) -> dict[str, Json]:
    """Return the facts with the node's own name wherever they say a name.

    Others refuse an entry that says another: see `claims`.

    Args:
        facts: The facts.
        node: The name that the node signs in.
    """
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
    """Return the facts with the fact `role` saying what the node is for; without it for nothing."""
    found = {key: value for key, value in facts.items() if key != "role"}
    if roles:
        found["role"] = roles[0] if len(roles) == 1 else list(roles)
    return found


def roles_of(parameters: Mapping[str, Json], facts: Mapping[str, Json]) -> tuple[str, ...]:
    """Return what a node is for: the parameter `role` of its node document, else the fact.

    Args:
        parameters: The top-scope parameters of the node document.
        facts: The facts.

    Raises:
        InvalidInputError: It is neither a string nor a list of at most `MAX_ROLES` strings.
    """
    where, role = ("parameter", parameters.get("role"))
    if role is None:
        where, role = ("fact", facts.get("role"))
    if role is None:
        return ()
    roles: Iterable[Json] = role if isinstance(role, list) else [role]
    found = tuple(dict.fromkeys(parse_role(one) for one in roles if isinstance(one, str)))
    strings = isinstance(role, str) or (
        isinstance(role, list) and all(isinstance(one, str) for one in role)
    )
    if not strings or len(found) > MAX_ROLES:
        raise InvalidInputError(
            f"must be a string or a list of at most {MAX_ROLES} strings", where=f"{where} role"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodRun:
    """What a node's last good run was, as far as others hear of it.

    Attributes:
        node: The name that the node signs in.
        at: When the run had ended: seconds since 1970, UTC.
        run: Its id.
        release: The release that was applied.
        environment: Puppet's environment.
        parameters: The top-scope parameters of the node document.
        facts: All facts of that run.
        withheld: Names of facts that the cloud gave, and that only a site that selects them tells.
        classes: Names of the classes in its catalog.
        paths: The chains of nodes that led to it.
        queries: What its catalog asked.
        kicks: The queries that find whom its catalog kicks.
        components: The parts of applications in its catalog.
        tagged_at: When the release's tag says that it was made, in seconds since 1970; `None` where
            that is not known.
        commit: The commit behind that tag; `None` where the release was not staged.
        exports: What its catalog exports.
        servers: The servers among that.
    """

    node: NodeName
    at: float
    run: RunId
    release: str
    environment: Environment
    parameters: Mapping[str, Json]
    facts: Mapping[str, Json]
    withheld: Collection[str]
    classes: Iterable[str]
    paths: tuple[tuple[NodeName, ...], ...]
    queries: tuple[AskedQuery, ...] = ()
    kicks: tuple[str, ...] = ()
    components: tuple[Component, ...] = ()
    tagged_at: int | None = None
    commit: str | None = None
    exports: ExportsSummary = NO_EXPORTS
    servers: tuple[ExportedServer, ...] = ()


def entry_of(run: GoodRun, selection: Selection) -> InventoryEntry:
    """Return what others hear of a run.

    Args:
        run: The run.
        selection: Which facts leave the node.

    Raises:
        InvalidInputError: The role is neither a string nor a list of strings.
    """
    roles = roles_of(run.parameters, run.facts)
    facts = selection.of(run.facts, withheld=run.withheld)
    classes = sorted({name for name in run.classes if is_class_name(name)})
    return InventoryEntry(
        node=run.node,
        at=run.at,
        run=run.run,
        release=run.release,
        environment=run.environment,
        facts=with_roles(named_for(facts, run.node), roles),
        roles=roles,
        classes=tuple(map(ClassName, classes[:MAX_CLASSES])),
        components=run.components,
        kicks=run.kicks[:MAX_KICKS],
        queries=run.queries[:MAX_QUERIES],
        exports=run.exports,
        servers=run.servers,
        paths=run.paths[:MAX_PATHS],
        tagged_at=run.tagged_at,
        commit=run.commit,
    ).digested()
