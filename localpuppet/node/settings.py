"""The settings of a node: `localpuppet.yaml` in the root, and defaults for the rest.

Contradictory settings are rejected, never adjusted.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.converter import JsonForm, JsonRecord, from_record
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.schemas import load, with_defaults
from localpuppet.base.formats.times import parse_duration
from localpuppet.base.formats.values import field_values
from localpuppet.base.machine.files import is_file, read_user_file
from localpuppet.base.machine.own_program import shared_file
from localpuppet.base.value import Value
from localpuppet.node.enc.instance_data import CloudInitFiles, Service

if TYPE_CHECKING:
    from localpuppet.node.releases.source import ReleaseSource


MAX_PORT = 65535
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::(?P<port>[0-9]{1,5}))?"
_URL = rf"https://{_HOST}(?:/[A-Za-z0-9_.~+/-]*)?\Z|file:///[A-Za-z0-9_.~+/@%-]*\Z"
_PROXY = rf"https?://{_HOST}/?\Z"
RUN_DIR = "/run/cloud-init"
CLOUD_DIR = "/var/lib/cloud"
SYSTEM_ROOT = Path("/etc/puppet")
SYSTEM_STATE = Path("/var/lib/localpuppet")
FILE = "localpuppet.yaml"
Section = TypeVar("Section", bound=JsonRecord)
# The type of a setting: a time, as people write it.
Seconds = Annotated[float, JsonForm(lambda text: parse_duration(str(text)))]


def read_settings(file: Path, *, schema: str, documents: Documents) -> Mapping[str, Any]:
    """Return the contents of a settings file; empty if it does not exist."""
    if not is_file(file):
        return {}
    return documents.parse(read_user_file(file), schema=schema, where=str(file), may_be_empty=True)


class SettingsFile(Value):
    """`localpuppet.yaml` of a root; each layer reads a section of it.

    The `raw` document fits the schema, and is empty if there is no such file.
    """

    root: Path
    state: Path
    path: Path
    raw: Mapping[str, Any]
    documents: Documents

    @property
    def full(self) -> dict[str, Any]:
        """The document with the defaults of its schema."""
        return with_defaults(self.raw, load("settings"))

    def section(self, form: type[Section], key: str, /, **computed: object) -> Section:
        """Return the settings below a key, by the types of the section's fields.

        Args:
            form: The class of the section: its fields have the names of the settings.
            computed: Defaults that the schema cannot have.
        """
        body = {**computed, **self.full[key]}
        return _below(self.root, from_record(form, body, where=f"{self.path}: {key}"))


def _below(root: Path, section: Section) -> Section:
    """Return a section whose relative paths start at the root."""
    values: dict[str, Any] = {}
    for key in section.__value_fields__:
        value = getattr(section, key)
        if isinstance(value, Path):
            values[key] = root / value
        elif isinstance(value, JsonRecord):
            values[key] = _below(root, value)
        elif isinstance(value, tuple):
            values[key] = tuple(root / one if isinstance(one, Path) else one for one in value)
    return replace(section, **values)


def forge_settings(raw: Mapping[str, Any], root: Path, file: Path) -> Mapping[str, Any]:
    """Return the section `forge:`, with absolute paths; `None` for what it does not set."""
    body = raw["forge"]
    for key, form, hint in (
        ("url", _URL, "https://HOST or file:///DIRECTORY, without credentials"),
        ("proxy", _PROXY, "http://HOST:PORT, without credentials"),
    ):
        match = re.match(form, body[key]) if key in body else None
        if key in body and (match is None or int(match["port"] or 0) > MAX_PORT):
            where = f"{file}: forge.{key}"
            raise InvalidInputError("is not an allowed URL", where=where, hint=hint)
    files = {key: root / body[key] if key in body else None for key in ("ca", "token_file")}
    return {"url": body["url"].rstrip("/"), "proxy": body.get("proxy"), **files}


class InstanceSettings(Value):
    """The sources of facts from the cloud; `asked_for` if the site sets the directories itself."""

    service: Service | None
    files: CloudInitFiles | None
    asked_for: bool
    leases: tuple[Path, ...]


def instance_settings(raw: Mapping[str, Any], root: Path) -> InstanceSettings:
    """Return the section `instance_data:`."""
    body = raw["instance_data"]
    places = body.get("cloud_init", {})
    files = CloudInitFiles(
        run_dir=root / (places or {}).get("run_dir", RUN_DIR),
        cloud_dir=root / (places or {}).get("cloud_dir", CLOUD_DIR),
    )
    return InstanceSettings(
        service=Service(body["service"]) if "service" in body else None,
        files=None if places is False else files,
        asked_for=bool(places),
        leases=tuple(root / entry for entry in body["leases"]),
    )


class PuppetSettings(JsonRecord):
    """The section `puppet:`."""

    command: Path | None = None
    confdir: Path | None = None
    vardir: Path | None = None
    facter_conf: Path | None = None
    reports: tuple[str, ...]
    compiled_ruby: bool

    @property
    def directories(self) -> dict[str, Path]:
        """Puppet's own directories that the site sets."""
        both = {"confdir": self.confdir, "vardir": self.vardir}
        return {name: path for name, path in both.items() if path is not None}


