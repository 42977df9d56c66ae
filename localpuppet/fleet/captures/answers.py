"""`answers.jsonl` of a run: the agent's answers to the run's catalog, until its capture is stored.

- Each line is a call: `function`, `arguments`, `answer`. If it repeats, its last answer counts.
- An answer above a limit is not kept. A preview then reports that the capture has no answer.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.formats.json_text import compact, members
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import disk_errors, remove
from localpuppet.node.preview.capture import MAX_QUERIES
from localpuppet.node.preview.ports import CapturedQuery
from localpuppet.node.runs.records import RunDirectory

MAX_ANSWER = 1024 * 1024
MAX_ANSWERS = 4 * 1024 * 1024


def note_answer(
    run: RunDirectory,
    function: str,
    arguments: Sequence[Json],
    answer: object,
    *,
    limit: int = MAX_ANSWERS,
) -> None:
    """Add an answer to the record of a run.

    Args:
        run: The run.
        function: The function; see `CapturedQuery`.
        arguments: Its arguments.
        answer: The answer; a `JsonText` is written unchanged.
        limit: Bytes of all answers.
    """
    call = {"function": function, "arguments": list(arguments), "answer": answer}
    line = members(call, end="\n").encode()
    path = _file(run)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with disk_errors(path), os.fdopen(os.open(path, flags, 0o600), "ab") as file:
        # One write: the agent and a command may both answer.
        if len(line) <= MAX_ANSWER and file.tell() + len(line) <= limit:
            file.write(line)


def read_answers(run: RunDirectory) -> tuple[CapturedQuery, ...]:
    """Return the answers that a run got; raise `StateError` if the file is damaged."""
    path = _file(run)
    if not path.exists():
        return ()
    answers: dict[str, CapturedQuery] = {}
    try:
        with disk_errors(path):
            lines = path.read_bytes().splitlines()
        for raw in map(loads, lines):
            query = CapturedQuery(
                function=raw["function"],
                arguments=tuple(raw["arguments"]),
                answer=raw["answer"],
            )
            answers[compact([query.function, query.arguments])] = query
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"is damaged: {error}", where=str(path)) from error
    return tuple(answers.values())[:MAX_QUERIES]


def remove_answers(run: RunDirectory) -> None:
    """Remove the answers: the capture has them, or the run failed."""
    if (path := _file(run)).exists():
        remove(path)


def _file(run: RunDirectory) -> Path:
    return run.path / "answers.jsonl"
