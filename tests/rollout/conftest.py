"""A fleet of real agents, for the tests of rollouts."""

from tests.rigs.fleet_fixtures import fleet

__all__ = ["fleet"]
