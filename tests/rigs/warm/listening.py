"""Finds out whether a server listens on a local socket."""

import socket
from pathlib import Path


def is_listening(path: Path) -> bool:
    """Return whether a socket accepts connections: its name exists a moment before that."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True
