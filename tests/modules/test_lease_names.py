"""Names of leases: Puppet accepts the same names as the agent, and refuses others itself."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.bus.layout import parse_lease_name
from tests.rigs.bench import Bench

GOOD = ["db", "_x", "9", "a.b-c_D", "x" * 100]
BAD = ["a@b", "a:b", "-x", ".x", "x" * 101]


def test_puppet_and_agent_accept_the_same_names(bench: Bench) -> None:
    agent = bench.listen()
    for name in GOOD:
        assert parse_lease_name(name) == name
    done = bench.apply(
        "\n".join(f"leader('{name}')\ncluster_lock {{ '{name}': }}" for name in GOOD)
    )
    assert done.code == 0, done.text
    assert {question["name"] for question in agent.asked("lock")} == set(GOOD)
    assert {question["name"] for question in agent.asked("leader")} == set(GOOD)


@pytest.mark.parametrize("name", BAD)
def test_puppet_and_agent_refuse_the_same_names(bench: Bench, name: str) -> None:
    agent = bench.listen()
    with pytest.raises(InvalidInputError):
        parse_lease_name(name)
    for code in (f"leader('{name}')", f"cluster_lock {{ '{name}': }}"):
        assert bench.apply(code).code == 1
    assert agent.questions == []
