"""Paths of the files that localpuppet ships for other programs.

In a clone, `enc.sh`, `default.pp` and the Puppet modules are at the top of the repository (`enc/`,
`manifests/`, `modules/localpuppet/`). The build of a wheel copies them into this package
(setup.py).
"""

from pathlib import Path

_HERE = Path(__file__).parent
_CLONE = _HERE.parents[2]


def shared_file(name: str) -> Path:
    """Return the path of a shipped file: `enc/enc.sh`, `routes.yaml`, `units/…`."""
    packaged = _HERE / name
    return packaged if packaged.exists() else _CLONE / name
