"""Named keys: which account a bucket belongs to, for users with several accounts.

A file (TOML, or YAML with the same names) or a dict in code maps buckets to accounts::

    [team-a]
    buckets = ["shards", "train-*"]
    access_key = "AKIA..."
    secret_env = "TEAM_A_SECRET"        # or secret, secret_file, secret_command
    endpoint = "https://storage.example.org"

    [team-b]
    buckets = ["s3://private/b/*"]
    aws_profile = "team-b"              # everything from the AWS config files

The file is the one that ``PENSTOCK_KEYS`` or :func:`use_keys` names, or ``penstock/keys.toml`` in
the user's configuration folder. Secrets stay in the process that has read them.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import shlex
import stat
import subprocess
import warnings
from collections.abc import Mapping
from typing import Any

from penstock import env
from penstock.errors import PipelineError, StorageError, optional
from penstock.storage.auth.aws_sigv4 import Credentials, Secret
from penstock.storage.client.store import parse_json

_WITHHELD = "given in code to another process"
_COMMAND_TIMEOUT_S = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """One account: its buckets, its secret or where to get it, and the address of its server.

    ``repr`` and pickles never contain the secret.
    """

    name: str
    buckets: tuple[str, ...] = ()
    access_key: str | None = dataclasses.field(default=None, repr=False)
    secret: Secret | None = dataclasses.field(default=None, repr=False)
    secret_env: str | None = None
    secret_file: str | None = None
    secret_command: str | tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    session_token: Secret | None = dataclasses.field(default=None, repr=False)
    aws_profile: str | None = None
    anonymous: bool = False
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    requester_pays: bool | None = None

    @classmethod
    def of(cls, name: str, fields: Mapping[str, Any]) -> Key:
        """Return the key that a table of the file describes. An invalid one raises PipelineError.

        >>> Key.of("team-a", {"buckets": ["shards"], "access_key": "AK", "secret": "xyz"})
        Key(name='team-a', buckets=('shards',), secret_env=None, secret_file=None, \
aws_profile=None, anonymous=False, endpoint=None, region=None, path_style=None, \
requester_pays=None)
        """
        known = {field.name for field in dataclasses.fields(cls)} - {"name"}
        values = dict(fields)
        if odd := sorted(set(values) - known):
            raise PipelineError(
                f"the key {name!r} has unknown fields: {', '.join(odd)} "
                f"(known: {', '.join(sorted(known))})"
            )
        for field, value in values.items():
            # Values are not shown: a secret may be in the wrong field.
            if not isinstance(value, _field_types(field)):
                raise PipelineError(f"the key {name!r}: {field} has the wrong type")
        patterns = values.pop("buckets", ())
        values["buckets"] = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        if isinstance(values.get("secret_command"), list):
            values["secret_command"] = tuple(values["secret_command"])
        for field in ("secret", "session_token"):
            if isinstance(values.get(field), str):
                values[field] = Secret(values[field])
        key = cls(name, **values)
        key._check()
        return key

    def _check(self) -> None:
        ways = [self.secret, self.secret_env, self.secret_file, self.secret_command]
        given = sum(way is not None for way in ways)
        rule = ""
        if self.access_key is not None and given != 1:
            rule = "access_key needs exactly one of secret, secret_env, secret_file, secret_command"
        elif self.access_key is None and given:
            rule = "a secret needs its access_key"
        elif self.access_key is not None and (self.aws_profile or self.anonymous):
            rule = "access_key, aws_profile and anonymous exclude each other"
        if rule:
            raise PipelineError(f"the key {self.name!r}: {rule}")

    def credentials(self) -> Credentials | None:
        """Fetch and return the key's credentials; None if it has no secret."""
        if self.access_key is None:
            return None
        if Secret(_WITHHELD) in (self.secret, self.session_token):
            raise StorageError(
                f"a secret of the key {self.name!r} (secret or session_token) was given in code to "
                "the parent process and is not handed to spawned workers: name a way to get it "
                "(secret_env, secret_file, secret_command, aws_profile), use a key file, or call "
                "use_keys() at the top of the module that the workers import"
            )
        return Credentials(
            self.access_key, self._get_secret(), self.session_token, source=f"the key {self.name!r}"
        )

    def _get_secret(self) -> Secret:
        if self.secret is not None:
            return self.secret
        if self.secret_env is not None:
            text = env.text(self.secret_env)
            what = f"the variable {self.secret_env} is not set"
        elif self.secret_file is not None:
            path = os.path.expanduser(self.secret_file)
            text, what = _read_text(path), f"the file {path} cannot be read or is empty"
        else:
            text, what = _run_command(self.secret_command or ()), "secret_command failed"
        if not text:
            raise StorageError(f"there is no secret for the key {self.name!r}: {what}")
        return Secret(text.strip())

    def measure_fit(self, scheme: str, path: str) -> int:
        """Return how closely a pattern fits ``bucket/key``: higher if longer, -1 if none fits.

        >>> key = Key("a", ("train-*", "s3://shards/private/*"))
        >>> [key.measure_fit("s3", p) for p in ("train-1/x", "shards/private/x", "shards/x")]
        [12, 30, -1]
        """
        best = -1
        for pattern in self.buckets:
            kind, _, rest = pattern.rpartition("://")
            if kind not in ("", scheme):
                continue
            if rest.endswith("/"):  # "bucket/" is the bucket, "bucket/a/" a prefix
                rest = rest[:-1] if rest.count("/") == 1 else rest + "*"
            target = path if "/" in rest else path.partition("/")[0]
            if fnmatch.fnmatchcase(target, rest):
                best = max(best, 2 * len(rest.replace("*", "")) + ("*" not in rest))
        return best

    def without_secret(self) -> dict[str, Any]:
        """Return the fields that other processes may get: without literal secrets."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for field in ("secret", "session_token"):
            if fields[field] is not None:
                fields[field] = _WITHHELD
        del fields["name"]
        return {field: value for field, value in fields.items() if value not in (None, ())}


_in_code: dict[str, Key] | None = None
_files: dict[tuple[str, int], dict[str, Key]] = {}


def use_keys(keys: str | os.PathLike[str] | Mapping[str, Any] | None) -> None:
    """Use these named keys from now on: a file's name, or a dict of the same form; None: none.

    Processes started later use them too. But a literal secret in a dict is not passed to *spawned*
    workers (forked ones have it): for them, name a way to get it.

    >>> use_keys({"team-a": {"buckets": ["shards"], "access_key": "AK", "secret_env": "A_SECRET"}})
    >>> find_key("s3://shards/train-0.tar").name
    'team-a'
    >>> use_keys(None)
    """
    global _in_code
    if keys is None:
        _in_code = None
        env.export("PENSTOCK_KEYS", None)
    elif isinstance(keys, Mapping):
        _in_code = _parse_tables(keys)
        exported = {name: key.without_secret() for name, key in _in_code.items()}
        env.export("PENSTOCK_KEYS", json.dumps(exported))
    else:
        path = os.path.abspath(os.path.expanduser(os.fspath(keys)))
        _in_code = None
        _read_file(path)
        env.export("PENSTOCK_KEYS", path)


def named_keys() -> dict[str, Key]:
    """Return the keys in use, by name."""
    if _in_code is not None:
        return _in_code
    named = env.text("PENSTOCK_KEYS")
    if named is not None and named.startswith("{"):
        try:
            tables = parse_json(named)
        except ValueError:  # its message could quote a secret
            tables = None
        if not isinstance(tables, Mapping):
            raise PipelineError("the variable PENSTOCK_KEYS begins like JSON and is not") from None
        return _parse_tables(tables)
    if named is not None:
        return _read_file(os.path.expanduser(named))
    home = env.text("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    for end in ("toml", "yaml"):
        if os.path.exists(path := os.path.join(home, "penstock", f"keys.{end}")):
            return _read_file(path)
    return {}


def find_key(url: str, name: str | None = None) -> Key | None:
    """Return the key of that name, or else the one whose pattern fits the URL most closely."""
    keys = named_keys()
    if name is not None:
        return keys.get(name)
    scheme, _, path = url.partition("://")
    close = max(keys.values(), key=lambda key: key.measure_fit(scheme, path), default=None)
    return close if close is not None and close.measure_fit(scheme, path) >= 0 else None


def _field_types(field: str) -> tuple[type, ...]:
    if field in ("anonymous", "path_style", "requester_pays"):
        return (bool,)
    if field in ("buckets", "secret_command"):
        return (str, list, tuple)
    return (str, Secret) if field in ("secret", "session_token") else (str,)


def _parse_tables(tables: Mapping[str, Any]) -> dict[str, Key]:
    # Both forms are accepted: the tables themselves, and all of them under the name "keys".
    inner = tables.get("keys")
    if len(tables) == 1 and isinstance(inner, Mapping) and "buckets" not in inner:
        tables = inner
    found = {}
    for name, fields in tables.items():
        if not isinstance(fields, Mapping):
            raise PipelineError(f"keys: {name!r} must be a table of fields (buckets, access_key …)")
        found[str(name)] = Key.of(str(name), fields)
    return found


def _read_file(path: str) -> dict[str, Key]:
    try:
        about = os.stat(path)
        keys = _files.get((path, about.st_mtime_ns))
        if keys is None:
            with open(path, "rb") as file:
                keys = _parse_tables(_parse_file(path, file.read()))
            _files.clear()
            _files[path, about.st_mtime_ns] = keys
            literal = any(key.secret is not None for key in keys.values())
            if literal and about.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                warnings.warn(
                    f"{path} holds secrets and others may read it: chmod 600 it", stacklevel=3
                )
    except OSError as exn:
        raise StorageError(f"the key file {path} cannot be read: {exn.strerror}") from None
    return keys


def _parse_file(path: str, data: bytes) -> Mapping[str, Any]:
    """Return the file's tables. The parser's message is not shown: it may quote a secret."""
    tables: Any = None
    damaged = ""
    if path.endswith((".yaml", ".yml")):
        yaml = optional("yaml", "yaml", "reading a YAML key file")
        try:
            tables = yaml.safe_load(data)
        except (yaml.YAMLError, RecursionError) as exn:
            line = getattr(getattr(exn, "problem_mark", None), "line", -1) + 1
            damaged = f"not YAML (line {line})"
    else:
        import tomllib

        try:
            tables = tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exn:
            position = str(exn).rpartition("(at ")[2].rstrip(")") if "(at " in str(exn) else "?"
            damaged = f"not TOML ({position})"
    if damaged:  # raised here, so that the parser's exception is not its context
        raise PipelineError(f"the key file {path} is {damaged}")
    if not isinstance(tables or {}, Mapping):
        raise PipelineError(f"the key file {path} must hold a table for each key")
    return tables or {}


def _read_text(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _run_command(command: str | tuple[str, ...]) -> str | None:
    """Return what a command prints; None if it fails. Its output is never shown: it is secret."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
