"""A fleet of real agents, for the tests of the history checker."""

from tests.rigs.fleet_fixtures import fleet

__all__ = ["fleet"]
