"""Where the API is and with which key to call it: arguments, environment, and a file with profiles.

An argument beats the environment (GPUYARD_API_URL, GPUYARD_API_KEY, GPUYARD_PROFILE, GPUYARD_CONFIG), which beats the
file `$XDG_CONFIG_HOME/gpuyard/config.toml`. The file is readable by its owner alone (0600), since it holds keys.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.errors import NotConfigured

KEYS = ("api_url", "api_key", "currency", "output")
DEFAULT_PROFILE = "default"


@dataclass(frozen=True)
class Settings:
    """What holds now, and where each came from ("argument", "environment", "file")."""

    api_url: str
    api_key: str | None
    profile: str
    origin: Mapping[str, str] = field(default_factory=dict)


@dataclass
class ConfigFile:
    """The file's content: the profile in use, and each profile's values."""

    path: Path
    profile: str = DEFAULT_PROFILE
    profiles: dict[str, dict[str, str]] = field(default_factory=dict)

    def save(self) -> None:
        """Write the file whole, for the owner alone: a reader sees the old or the new one, never half."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=".config-")  # mkstemp makes it 0600
        temporary = Path(name)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(self._toml())
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def _toml(self) -> str:
        lines = [f"profile = {_quoted(self.profile)}"]
        for name, values in sorted(self.profiles.items()):
            lines += ["", f"[profiles.{_quoted(name)}]"]
            lines += [f"{key} = {_quoted(value)}" for key, value in sorted(values.items())]
        return "\n".join(lines) + "\n"

    @property
    def exposed(self) -> bool:
        """Whether others than the owner may read the file."""
        return self.path.exists() and bool(stat.S_IMODE(self.path.stat().st_mode) & 0o077)


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the command keeps what it learned by itself, such as host keys of leases."""
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
    return Path(base) / "gpuyard"


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    if environ.get("GPUYARD_CONFIG"):
        return Path(environ["GPUYARD_CONFIG"])
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".config")
    return Path(base) / "gpuyard" / "config.toml"


def read(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> ConfigFile:
    """Return the file's content, empty if there is none. Raises NotConfigured if it cannot be read as such."""
    path = path or default_path(environ)
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return ConfigFile(path)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as unreadable:
        raise NotConfigured(f"{path} cannot be read: {unreadable}") from unreadable
    profiles = found.get("profiles", {})
    if not isinstance(profiles, dict) or not all(isinstance(values, dict) for values in profiles.values()):
        raise NotConfigured(f"{path}: profiles must be tables, as in [profiles.default].")
    kept = {name: {key: str(value) for key, value in values.items()} for name, values in profiles.items()}
    return ConfigFile(path, str(found.get("profile", DEFAULT_PROFILE)), kept)


def resolve(
    *,
    api_url: str | None = None,
    api_key: str | None = None,
    profile: str | None = None,
    path: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Return what holds. Raises NotConfigured when no address is known or a named profile does not exist."""
    file = read(path, environ)
    asked = profile or environ.get("GPUYARD_PROFILE")
    name = asked or file.profile
    if asked and asked not in file.profiles:
        known = ", ".join(sorted(file.profiles)) or "none yet"
        raise NotConfigured(f"There is no profile {asked!r} in {file.path} (known: {known}).")
    saved = file.profiles.get(name, {})
    url, url_from = _first(api_url, environ.get("GPUYARD_API_URL"), saved.get("api_url"))
    if url is None:
        raise NotConfigured("No API address is known: run `gpuyard login` or `gpuyard up`, or set GPUYARD_API_URL.")
    # A saved key goes to the address it was saved with and to no other, whoever set that other address.
    saved_key = saved.get("api_key") if _same_address(url, saved.get("api_url")) else None
    key, key_from = _first(api_key, environ.get("GPUYARD_API_KEY"), saved_key)
    return Settings(url, key, name, {"api_url": url_from, "api_key": key_from})


def _first(argument: str | None, environment: str | None, file: str | None) -> tuple[str | None, str]:
    for value, origin in ((argument, "argument"), (environment, "environment"), (file, "file")):
        if value:
            return value, origin
    return None, "nowhere"


def _same_address(one: str, other: str | None) -> bool:
    return other is not None and base_url(one) == base_url(other)


def base_url(api_url: str) -> str:
    """Return the address with the version of the API this package speaks, whether or not it was given."""
    return api_url.rstrip("/").removesuffix("/api/v1") + "/api/v1"


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped and JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
