"""hiera-eyaml, where this Debian has it."""

import shutil
import subprocess
from pathlib import Path

import pytest

NEEDS_EYAML = pytest.mark.skipif(
    not shutil.which("eyaml"), reason="this Debian does not have hiera-eyaml"
)
# A level of hiera.yaml; KEYS is a directory with keys of `eyaml createkeys`.
LEVEL = """  - name: secrets
    lookup_key: eyaml_lookup_key
    path: secrets.eyaml
    options: {pkcs7_private_key: KEYS/private.pem, pkcs7_public_key: KEYS/public.pem}
"""


def eyaml(keys: Path, *arguments: str) -> str:
    """Run eyaml with the keys of a directory."""
    named = [f"--pkcs7-{kind}-key={keys}/{kind}.pem" for kind in ("private", "public")]
    done = subprocess.run(
        ["eyaml", *arguments, *named], capture_output=True, text=True, check=True, cwd=keys
    )
    return done.stdout.strip()


def encrypted(keys: Path, text: str) -> str:
    """Make keys, and return a text as eyaml writes it."""
    eyaml(keys, "createkeys")
    return eyaml(keys, "encrypt", "-s", text, "-o", "string")
