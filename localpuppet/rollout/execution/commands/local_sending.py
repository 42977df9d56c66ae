"""Send a command to the controller of a rollout on this machine, through its journal.

    the command is in the journal -> the process reads it -> its event is in the journal

Write access to the journal is the only permission that this needs.
"""

import asyncio
from dataclasses import replace

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.rollout.execution.commands.command import SentCommand, meaning, refusal
from localpuppet.rollout.execution.events import Event, RolloutPaused
from localpuppet.rollout.execution.journal import JournalReader
from localpuppet.rollout.execution.state import RolloutState

# Seconds until a command counts as not received. A controller reads no commands while it asks and
# holds nodes at its start, which takes less.
PATIENCE = 60.0
PACE = 0.25  # seconds between two looks


def _is_meant(expected: Event, event: Event) -> bool:
    """Return whether an event is the expected one, apart from the time of a pause."""
    if isinstance(expected, RolloutPaused) and isinstance(event, RolloutPaused):
        return replace(event, since=expected.since) == expected
    return event == expected


async def send_here(journal: JournalReader, sent: SentCommand) -> None:
    """Send a command and wait until its event is in the journal.

    Raises:
        InvalidInputError: It is rejected, or another decision came first.
        UnavailableError: The process ended, or did not read the command in time.
    """
    before = [event for _, event in journal.events()]
    state = RolloutState.of(before)
    where = str(state.began.id)
    if problem := refusal(sent, state):
        raise InvalidInputError(problem, where=where)
    expected = meaning(sent, state)
    journal.say(sent.command, sent.caller, sent.about)
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                await asyncio.sleep(PACE)
                taken = journal.taken  # before the look: what it wrote before it ended counts
                events = [event for _, event in journal.events()]
                if any(_is_meant(expected, event) for event in events[len(before) :]):
                    return
                if problem := refusal(sent, RolloutState.of(events)):
                    raise InvalidInputError(problem, where=where)
                if not taken:
                    raise UnavailableError(
                        "its controller ended before it received the command",
                        where=where,
                        hint=f"run 'localpuppet rollout resume {where}'",
                    )
    except TimeoutError:
        raise UnavailableError(
            f"its controller did not receive the command within {PATIENCE:g} s, but still may",
            where=where,
            hint=f"see 'localpuppet rollout status {where}'",
        ) from None
