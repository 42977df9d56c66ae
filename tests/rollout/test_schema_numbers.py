"""Every reader of a rollout's messages names a message with another schema number, or with none."""

import json
import zlib
from collections.abc import Callable

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.rollout.checkpoints import RolloutCheckpoint
from localpuppet.rollout.commands import SignedCommand


@pytest.mark.parametrize(
    "read",
    [
        SignedCommand.parse,
        lambda data: RolloutCheckpoint.parse(zlib.compress(data), caller="choria=alice"),
    ],
)
def test_a_message_with_another_number_is_named(read: Callable[[bytes], object]) -> None:
    for number, problem in [
        ({"schema": 2}, "has schema 2; this version reads 1"),
        ({"schema": "1"}, "has no schema number; this version reads 1"),
        ({}, "has no schema number; this version reads 1"),
    ]:
        with pytest.raises(InvalidInputError, match=problem):
            read(json.dumps(number).encode())
    with pytest.raises(InvalidInputError) as other:
        read(b'{"schema": 1}')
    assert "schema" not in str(other.value)
