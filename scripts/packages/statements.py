"""What stands beside each package: a list of its parts, and how it was built.

Formats: CycloneDX 1.6 (cyclonedx.org/docs/1.6/json) and an in-toto statement with SLSA's
provenance (slsa.dev/spec/v1.0/provenance). Neither has a time: two builds give the same bytes.
"""

import hashlib
import json
import subprocess
from pathlib import Path

from packaging.utils import canonicalize_name
from packing import Build
from payload import inside
from targets import HERE, Target

BUILD_TYPE = "https://github.com/localpuppet/localpuppet/blob/main/scripts/build"


def write(build: Build, target: Target, payload: Path, package: Path) -> None:
    """Write PACKAGE.cdx.json and PACKAGE.intoto.json beside a package."""
    _save(package, "cdx", _bill(build, target, payload, package))
    _save(package, "intoto", _provenance(build, target, package))


def _save(package: Path, kind: str, document: dict[str, object]) -> None:
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    package.with_name(f"{package.name}.{kind}.json").write_text(text)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bill(build: Build, target: Target, payload: Path, package: Path) -> dict[str, object]:
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{(name := canonicalize_name(found.name))}@{found.version}",
            "purl": f"pkg:pypi/{name}@{found.version}",
            "name": name,
            "version": found.version,
        }
        for found in inside(payload, target.payload)
        if canonicalize_name(found.name) != "localpuppet"
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": package.name,
                "name": "localpuppet",
                "version": build.version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "hashes": [{"alg": "SHA-256", "content": _sha256(package)}],
            }
        },
        "components": components,
        "dependencies": [
            {"ref": package.name, "dependsOn": [entry["bom-ref"] for entry in components]}
        ],
    }


def _provenance(build: Build, target: Target, package: Path) -> dict[str, object]:
    head = subprocess.run(
        ["git", "-C", HERE, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    locks = [
        "requirements.txt",
        *(["sqlite.txt"] if target.payload.own_sqlite else []),
        "tools.txt",
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": package.name, "digest": {"sha256": _sha256(package)}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "target": target.name,
                    "architecture": target.payload.architecture,
                },
                "resolvedDependencies": [
                    {"uri": "git+file:.", "digest": {"gitCommit": head}},
                    *(
                        {
                            "uri": f"file:scripts/packages/{name}",
                            "digest": {"sha256": _sha256(HERE / name)},
                        }
                        for name in locks
                    ),
                ],
            },
            "runDetails": {"builder": {"id": f"{BUILD_TYPE}#by-hand"}},
        },
    }
