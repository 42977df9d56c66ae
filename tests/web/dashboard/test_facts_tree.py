"""Facts as a tree."""

from localpuppet.base.formats.values import Json
from localpuppet.web.dashboard.inventory_questions import MAX_LEAVES, MAX_VALUE, tree_of

FACTS: dict[str, Json] = {
    "os": {"family": "Debian", "release": {"major": "12"}},
    "empty": {},
    "list": [1, "a"],
}


def test_mappings_are_branches_and_all_else_is_text() -> None:
    tree = tree_of(FACTS)
    assert [one.key for one in tree.branches] == ["empty", "list", "os"]
    assert [one.text for one in tree.branches] == ["{}", '[1, "a"]', ""]
    assert [one.path for one in tree.branches[2].parts] == ["os.family", "os.release"]
    assert (tree.shown, tree.left_out) == (4, False)


def test_legacy_facts_are_a_part_of_their_own_and_are_cut_first() -> None:
    facts: dict[str, Json] = {"osfamily": "Debian", "ipaddress_eth0": "10.0.0.1", **FACTS}
    tree = tree_of(facts)
    assert [one.key for one in tree.branches] == ["empty", "list", "os"]
    assert [one.key for one in tree.legacy] == ["ipaddress_eth0", "osfamily"]
    many = {f"k{number}": number for number in range(MAX_LEAVES)}
    assert tree_of({"architecture": "amd64", **many}).legacy == ()
    assert tree_of({"architecture": "amd64", **many}).left_out


def test_a_search_finds_paths_and_values_in_any_case() -> None:
    assert [one.key for one in tree_of(FACTS, "DEBIAN").branches] == ["os"]
    assert tree_of(FACTS, "release.maj").shown == 1
    assert tree_of(FACTS, "nowhere").branches == ()


def test_the_number_of_shown_facts_is_limited() -> None:
    tree = tree_of({f"k{number}": number for number in range(3 * MAX_LEAVES)})
    assert (tree.shown, tree.left_out) == (MAX_LEAVES, True)
    (one,) = tree_of({"x" * 5000: "\u202ey" * 5_000_000}).branches
    assert len(one.key) < MAX_VALUE
    assert len(one.text) == MAX_VALUE
    assert "\u202e" not in one.text
    deep: dict[str, Json] = {"end": 1}
    for _ in range(40):
        deep = {"d": deep}
    assert tree_of(deep).shown == 1
