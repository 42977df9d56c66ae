"""People who sign tags: OpenSSH and OpenPGP keys, and tags with exactly the bytes asked for."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.forge import Repo

TAGGED_AT = 1795176000


@dataclass
class Signing:
    """A home with keys; its GnuPG keyring is the one that git would use by itself."""

    home: Path  # the home directory of the signer and of the verifier

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C"}

    def run(self, *command: str | Path, stdin: bytes = b"") -> bytes:
        done = subprocess.run(
            list(map(str, command)),
            input=stdin,
            capture_output=True,
            check=False,
            env=self.env,
            cwd=self.home,
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def ssh_key(self, name: str) -> None:
        """Make an OpenSSH key."""
        self.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", name)

    def ssh_signers(self, *names: str, called: Mapping[str, str] | None = None) -> Path:
        """Return an allowed-signers file with keys."""
        file = self.home / f"{'-'.join(names)}.allowed_signers"
        principals = {name: f"{name}@example.net" for name in names} | dict(called or {})
        keys = {name: (self.home / f"{name}.pub").read_text() for name in names}
        file.write_text("".join(f"{principals[name]} {key}" for name, key in keys.items()))
        return file

    def ssh_sign(self, name: str, payload: bytes) -> bytes:
        return self.run("ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", name, stdin=payload)

    def pgp_key(self, name: str, *, called: str = "") -> None:
        """Make an OpenPGP key in the keyring of the home, of NAME@example.net or so called."""
        generate = ["gpg", "--batch", "--passphrase", "", "--quick-generate-key"]
        self.run(*generate, called or f"{name}@example.net", "ed25519", "sign", "0")

    def pgp_signers(self, *names: str) -> Path:
        """Return a file with public keys."""
        file = self.home / f"{'-'.join(names)}.asc"
        exported = [f"<{name}@example.net>" for name in names]
        file.write_bytes(self.run("gpg", "--armor", "--export", *exported))
        return file

    def pgp_sign(self, name: str, payload: bytes) -> bytes:
        sign = ["gpg", "--batch", "--armor", "--detach-sign", "--local-user"]
        return self.run(*sign, f"<{name}@example.net>", stdin=payload)

    def close(self) -> None:
        """End the agent that gpg has started."""
        self.run("gpgconf", "--kill", "gpg-agent")


def payload(repo: Repo, tag: str, message: str, *, at: int = TAGGED_AT) -> bytes:
    """Return the bytes of a tag object of HEAD before its signature."""
    commit = repo.git("rev-parse", "HEAD")
    tagger = f"tagger Release <release@example.net> {at} +0000"
    return f"object {commit}\ntype commit\ntag {tag}\n{tagger}\n\n{message}\n".encode()


def put_tag(repo: Repo, tag: str, body: bytes) -> str:
    """Make a tag object of these bytes, and the ref; return its id."""
    name = put_object(repo, body)
    repo.git("update-ref", f"refs/tags/{tag}", name)
    return name


def put_object(repo: Repo, body: bytes) -> str:
    """Make a tag object of these bytes; return its id."""
    done = subprocess.run(
        ["git", "hash-object", "-t", "tag", "-w", "--stdin"],
        cwd=repo.path,
        input=body,
        capture_output=True,
        check=True,
    )
    return done.stdout.decode().strip()


def sign_tag(repo: Repo, tag: str, signing: Signing, *, key: str = "ssh", message: str = "") -> str:
    """Make (or move) a tag of HEAD that an OpenSSH key has signed; return its id.

    Without a message, the tag is for the source with the name of the repository.
    """
    named = f"release {tag}\n\nLocalpuppet-Source: {repo.path.name}"
    text = payload(repo, tag, message or named)
    return put_tag(repo, tag, text + signing.ssh_sign(key, text))


def endorsement(
    repo: Repo, tag: str, *, of: str = "", name: str = "", source: str = "", kind: str = "tag"
) -> bytes:
    """Return the bytes of a countersignature before its signature; each part can be a lie."""
    tag_object = of or repo.git("rev-parse", f"refs/tags/{tag}")
    tagger = f"tagger Other <other@example.net> {TAGGED_AT} +0000"
    text = f"signs {tag}\n\nLocalpuppet-Source: {source or repo.path.name}"
    head = f"object {tag_object}\ntype {kind}\ntag {name or f'signatures/{tag}'}\n{tagger}"
    return f"{head}\n\n{text}\n".encode()


def countersign(repo: Repo, tag: str, signing: Signing, key: str, **lies: str) -> str:
    """Put a countersignature of a tag beside it; return its id."""
    text = endorsement(repo, tag, **lies)
    return put_countersignature(repo, tag, text + signing.ssh_sign(key, text))


def put_countersignature(repo: Repo, tag: str, body: bytes) -> str:
    """Make a countersignature of these bytes, and its ref; return its id."""
    name = put_object(repo, body)
    repo.git("update-ref", f"refs/signatures/{tag}/{name}", name)
    return name
