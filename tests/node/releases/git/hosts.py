"""Hosts of repositories for the contract of `Repository`: real git, and one in memory."""

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.git.program import GitProgram
from tests.doubles.repository import FakeRepository, FakeServers
from tests.rigs.forge import Forge

FILES = {
    "manifest.yaml": b"modulepath: []\n",
    "web/manifests/init.pp": b"class web {}\n",
    "files/bytes": bytes(range(256)),
    "files/dos.txt": b"one\r\ntwo\r\n",
    "files/empty": b"",
}
COMMITTED = 1_795_176_000  # 2026-11-20T12:00:00Z


class Host(ABC):
    """Repositories, and machines with mirrors of them."""

    @abstractmethod
    def url(self, name: str) -> str:
        """Return the URL of a repository."""

    @abstractmethod
    def publish(
        self,
        name: str,
        tag: str,
        files: Mapping[str, bytes] = FILES,
        *,
        annotated: bool = True,
        signer: str = "",
    ) -> None:
        """Commit files and tag the commit; an existing tag moves."""

    @abstractmethod
    def countersign(self, name: str, tag: str, signer: str) -> None:
        """Add a signature to a published tag, beside the one of its maker."""

    @abstractmethod
    def go_away(self, name: str) -> None:
        """Make a repository unreachable."""

    @abstractmethod
    def signers(self, *names: str) -> Path:
        """Return a file with the public keys of signers."""

    @abstractmethod
    def machine(self) -> Git:
        """Return the empty mirror of a new machine."""


class GitHost(Host):
    """Git repositories on disk."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._forge = Forge(root / "forge")
        self._machines = 0

    def url(self, name: str) -> str:
        return f"file://{self._forge.path / name}"

    def publish(
        self,
        name: str,
        tag: str,
        files: Mapping[str, bytes] = FILES,
        *,
        annotated: bool = True,
        signer: str = "",
    ) -> None:
        repo = self._forge.repo(name)
        for path in repo.path.iterdir():
            if path.name != ".git":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for file, data in files.items():
            (repo.path / file).parent.mkdir(parents=True, exist_ok=True)
            (repo.path / file).write_bytes(data)
        repo.commit({})
        key = ["-c", "gpg.format=ssh", "-c", f"user.signingkey={self._key(signer)}"]
        if signer:
            repo.git(*key, "tag", "-f", "-s", "-m", tag, tag)
        elif annotated:
            repo.git("tag", "-f", "-a", "-m", tag, tag)
        else:
            repo.git("tag", "-f", tag)

    def countersign(self, name: str, tag: str, signer: str) -> None:
        repo = self._forge.repo(name)
        key = ["-c", "gpg.format=ssh", "-c", f"user.signingkey={self._key(signer)}"]
        text = f"signs\n\nLocalpuppet-Source: {name}"
        repo.git(*key, "tag", "-f", "-s", "-m", text, f"signatures/{tag}", f"refs/tags/{tag}")
        made = repo.git("rev-parse", f"refs/tags/signatures/{tag}")
        repo.git("update-ref", f"refs/signatures/{tag}/{made}", made)

    def _key(self, name: str) -> Path:
        key = self._root / f"key-{name}"
        if name and not key.exists():
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)]
            subprocess.run(words, check=True)
        return key

    def go_away(self, name: str) -> None:
        shutil.rmtree(self._forge.path / name)

    def signers(self, *names: str) -> Path:
        public = {name: self._key(name).with_suffix(".pub").read_text() for name in names}
        file = self._root / f"signers-{'-'.join(names)}"
        file.write_text("".join(f"{name} {key}" for name, key in public.items()))
        return file

    def machine(self) -> Git:
        self._machines += 1
        return Git(
            self._root / f"mirrors-{self._machines}",
            GitProgram(
                env={"PATH": os.environ["PATH"], "HOME": str(self._root)},
                allow_file=True,
                timeout=60,
            ),
        )


class MemoryHost(Host):
    """The double of `tests.doubles.repository`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._servers = FakeServers()

    def url(self, name: str) -> str:
        return f"https://git.example.net/{name}.git"

    def publish(
        self,
        name: str,
        tag: str,
        files: Mapping[str, bytes] = FILES,
        *,
        annotated: bool = True,
        signer: str = "",
    ) -> None:
        self._servers.publish(
            self.url(name), tag, files, annotated=annotated, signer=signer, time=COMMITTED
        )

    def countersign(self, name: str, tag: str, signer: str) -> None:
        self._servers.countersign(self.url(name), tag, signer)

    def go_away(self, name: str) -> None:
        self._servers.away.add(self.url(name))

    def signers(self, *names: str) -> Path:
        file = self._root / f"signers-{'-'.join(names)}"
        file.write_text(" ".join(names))
        return file

    def machine(self) -> FakeRepository:
        return FakeRepository(self._servers)
