"""Servers and fleets of real agents, for tests of several packages."""

from tests.rigs.engine_fixtures import served
from tests.rigs.fleet_fixtures import (
    any_fleet,
    fleet,
    lent_fleet,
    nats_fleet,
    quorum_fleet,
    served_fleet,
    split,
)

__all__ = [
    "any_fleet",
    "fleet",
    "lent_fleet",
    "nats_fleet",
    "quorum_fleet",
    "served",
    "served_fleet",
    "split",
]