class Timeouts(JsonRecord):
    """The section `timeouts:`, in seconds."""

    run: float
    grace: float
    enc: float
    https: float
    git: float


class KeepSettings(JsonRecord):
    """The section `keep:`."""

    runs: int
    days: int
    releases: int


class GcSettings(JsonRecord):
    """The section `gc:`."""

    keep_staged: Seconds


class PreviewSettings(JsonRecord):
    """The section `preview:`."""

    hosts: frozenset[Annotated[str, str.lower]]


class PlainSettings(JsonRecord):
    """The settings whose types say how they are read: each has the name of its key."""

    IS_OPEN: ClassVar = True
    root: Path
    modules: Path
    input: Path
    inputs: Path
    node_document: Path
    site_manifest: Path
    enc_script: Path
    enc: str | None = None
    state: Path
    metrics: Path
    immutable_only: bool
    tags_only: bool
    packages: tuple[Path, ...]
    install_packages: str | tuple[str, ...] | None = None
    allow_file_urls: bool
    https_ca: Path | None = None
    min_free_mib: int
    basemodulepath: tuple[Path, ...]
    puppet: PuppetSettings
    timeouts: Timeouts
    keep: KeepSettings
    gc: GcSettings
    preview: PreviewSettings


class Settings(PlainSettings):
    """The settings of one node; docs/reference/settings.md lists the keys of `localpuppet.yaml`."""

    module_sources: Mapping[str, Mapping[str, Any]]
    sources: "Mapping[str, ReleaseSource]"
    rewrite: Mapping[str, str]
    instance: InstanceSettings

    @property
    def min_free(self) -> int:
        """Bytes that stay free on the disk."""
        return self.min_free_mib * 1048576


def find_root(option: str | None, environment: Mapping[str, str]) -> Path:
    """Return the root: `--root`, then LOCALPUPPET_ROOT, then `/etc/puppet`.

    `localpuppet.py` sets LOCALPUPPET_ROOT to its own directory if it is unset.
    """
    root = Path(option or environment.get("LOCALPUPPET_ROOT") or SYSTEM_ROOT)
    # The path as the user knows it: not resolved, so that /etc/puppet may be a link.
    root = Path(os.path.abspath(root))  # noqa: PTH100 - Path.resolve() follows links
    if not root.is_dir():
        raise InvalidInputError(
            "the root is not a directory", where=str(root), hint="--root or LOCALPUPPET_ROOT"
        )
    bad = [character for character in str(root) if character in " \t\n:'\"\\,"]
    if bad:
        raise InvalidInputError(
            f"the root's path holds {bad[0]!r}",
            where=str(root),
            hint="Puppet splits modulepath at ':' and the ENC command at spaces",
        )
    return root


def state_directory(root: Path) -> Path:
    """Return the default state directory."""
    return SYSTEM_STATE if root == SYSTEM_ROOT else root / "var"


