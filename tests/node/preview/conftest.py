"""Puppet in previews starts from the session's compiled Ruby."""

import pytest


@pytest.fixture(autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """Compile Ruby once for the engines of a session; see `rig.compiled_ruby`."""
    if request.node.get_closest_marker("puppet"):
        request.getfixturevalue("puppet_probe")
