"""Rollouts of this machine, as the dashboard learns of them."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from localpuppet.base.formats.names import RolloutId
from localpuppet.rollout.events import RolloutBegan, RolloutEnded, RolloutEnding
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.rollout_options import RolloutOptions
from localpuppet.web.dashboard.rollouts import Rollouts
from tests.web.dashboard.site import Site

ID = RolloutId.parse("20261122T110000Z-00aa")
AT = "2026-11-22T11:00:00.000000Z"


async def test_a_change_of_a_journal_is_reported(tmp_path: Path) -> None:
    journals, site = Journals(tmp_path), Site(tmp_path)
    leave, told = asyncio.Event(), asyncio.Event()
    rollouts = Rollouts(journals, site.elsewhere, site.memory)
    watching = asyncio.create_task(rollouts.watch(told.set, leave, interval=0.01))
    async with asyncio.timeout(60):
        await told.wait()
    told.clear()
    began = RolloutBegan(id=ID, caller="a", groups=(), options=RolloutOptions(), title="")
    journal = journals.begin(began, at=AT)
    async with asyncio.timeout(60):
        await told.wait()
    assert [row.state for row in rollouts.rows()] == ["running"]  # this process has it
    told.clear()
    journal.append(RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={}), at=AT)
    async with asyncio.timeout(60):
        await told.wait()
    assert [row.state for row in rollouts.rows()] == ["done"]
    leave.set()
    await watching
    journal.close()


@pytest.mark.parametrize("at", ["x", "", "2026-01-01", "9999-12-31T23:59:59-12:00"])
def test_a_damaged_time_hides_no_other_rollout(tmp_path: Path, at: str) -> None:
    site = Site(tmp_path)
    journals = Journals(tmp_path / "rollouts")
    other = RolloutId.parse("20261122T120000Z-00aa")
    for one in (ID, other):
        began = RolloutBegan(
            id=one, caller="a", groups=(), options=RolloutOptions(), title="\ud800"
        )
        journals.begin(began, at=AT).close()
    with sqlite3.connect(tmp_path / "rollouts" / f"{ID}.sqlite") as connection:
        connection.execute("UPDATE events SET at = ?", (at,))
    connection.close()
    with site.visitor() as visitor:
        for url in ("/rollouts", "/rollouts.csv", "/rollouts.json"):
            answer = visitor.get(url)
            assert (answer.status_code, other in answer.text) == (200, True)
            assert "damaged" in answer.text
        assert visitor.get(f"/rollouts/{ID}").status_code == 503
        assert visitor.get(f"/rollouts/{other}.json").json()["title"] == "\ud800"
