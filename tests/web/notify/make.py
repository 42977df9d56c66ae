"""Builders: a notifier over a site of played nodes."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localpuppet.node.releases.release_records import StagedRelease
from localpuppet.web.dashboard.inventory_questions import Inventory
from localpuppet.web.notify.notice_ledger import NoticeLedger
from localpuppet.web.notify.notifier import Election, FleetSight, Notifier
from localpuppet.web.notify.routing import ChannelSettings, ChannelType, NotifySettings
from tests.web.make import Site
from tests.web.notify.receivers import SECRET, secret_file

FOR, CLEAR = 60.0, 120.0


def a_webhook(directory: Path, url: str, *, name: str = "url", **more: Any) -> ChannelSettings:
    """Return a webhook whose URL is in the file `name`."""
    return ChannelSettings(
        type=ChannelType.WEBHOOK,
        url_file=secret_file(directory, name, f"{url}\n"),
        secret_file=secret_file(directory, "secret", f"{SECRET}\n"),
        **more,
    )


def settings_of(**channels: ChannelSettings) -> NotifySettings:
    return NotifySettings(
        fleet="production",
        dashboard="https://fleet.example.com",
        lasts=FOR,
        gone=CLEAR,
        channels=channels,
    )


class Watch:
    """A notifier that a test lets look."""

    def __init__(
        self,
        site: Site,
        channels: Mapping[str, ChannelSettings],
        *,
        election: Election | None = None,
        directory: Path | None = None,
        releases: Sequence[StagedRelease] = (),
    ) -> None:
        self.site = site
        self.settings = settings_of(**channels)
        self.rollouts: list[Any] = []
        self.certificates: dict[str, float] = {}
        where = directory or site.directory
        self.ledger = NoticeLedger(
            where / "web" / "notify.sqlite", "production", self.settings.dashboard, lambda: 1.0
        )
        self.metrics = where / "metrics.prom"
        self.notifier = Notifier(
            self.settings,
            FleetSight(
                fleet=site.fleet,
                memory=site.memory,
                rollouts=lambda: self.rollouts,
                certificates=lambda: self.certificates,
                names=Inventory(site.view, site.ask).names,
                releases=lambda _: releases,
            ),
            self.ledger,
            election,
            root=where,
            metrics=self.metrics,
            clock=site.clock,
            log=site.log,
        )

    async def look(self, *pauses: float) -> None:
        """Look once after each pause; at once without one."""
        for pause in pauses or (0.0,):
            self.site.clock.advance(pause)
            await self.notifier.look()
            await self.notifier.settled()

    def looks(self, *pauses: float) -> None:
        """Look outside of a loop."""
        asyncio.run(self.look(*pauses))
