"""The environment variables of Puppet: the caller's, and how Ruby starts.

docs/contribute/benchmarks/runs.md has the effect of each part. Nothing is executed here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from localpuppet.base.value import Value

_GC = {
    "RUBY_GC_HEAP_INIT_SLOTS": "600000",
    "RUBY_GC_MALLOC_LIMIT": "134217728",
    "RUBY_GC_MALLOC_LIMIT_MAX": "268435456",
    "RUBY_GC_OLDMALLOC_LIMIT": "268435456",
}


class FacterConf(Value):
    """A configuration of Facter that replaces the machine's."""

    file: Path
    cache: Path


class LeanStart(Value):
    """How Ruby starts for Puppet.

    Attributes:
        flags: Flags for Ruby; empty if the interpreter ignores RUBYOPT.
        file: The file that Ruby loads first.
        compiled: The directory of compiled Ruby; `None` for none.
        records: Whether Ruby records there which files lacked compiled code.
        facter: Facter's configuration; `None` for the machine's.
        then: The file that Ruby loads next, or `None`.
    """

    flags: Sequence[str]
    file: Path
    compiled: Path | None = None
    records: bool = True
    facter: FacterConf | None = None
    then: Path | None = None


def utf8(base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make Puppet use UTF-8 if the caller (for example cron) sets C."""
    locale = base.get("LC_ALL") or base.get("LC_CTYPE") or base.get("LANG") or "C"
    return {"LC_ALL": "C.UTF-8"} if locale in ("C", "POSIX") else {}


def environment(
    base: Mapping[str, str],
    *,
    lean: LeanStart,
    more: Mapping[str, str],
    lock: int | None = None,
) -> dict[str, str]:
    """Return the environment for Puppet: the caller's, and a leaner start of Ruby.

    The lean start's file removes the tuning again, so that Puppet's children see the caller's
    environment.

    Args:
        more: More variables for Puppet and its children.
        lock: The descriptor that Puppet inherits and its children do not: the lean start sets
            close-on-exec.
    """
    env = {**base, **more, **utf8(base)}
    if not lean.flags or any(character.isspace() for character in str(lean.file)):
        return env
    added = {name: value for name, value in _GC.items() if name not in base}
    options = [*lean.flags, f"-r{lean.file}"]
    if lean.then is not None:
        options.append(f"-r{lean.then}")
    if "RUBYOPT" in base:
        options.append(base["RUBYOPT"])
        added["LOCALPUPPET_RUBYOPT"] = base["RUBYOPT"]
    if "LC_ALL" in utf8(base):
        added["LOCALPUPPET_LC_ALL"] = base.get("LC_ALL", "")
    if lock is not None:
        added["LOCALPUPPET_LOCK"] = str(lock)
    if lean.compiled is not None:
        added["LOCALPUPPET_COMPILED"] = str(lean.compiled)
        if not lean.records:
            added["LOCALPUPPET_READ_ONLY"] = "1"
    if lean.facter is not None:
        added["LOCALPUPPET_FACTER_CONF"] = str(lean.facter.file)
        added["LOCALPUPPET_FACTER_CACHE"] = str(lean.facter.cache)
    env.update(added)
    env["RUBYOPT"] = " ".join(options)
    env["LOCALPUPPET_UNSET"] = " ".join(added)
    return env
