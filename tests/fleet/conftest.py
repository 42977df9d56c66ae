"""Engines of the bus and fleets of real agents, for the tests of the fleet."""

from tests.rigs.engine_fixtures import engine, lossy, served
from tests.rigs.fleet_fixtures import any_fleet, fleet, lent_fleet, nats_fleet, served_fleet, split

__all__ = [
    "any_fleet",
    "engine",
    "fleet",
    "lent_fleet",
    "lossy",
    "nats_fleet",
    "served",
    "served_fleet",
    "split",
]
