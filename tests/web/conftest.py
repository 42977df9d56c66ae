"""A fleet of real agents, for the tests of the dashboard."""

from tests.rigs.fleet_fixtures import nats_fleet

__all__ = ["nats_fleet"]
