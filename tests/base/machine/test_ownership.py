"""Files that root trusts: localpuppet refuses a file that another user could write."""

import os
import pwd
import struct
import sys
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.files import refuse_foreign
from tests.rigs.node import REPOSITORY, completed

ALICE = pwd.getpwnam("daemon")  # has a private group
SHARED = pwd.getpwnam("sync")  # shares the group nogroup with other users
CHECK = "import sys; from pathlib import Path; from localpuppet.base.machine.files import *\n"
CHECK += "refuse_foreign(Path(sys.argv[1]))"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "input.yaml"
    file.write_text("app: web/tags/r1\n")
    file.chmod(0o664)
    return file


def refusal(
    file: Path, *, sudo: "pwd.struct_passwd | None" = None, accounts: dict[str, str] | None = None
) -> str:
    """Return why root, perhaps behind sudo and with lines in files of /etc, refuses a file."""
    mounts = []
    for name, line in (accounts or {}).items():
        changed = file.with_name(name)
        changed.write_text(line + Path("/etc", name).read_text())
        mounts.append(f"mount --bind {changed} /etc/{name} && ")
    env = {"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"]}
    if sudo is not None:
        env |= {"SUDO_UID": str(sudo.pw_uid), "SUDO_GID": str(sudo.pw_gid)}
    script = "".join(mounts) + 'exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", CHECK, str(file)]
    done = completed(*argv, check=False, env=env)
    return done.err.strip().rpartition("\n")[2] if done.code else ""


def test_a_private_group_may_write_where_its_only_member_may(file: Path) -> None:
    os.chown(file, ALICE.pw_uid, ALICE.pw_gid)
    assert refusal(file, sudo=ALICE) == ""
    assert "is writable by others" in refusal(file)
    os.chown(file, 0, ALICE.pw_gid)
    assert "is writable by others" in refusal(file)


def test_a_file_that_a_shared_group_may_write_is_refused(file: Path) -> None:
    os.chown(file, SHARED.pw_uid, SHARED.pw_gid)
    assert f"mode 0664, owner uid {SHARED.pw_uid}, gid 65534" in refusal(file, sudo=SHARED)
    file.chmod(0o644)
    assert refusal(file, sudo=SHARED) == ""


@pytest.mark.parametrize(
    ("name", "line"),
    [("group", "daemon:x:1:daemon,games\n"), ("passwd", "mallory:x:4711:1::/:/bin/sh\n")],
)
def test_a_private_group_with_a_second_member_is_refused(file: Path, name: str, line: str) -> None:
    os.chown(file, ALICE.pw_uid, ALICE.pw_gid)
    refused = refusal(file, sudo=ALICE, accounts={name: line})
    assert "is writable by others" in refused


@pytest.mark.parametrize(
    ("name", "line"), [("group", "root:x:0:games\n"), ("passwd", "operator:x:11:0::/:/bin/sh\n")]
)
def test_the_group_of_root_is_trusted_if_it_has_no_others(file: Path, name: str, line: str) -> None:
    assert refusal(file) == ""
    assert "is writable by others" in refusal(file, accounts={name: line})


def test_a_file_with_an_access_control_list_is_refused(file: Path) -> None:
    owner, named, group, mask, other = 1, 2, 4, 16, 32
    unused = 2**32 - 1
    lines = [(owner, 6, unused), (named, 6, 4711), (group, 4, unused), (mask, 6, unused)]
    packed = [struct.pack("<HHI", *line) for line in [*lines, (other, 4, unused)]]
    os.setxattr(file, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(packed))
    assert file.stat().st_mode & 0o777 == 0o664
    with pytest.raises(InvalidInputError, match=r"has an access control list.*setfacl -b"):
        refuse_foreign(file)
    file.chmod(0o644)  # removes the write permission of all users in the list
    refuse_foreign(file)
