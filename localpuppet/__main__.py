"""The console script, also as `python -m localpuppet`: load the program with the collector off.

Imports allocate much and leave almost no garbage: collections meanwhile took 3 ms of `status`.
`CommandGroup` enables the collector when it has imported the command.

What libraries import, but few commands use, is loaded when it is used: that saves another 9 ms.
"""

import gc
import os
import sys
from threading import RLock
from types import ModuleType

gc.disable()

_LOADING = RLock()


class _LateModule(ModuleType):
    """A module that is loaded when it is first used, also by two threads at once.

    `importlib.util.LazyLoader` shows a second thread a module without its names before Python 3.12.
    """

    def __getattr__(self, name: str) -> object:
        with _LOADING:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
                vars(self).update(vars(__import__(self.__name__)))
        return super().__getattribute__(name)


for _name in ("csv", "inspect", "ipaddress", "platform", "tokenize"):
    sys.modules.setdefault(_name, _LateModule(_name))
# All that `uuid`, which click imports, uses of it.
vars(sys.modules["platform"]).setdefault("system", lambda: os.uname().sysname)

from localpuppet.main import main  # noqa: E402 - this import is what all of the above makes faster

if __name__ == "__main__":
    raise SystemExit(main())
