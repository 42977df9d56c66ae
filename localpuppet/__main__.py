"""The console script, also as `python -m localpuppet`: load the program with the collector off.

Imports allocate much and leave almost no garbage: collections meanwhile took 3 ms of `status`.
`CommandGroup` enables the collector when it has imported the command.
"""

import gc

gc.disable()

from localpuppet.main import main  # noqa: E402 - this import is what the collector would slow down

if __name__ == "__main__":
    raise SystemExit(main())
