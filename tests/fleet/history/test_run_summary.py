"""Limits of a run summary."""

from random import Random

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.bus.bus_limits import MAX_PACKED_SUMMARY
from localpuppet.fleet.history.run_summary import packed_size
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.runs.run import Outcome
from tests.fleet.make import a_resource, a_summary, noon


def test_a_summary_lists_a_hundred_resources_those_that_failed_first() -> None:
    skipped = [a_resource(n, status=ResourceResult.SKIPPED) for n in range(150)]
    changed = [a_resource(n) for n in range(20)]
    corrective = [a_resource(n, corrective_change=True) for n in range(3)]
    failed = [a_resource(n, status=ResourceResult.FAILED) for n in range(2)]

    found = a_summary(noon(), outcome=Outcome.FAILED).within_limits(
        [*skipped, *changed, *corrective, *failed]
    )

    assert found.resources == (*failed, *corrective, *changed, *skipped[:75])
    assert found.more == 75


def test_a_summary_of_long_titles_lists_fewer_resources() -> None:
    random = Random(26)  # noqa: S311 # the same titles each time
    long = [a_resource(1, title=f"/{random.randbytes(75).hex()}") for _ in range(100)]

    found = a_summary(noon()).within_limits(long)

    assert packed_size(found) <= MAX_PACKED_SUMMARY
    assert 50 < len(found.resources) < 100
    assert len(found.resources) + found.more == 100


def test_a_summary_without_a_limit_cannot_be_made() -> None:
    with pytest.raises(InvalidInputError, match="100 resources"):
        a_summary(noon(), resources=tuple(map(a_resource, range(101))))
    with pytest.raises(InvalidInputError, match="no summary"):
        a_resource(1, status=ResourceResult.UNCHANGED)
