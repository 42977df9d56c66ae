"""Commands to rollouts in the audit."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from localpuppet.base.formats.times import parse_time, show_time
from localpuppet.rollout.commands import RolloutCommand, SentCommand, meaning
from localpuppet.rollout.events import RolloutEnding, RolloutResumed
from localpuppet.rollout.journal import Journals
from tests.rollout.make import ID, began, rollout_over
from tests.web.make import Site


def test_each_command_to_a_rollout_is_a_row_of_the_audit_with_its_operator(tmp_path: Path) -> None:
    site, at = Site(tmp_path), iter(range(60))
    start = parse_time("2026-11-20T13:00:00Z")

    def now() -> str:
        return show_time(start + timedelta(minutes=next(at)))

    journal = Journals(tmp_path / "rollouts").begin(replace(began(), id=ID), at=now())
    for command, caller in (
        (RolloutCommand.PAUSE, "choria=bob"),
        (RolloutCommand.CONTINUE, "choria=alice"),
        (RolloutCommand.PAUSE, "choria=bob"),
        (RolloutCommand.STOP, "choria=carol"),
    ):
        sent = SentCommand(command=command, caller=caller, machine="laptop")
        journal.append(meaning(sent, journal.state()), at=now())
    journal.append(rollout_over(RolloutEnding.STOPPED), at=now())
    journal.append(RolloutResumed(caller="choria=bob", machine="pc"), at=now())
    journal.close()
    with site.visitor() as visitor:

        def rows(query: str) -> list[tuple[str, ...]]:
            page = visitor.get(f"/audit{query}").text
            shown = [re.sub(r"<[^>]*>", " ", row).split() for row in page.split("<tr>")[2:]]
            return [tuple(row[2:6]) for row in shown]

        stop = ("choria=carol", "on", "laptop", "Stop")
        pause = ("choria=bob", "on", "laptop", "Pause")
        resume = ("choria=bob", "on", "pc", "Resume")
        assert rows("") == [
            *(resume, stop, pause),
            ("choria=alice", "on", "laptop", "Continue"),
            pause,
        ]
        assert rows("?caller=choria%3Dbob") == [resume, pause, pause]
        assert rows("?action=stop") == [stop]
        assert rows("?rollouts=without+rollouts") == []
        lines = visitor.get("/audit.csv?action=stop").text.splitlines()[1:]
    assert len(lines) == 1
    assert "choria=carol,stop" in lines[0]
    assert f"rollout {ID}" in lines[0]
