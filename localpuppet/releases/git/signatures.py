"""Signatures of tags, held against pinned keys.

Owns: who may have signed (an OpenSSH allowed-signers file, or OpenPGP keys in a home of their own).
Refuses to know: where a tag came from.
"""

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from localpuppet.errors import IntegrityError
from localpuppet.formats.text import one_line
from localpuppet.machine.anchors import read_anchor
from localpuppet.releases.git.program import GitProgram


def verify(
    program: GitProgram, mirror: Path, tag_object: str, *, signers: Path, where: str
) -> None:
    """Hold the signature of a tag object against pinned keys.

    Raises:
        IntegrityError: It is unsigned, or signed by nobody in `signers`.
        InvalidInputError: The file of keys is refused.
    """
    body = program.run(mirror, "cat-file", "tag", tag_object)
    openpgp = b"BEGIN PGP PUBLIC KEY" in read_anchor(signers)
    if openpgp:
        with tempfile.TemporaryDirectory(prefix="localpuppet-gpg-") as home:
            _import_keys(program, Path(home), signers)
            # Keys in a home of their own: who is in it is trusted, nobody else.
            config = ["-c", "gpg.minTrustLevel=undefined"]
            _verify(program, mirror, tag_object, where, {"GNUPGHOME": home}, config)
    elif b"BEGIN SSH SIGNATURE" in body:
        config = ["-c", "gpg.format=ssh", "-c", f"gpg.ssh.allowedSignersFile={signers}"]
        _verify(program, mirror, tag_object, where, {}, config)
    else:
        raise IntegrityError("has no signature by a trusted key", where=where)


def _import_keys(program: GitProgram, home: Path, keys: Path) -> None:
    done = subprocess.run(
        ["gpg", "--batch", "--quiet", "--homedir", home, "--import", "--", keys],  # noqa: S607
        env=program.env,
        capture_output=True,
        timeout=program.timeout,
        check=False,
    )
    if done.returncode != 0:
        said = one_line(done.stderr.decode("utf-8", "replace").strip())[-200:]
        raise IntegrityError(f"the keys cannot be read: {said}", where=str(keys))


def _verify(
    program: GitProgram,
    mirror: Path,
    tag_object: str,
    where: str,
    env: Mapping[str, str],
    config: list[str],
) -> None:
    done = program.start(mirror, *config, "verify-tag", "--raw", tag_object, env=env)
    if done.returncode != 0:
        raise IntegrityError(
            "has no valid signature by a trusted key",
            where=where,
            hint="check the source's pinned keys; do not use the release meanwhile",
        )
