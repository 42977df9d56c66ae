"""What people say to the process that goes on with a rollout, from other terminals."""

from enum import StrEnum


class Word(StrEnum):
    """One of the things that can be said."""

    STOP = "stop"
    CONTINUE = "continue"
