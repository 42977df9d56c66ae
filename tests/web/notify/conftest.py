"""A fleet of played nodes, a receiver, and a notifier whose webhook it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.web.dashboard.fleet import FleetLimits
from tests.web.make import Site
from tests.web.notify.make import Watch, a_webhook
from tests.web.notify.receivers import Receiver


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, limits=FleetLimits(together=2000))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        yield found


@pytest.fixture
def watch(site: Site, receiver: Receiver) -> Watch:
    return Watch(site, {"hook": a_webhook(site.directory, receiver.url)})
