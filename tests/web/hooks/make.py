"""Builders: a repository into which signed releases are pushed."""

from pathlib import Path
from typing import Any

from tests.rigs.forge import Forge, Repo
from tests.rigs.signing import Signing, payload, put_tag


class ReleaseRepository:
    """The repository `web`, and the keys of its signers."""

    def __init__(self, directory: Path, *keys: str) -> None:
        self.signing = Signing(directory)
        for name in keys:
            self.signing.ssh_key(name)
        self.repo: Repo = Forge(directory / "forge").repo("web")
        signers = str(self.signing.ssh_signers(*keys))
        self.source: dict[str, Any] = {
            "git": self.repo.url,
            "require_signed": True,
            "signers": signers,
        }

    def push(
        self,
        tag: str,
        at: int,
        *,
        manifest: str = "modulepath: []\n",
        source: str = "web",
        signed: bool = True,
    ) -> None:
        """Push a release whose tag has a time in seconds, for a source."""
        self.repo.commit(
            {
                "manifest.yaml": manifest,
                "manifest.lock": "version: 1\nmodules: {}\nsources: {}\n",
                "web/manifests/init.pp": f"class web {{ notify {{ '{tag}': }} }}\n",
            }
        )
        text = payload(self.repo, tag, f"release {tag}\n\nLocalpuppet-Source: {source}", at=at)
        put_tag(self.repo, tag, text + (self.signing.ssh_sign("ssh", text) if signed else b""))
