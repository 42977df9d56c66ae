"""What Puppet finds in its environment: the caller's, and how Ruby starts.

Owns: the tuning of Ruby and how it is handed over. Nothing is executed here; what each part is
worth stands in docs/performance.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_GC = {
    "RUBY_GC_HEAP_INIT_SLOTS": "600000",
    "RUBY_GC_MALLOC_LIMIT": "134217728",
    "RUBY_GC_MALLOC_LIMIT_MAX": "268435456",
    "RUBY_GC_OLDMALLOC_LIMIT": "268435456",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FacterConf:
    """A configuration of Facter's in the place of the machine's.

    Attributes:
        file: The facter.conf.
        cache: The directory in which Facter keeps the facts that the file has it remember.
    """

    file: Path
    cache: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanStart:
    """How Ruby starts for Puppet.

    Attributes:
        flags: For Ruby; empty where the interpreter does not honour RUBYOPT.
        file: What Ruby loads first.
        compiled: The directory of compiled Ruby; `None` to have all of it read.
        facter: How Facter is configured; `None` for as the machine has it.
        then: What Ruby loads after that; `None` for nothing.
    """

    flags: Sequence[str]
    file: Path
    compiled: Path | None = None
    facter: FacterConf | None = None
    then: Path | None = None


def utf8(base: Mapping[str, str]) -> dict[str, str]:
    """Return what makes Puppet read and write UTF-8 where the caller (cron, say) says C."""
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

    The file of the lean start is loaded first and takes the tuning out again, so that Puppet's own
    children see what the caller had.

    Args:
        base: The caller's.
        lean: How Ruby starts.
        more: What Puppet and its children are to see besides.
        lock: The descriptor that Puppet inherits and its children do not: the lean start sets
            close-on-exec.
    """
    env = {**base, **more, **utf8(base)}
    if not lean.flags or any(character.isspace() for character in str(lean.file)):
        return env
    ours = {name: value for name, value in _GC.items() if name not in base}
    options = [*lean.flags, f"-r{lean.file}"]
    if lean.then is not None:
        options.append(f"-r{lean.then}")
    if "RUBYOPT" in base:
        options.append(base["RUBYOPT"])
        ours["LOCALPUPPET_RUBYOPT"] = base["RUBYOPT"]
    if "LC_ALL" in utf8(base):
        ours["LOCALPUPPET_LC_ALL"] = base.get("LC_ALL", "")
    if lock is not None:
        ours["LOCALPUPPET_LOCK"] = str(lock)
    if lean.compiled is not None:
        ours["LOCALPUPPET_COMPILED"] = str(lean.compiled)
    if lean.facter is not None:
        ours["LOCALPUPPET_FACTER_CONF"] = str(lean.facter.file)
        ours["LOCALPUPPET_FACTER_CACHE"] = str(lean.facter.cache)
    env.update(ours)
    env["RUBYOPT"] = " ".join(options)
    env["LOCALPUPPET_UNSET"] = " ".join(ours)
    return env
