"""Rows of what differs between two releases."""

from localpuppet.node.releases.comparison import NameDifference
from localpuppet.web.dashboard.differences import ChangeRow, changes


def test_each_thing_is_a_row_dependencies_before_files() -> None:
    found = changes(
        {
            "dependencies": NameDifference(added=(), removed=("b",), changed={"a": "v1 → v2"}),
            "files": NameDifference(added=("0",), removed=(), changed={}),
        }
    )
    assert found == [
        ChangeRow(of="dependencies", name="a", change="changed", how="v1 → v2"),
        ChangeRow(of="dependencies", name="b", change="removed"),
        ChangeRow(of="files", name="0", change="added"),
    ]
    assert changes({"files": NameDifference(added=(), removed=(), changed={})}) == []