def makers_state(state: Path, environment: Mapping[str, str]) -> Path:
    """Return where releases are checked and locked: the state directory, or the user's cache."""
    place = state
    while not os.access(place, os.F_OK):
        place = place.parent
    if os.access(place, os.W_OK):
        return state
    home = environment.get("HOME") or "~"
    cache = environment.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return Path(cache).expanduser() / "localpuppet"


def users_state(environment: Mapping[str, str]) -> Path:
    """Return the directory for what localpuppet remembers of a person, not of a node."""
    home = environment.get("HOME") or "~"
    state = environment.get("XDG_STATE_HOME") or f"{home}/.local/state"
    return Path(state).expanduser() / "localpuppet"


def settings_of(root: Path, raw: Mapping[str, Any]) -> Settings:
    """Return the settings of the root from the shape-checked contents of `localpuppet.yaml`."""
    file = root / FILE
    full = with_defaults(raw, load("settings"))
    state = root / str(full.get("state", state_directory(root)))
    computed = {"root": root, "state": state, "metrics": state / full["metrics"]}
    for key in ("site_manifest", "enc_script"):
        computed[key] = _or_packaged(root / full[key], raw, key)
    with errors_at(str(file)):
        texts = {key: str(path) for key, path in computed.items()}
        plain = _below(root, from_record(PlainSettings, {**full, **texts}))
    settings = Settings(
        **field_values(plain),
        module_sources={"forge": forge_settings(full, root, file)},
        sources=_sources(raw, root, file),
        rewrite=_rewrite(raw, file),
        instance=instance_settings(full, root),
    )
    _check(settings, file)
    return settings


def _sources(raw: Mapping[str, Any], root: Path, file: Path) -> "dict[str, ReleaseSource]":
    if "sources" not in raw:
        return {}
    from localpuppet.node.releases.source import ReleaseSource

    allow_file = raw.get("allow_file_urls", False)
    with errors_at(str(file)):
        return {
            name: ReleaseSource.from_dict(name, body, root=root, allow_file=allow_file)
            for name, body in raw["sources"].items()
        }


def _rewrite(raw: Mapping[str, Any], file: Path) -> Mapping[str, str]:
    if "rewrite" not in raw:
        return {}
    from localpuppet.node.releases.git.access import read_rewrite

    with errors_at(str(file)):
        return read_rewrite(raw["rewrite"], allow_file=raw.get("allow_file_urls", False))


def _or_packaged(path: Path, raw: Mapping[str, Any], key: str) -> Path:
    """Return the site's file, or localpuppet's own if the site has and names none."""
    if key in raw or is_file(path):
        return path
    return shared_file(f"{path.parent.name}/{path.name}")


def _check(settings: Settings, file: Path) -> None:
    """Reject settings that Puppet would misread or that contradict each other."""
    split = [("enc_script", settings.enc_script), ("modules", settings.modules)]
    split += [("basemodulepath", path) for path in settings.basemodulepath]
    for key, value in split:
        if any(character in str(value) for character in " \t:"):
            raise InvalidInputError(
                f"{str(value)!r} holds a space or ':', at which Puppet splits",
                where=f"{file}: {key}",
                hint="choose another directory",
            )
    if settings.modules == settings.root or settings.root.is_relative_to(settings.state):
        raise InvalidInputError(
            "modules and state must be directories of their own",
            where=str(file),
            hint="below the root",
        )
    ours = [settings.input, settings.node_document, settings.site_manifest, settings.enc_script]
    ours += [settings.root / FILE, settings.metrics]
    if len({os.path.normpath(path) for path in ours}) != len(ours):
        raise InvalidInputError(
            "input, node_document, site_manifest, enc_script and metrics must be different files",
            where=str(file),
        )
    if settings.metrics.suffix != ".prom":
        raise InvalidInputError("must end in .prom", where=f"{file}: metrics")
    for name in settings.puppet.reports:
        if not name.replace("_", "").isalnum():
            raise InvalidInputError(
                f"{name!r} is not a report processor", where=f"{file}: puppet.reports"
            )
