"""The keys on the bus, and the names that they may have."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.bus import layout


@pytest.mark.parametrize("name", ["", "a/b", ".x", "-x", "a b", "x" * 101, "ä", "a\n"])
def test_names_of_leases(name: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a lease name"):
        layout.parse_lease_name(name)
