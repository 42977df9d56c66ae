"""Finds the newest DHCP lease of this machine among the files of its DHCP client."""

import os
import re
import stat
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from localpuppet.base.errors import errors_at
from localpuppet.base.machine.files import input_errors, read_user_file
from localpuppet.node.enc.instance.lease import DhcpLease, parse_lease

# dhclient's names, as distributions use them; systemd-networkd's, the interface number.
_NAME = re.compile(r"dhclient(?!6).*lease.*|[0-9]{1,9}")
MAX_FILES = 256


def newest_lease(directories: Sequence[Path], *, owners: Collection[int]) -> DhcpLease | None:
    """Return the lease in the newest file; `None` if there are no leases.

    Args:
        directories: The lease directories of DHCP clients; missing ones are skipped.
        owners: Users besides root whose files root accepts.

    Raises:
        InvalidInputError: A file is refused, or the lease in it.
    """
    for path in _files(directories):
        text = read_user_file(path, owners=owners).decode("utf-8", "replace")
        with errors_at(str(path)):
            lease = parse_lease(text)
        if lease is not None:
            return lease
    return None


def _files(directories: Sequence[Path]) -> list[Path]:
    """Return the lease files, the newest first."""
    dated: list[tuple[int, Path]] = []
    for directory in directories:
        with input_errors(directory), suppress(FileNotFoundError), os.scandir(directory) as entries:
            for entry in entries:
                status = entry.stat()
                if _NAME.fullmatch(entry.name) and stat.S_ISREG(status.st_mode):
                    dated.append((status.st_mtime_ns, Path(entry.path)))
    return [path for _, path in sorted(dated, reverse=True)[:MAX_FILES]]
