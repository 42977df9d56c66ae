"""Generate a script with the users and roles of an etcd cluster that isolate the bus's members.

The name of a member's role has a digest of its rights, so the script detects changes by names
alone. It grants the new role before it deletes the old one. It can be interrupted and run again at
any time.
"""

import hashlib
import shlex
from collections.abc import Sequence

from localpuppet.fleet.bus.layout import STORE
from localpuppet.fleet.bus.roster import Grant, Member

_HEAD = """\
set -eu
export ETCDCTL_API=3

# Output that is only there for people.
quietly() {
    "$@" >/dev/null
}

# among WORD LIST: whether a list of words has it.
among() {
    case " $2 " in
    *" $1 "*) return 0 ;;
    esac
    return 1
}

words() {
    tr '\\n' ' '
}

# member USER ROLE: what follows until the next `given` is what the role allows.
member() {
    user=$1
    role=$2
    members="$members $user"
    wanted="$wanted $role"
    among "$user" "$users" || quietly etcdctl user add "$user" --no-password
    has=$(etcdctl user get "$user" | sed -n 's/^Roles: *//p' | words)
    among "$role" "$has" || among "$role" "$roles" || quietly etcdctl role add "$role"
}

may() {
    among "$role" "$has" || quietly etcdctl role grant-permission "$role" "$@"
}

# The role is whole now.
given() {
    among "$role" "$has" || quietly etcdctl user grant-role "$user" "$role"
}

# When the store began: a member must not change that.
among STORE "$(etcdctl get STORE --keys-only | words)" || quietly etcdctl put STORE "$(date +%s)"

users=$(etcdctl user list | words)
roles=$(etcdctl role list | words)
members=''
wanted=''
among root "$users" || quietly etcdctl user add root --no-password
among root "$roles" || quietly etcdctl role add root
quietly etcdctl user grant-role root root
"""

_TAIL = """
# What is not wanted any more: roles of an earlier run, and users that are not in the file.
for role in $roles; do
    case $role in
    localpuppet.*)
        among "$role" "$wanted" && continue
        quietly etcdctl role delete "$role"
        user=${role#localpuppet.}
        user=${user%.*}
        if among "$user" "$users" && ! among "$user" "$members"; then
            quietly etcdctl user delete "$user"
        fi
        ;;
    esac
done
quietly etcdctl auth enable
"""


def script(members: Sequence[Member]) -> str:
    """Return a POSIX shell script that creates users and roles and enables authentication.

    Args:
        members: The nodes and people.
    """
    return _HEAD.replace("STORE", STORE) + "".join(_member(member) for member in members) + _TAIL


def _member(member: Member) -> str:
    rights = "".join(f"may {_right(grant)}\n" for grant in member.grants)
    digest = hashlib.sha256(rights.encode()).hexdigest()[:16]
    name = shlex.quote(member.name)
    return f"\nmember {name} {shlex.quote(f'localpuppet.{member.name}.{digest}')}\n{rights}given\n"


def _right(grant: Grant) -> str:
    option = "--prefix " if grant.prefix else ""
    return f"{option}{'write' if grant.write else 'read'} {shlex.quote(grant.key)}"
