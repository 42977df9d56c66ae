"""Sites for tests: drawn by Hypothesis, and a naive model of what a plan must keep."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from hypothesis import strategies as st

from localpuppet.rollout.plan import Plan
from localpuppet.rollout.site import EnvironmentSite, SiteComponent

T = TypeVar("T")

# Of each component: node, produces, consumes; all as small numbers.
Drawn = list[tuple[int, list[int], list[int]]]
Word = list[tuple[int, str]]  # runs: group and node

drawn_sites = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.lists(st.integers(0, 6), max_size=2),
        st.lists(st.integers(0, 6), max_size=2),
    ),
    max_size=9,
)


def document(drawn: Drawn) -> dict[str, object]:
    """Return the document of a site; it consumes only what a component produces."""
    produced = {name for _, names, _ in drawn for name in names}
    applications: dict[str, dict[str, object]] = {"App[0]": {}, "App[1]": {}}
    for index, (node, produces, consumes) in enumerate(drawn):
        applications[f"App[{index % 2}]"][f"Part[{index}]"] = {
            "node": f"n{node}",
            "produces": [f"C[{name}]" for name in produces],
            "consumes": [f"C[{name}]" for name in consumes if name in produced],
        }
    return {"applications": applications}


def site(drawn: Drawn) -> EnvironmentSite:
    """Return the site itself."""
    return EnvironmentSite.from_dict(document(drawn), where="site")  # type: ignore[arg-type]


def edges(components: Iterable[SiteComponent]) -> list[tuple[SiteComponent, SiteComponent]]:
    """Return the order of components: every pair of a producer and its consumer."""
    found = list(components)
    return [
        (before, after)
        for before in found
        for after in found
        if set(before.produces) & set(after.consumes)
    ]


def reachable(pairs: Iterable[tuple[T, T]]) -> set[tuple[T, T]]:
    """Return the transitive closure."""
    found = set(pairs)
    while more := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= more
    return found


def circles(components: Iterable[SiteComponent]) -> list[tuple[SiteComponent, SiteComponent]]:
    """Return pairs on different nodes that wait for each other."""
    closure = reachable(edges(components))
    return [
        (before, after)
        for before, after in closure
        if (after, before) in closure and before.node != after.node
    ]


def first_times(word: Word, components: Iterable[SiteComponent]) -> dict[SiteComponent, int] | None:
    """Return when each component is settled if these runs are done; `None` if one never is.

    A component is settled by the first run of its node that comes after the runs that settled all
    of its producers on other nodes, and not before those on its own.
    """
    found = dict.fromkeys(components, 0)
    pairs = edges(found)
    groups: dict[str, list[int]] = {}
    for group, node in sorted(word):
        groups.setdefault(node, []).append(group)
    while True:
        old = dict(found)
        for one in found:
            least = max(
                (
                    found[before] + (before.node != one.node)
                    for before, after in pairs
                    if after == one
                ),
                default=0,
            )
            later = [group for group in groups.get(one.node, []) if group >= least]
            if not later:
                return None
            found[one] = later[0]
        if found == old:
            return found


def word_of(plan: Plan) -> Word:
    """Return the runs of a plan."""
    return [(run.group, run.node) for run in plan.runs]


def looping_nodes(components: Iterable[SiteComponent]) -> set[object]:
    """Return the nodes that a reader of nodes alone sees in a circle."""
    closure = reachable(
        (before.node, after.node)
        for before, after in edges(components)
        if before.node != after.node
    )
    return {before for before, after in closure if before == after}


def shuffled(raw: Mapping[str, object], order: st.DataObject) -> dict[str, object]:
    """Return the same document with everything in another order."""
    applications = raw["applications"]
    assert isinstance(applications, dict)
    return {
        "applications": {
            name: {
                part: {
                    key: order.draw(st.permutations(value)) if isinstance(value, list) else value
                    for key, value in body.items()
                }
                for part, body in order.draw(st.permutations(list(applications[name].items())))
            }
            for name in order.draw(st.permutations(list(applications)))
        }
    }
