"""A fleet of real agents, with which the checker of histories is tried."""

from tests.rigs.fleet_fixtures import fleet

__all__ = ["fleet"]
