"""Where the files are that we hand to other programs.

`enc.sh`, `default.pp` and our Puppet modules live at the top of the repository (`enc/`,
`manifests/`, `modules/localpuppet/`); a wheel gets a copy of them in this room when it is built
(setup.py), and a clone uses them where they are.
"""

from pathlib import Path

_HERE = Path(__file__).parent
_CLONE = _HERE.parents[2]


def shared_file(name: str) -> Path:
    """Return the file `name`: `enc/enc.sh`, `manifests/default.pp`, `routes.yaml`, `units/…`."""
    packaged = _HERE / name
    return packaged if packaged.exists() else _CLONE / name
