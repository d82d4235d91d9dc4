"""Find keys, regions and endpoints where AWS tools look for them, in the same order.

First the environment, then the shared files (``~/.aws/credentials``, ``~/.aws/config``) with their
profiles and ``credential_process``; these need no further package. Roles, single sign-on,
containers and instance roles are resolved by ``botocore``, if it is installed.
"""

from __future__ import annotations

import configparser
import dataclasses
import datetime
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

from penstock import env
from penstock.errors import MissingPackage, StorageError
from penstock.storage.auth.aws_sigv4 import Credentials, Secret
from penstock.storage.auth.named_keys import Key
from penstock.storage.client.store import parse_json

# Settings from which only botocore can get keys.
_INDIRECT = (
    "role_arn",
    "sso_session",
    "sso_start_url",
    "sso_account_id",
    "web_identity_token_file",
    "credential_source",
    "login_session",
)
_INDIRECT_VARIABLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_FILES = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")
_EARLY_S = 60  # keys are renewed this long before they expire
_JUST_NOW_S = 10.0
_PROCESS_TIMEOUT_S = 60


@dataclasses.dataclass(frozen=True, slots=True)
class BucketServer:
    """The address of a bucket's server and its conventions."""

    endpoint: str | None
    region: str
    path_style: bool | None
    requester_pays: bool


class AwsAccount:
    """Credentials that renew themselves. One per name and process; never pickled."""

    def __init__(self, key: Key | None, profile: str | None, anonymous: bool) -> None:
        self.key, self.anonymous = key, anonymous or (key is not None and key.anonymous)
        self.profile = profile or (key.aws_profile if key is not None else None)
        self._lock = threading.Lock()
        self._found: Credentials | None = None
        self._session: Any = None
        self._looked = False
        self._changed_at = -_JUST_NOW_S

    def credentials(self) -> Credentials | None:
        """Return the current keys; None: requests are sent unsigned."""
        if self.anonymous:
            return None
        with self._lock:
            expires_at = self._found.expires_at if self._found is not None else None
            late = expires_at is not None and expires_at - time.time() < _EARLY_S
            if late or not self._looked:
                self._found, self._looked = self._look(), True
            return self._found

    def refresh(self) -> bool:
        """Look again after the server refused the keys. Return False if the same were found."""
        if self.anonymous:
            return False
        with self._lock:
            # If many requests are refused at once, the first renews the keys for all.
            if time.monotonic() - self._changed_at < _JUST_NOW_S:
                return True
            before, self._session = self._found, None
            self._found, self._looked = self._look(), True
            if self._found is None or self._found == before:
                return False
            self._changed_at = time.monotonic()
            return True

    def _look(self) -> Credentials | None:
        if self.key is not None and self.key.access_key is not None:
            return self.key.credentials()
        if self.profile is None and (found := _from_environment()) is not None:
            return found
        name, fields = read_profile(self.profile)
        if (found := _from_profile(name, fields)) is not None:
            return found
        return self._from_botocore(name, fields)

    def _from_botocore(self, name: str, fields: Mapping[str, str]) -> Credentials | None:
        needed = next((f for f in _INDIRECT if f in fields), None)
        needed = needed or next((v for v in _INDIRECT_VARIABLES if env.text(v)), None)
        try:
            import botocore.exceptions
            import botocore.session
        except ImportError as exn:
            if needed is None:
                return None
            raise MissingPackage.of(f"signing in by {needed}", "botocore", "s3") from exn
        try:
            if self._session is None:
                self._session = botocore.session.Session(profile=self.profile)
            found = self._session.get_credentials()
            frozen = found.get_frozen_credentials() if found is not None else None
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as exn:
            raise StorageError(f"no credentials from botocore: {type(exn).__name__}") from None
        if frozen is None:
            return None
        # botocore decides when to renew: another call after a minute returns at once.
        renewed = time.time() + 2 * _EARLY_S if hasattr(found, "refresh_needed") else None
        return Credentials(
            frozen.access_key,
            Secret(frozen.secret_key),
            Secret(frozen.token) if frozen.token else None,
            renewed,
            f"botocore ({found.method})",
        )


_accounts: dict[tuple[Any, ...], AwsAccount] = {}
_accounts_owner = os.getpid()


def find_account(key: Key | None, profile: str | None, anonymous: bool) -> AwsAccount:
    """Return this process's account of that name; a forked process creates a new one."""
    global _accounts_owner
    if _accounts_owner != os.getpid():
        # A lock that another thread held during the fork would never be released here.
        _accounts.clear()
        _accounts_owner = os.getpid()
    variables = tuple(env.text(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", *_FILES))
    identity = (key, profile, anonymous, *variables)
    return _accounts.setdefault(identity, AwsAccount(key, profile, anonymous))


def find_server(key: Key | None, profile: str | None) -> BucketServer:
    """Return endpoint, region and addressing style: the key's, else as AWS tools find them."""
    _, fields = read_profile(profile or (key.aws_profile if key else None))
    s3 = _parse_nested(fields.get("s3", ""))
    style = s3.get("addressing_style")
    path_style = {"path": True, "virtual": False}.get(style or "")
    pays = (env.text("AWS_REQUEST_PAYER") or "").lower() == "requester"
    if key is not None:
        path_style = key.path_style if key.path_style is not None else path_style
        pays = key.requester_pays if key.requester_pays is not None else pays
    return BucketServer(
        (key.endpoint if key else None) or _find_endpoint(fields),
        (key.region if key else None)
        or env.text("AWS_REGION")
        or env.text("AWS_DEFAULT_REGION")
        or fields.get("region")
        or "us-east-1",
        path_style,
        pays,
    )


def read_profile(profile: str | None) -> tuple[str, dict[str, str]]:
    """Return the profile's name and its fields in the shared files (credentials override)."""
    named = profile or env.text("AWS_PROFILE") or env.text("AWS_DEFAULT_PROFILE")
    name = named or "default"
    config = _read_sections("AWS_CONFIG_FILE", "config")
    secrets = _read_sections("AWS_SHARED_CREDENTIALS_FILE", "credentials")
    section = config.get(f"profile {name}") or (config.get(name) if name == "default" else None)
    if named is not None and section is None and name not in secrets and name != "default":
        raise StorageError(
            f"there is no named key and no AWS profile {name!r}: add it to the key file "
            "(PENSTOCK_KEYS) or to ~/.aws/config"
        )
    fields = {**(section or {}), **secrets.get(name, {})}
    if (services := fields.get("services")) is not None:
        fields["services s3"] = config.get(f"services {services}", {}).get("s3", "")
    return name, fields


def _find_endpoint(fields: Mapping[str, str]) -> str | None:
    if env.flag("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"):
        return None
    return (
        env.text("AWS_ENDPOINT_URL_S3")
        or _parse_nested(fields.get("services s3", "")).get("endpoint_url")
        or _parse_nested(fields.get("s3", "")).get("endpoint_url")
        or env.text("AWS_ENDPOINT_URL")
        or fields.get("endpoint_url")
    )


def _from_environment() -> Credentials | None:
    access, secret = env.text("AWS_ACCESS_KEY_ID"), env.text("AWS_SECRET_ACCESS_KEY")
    if access is None or secret is None:
        return None
    token = env.text("AWS_SESSION_TOKEN")
    return Credentials(
        access, Secret(secret), Secret(token) if token else None, source="the environment"
    )


def _from_profile(name: str, fields: Mapping[str, str]) -> Credentials | None:
    if any(field in fields for field in _INDIRECT):
        return None
    if (access := fields.get("aws_access_key_id")) and (
        secret := fields.get("aws_secret_access_key")
    ):
        token = fields.get("aws_session_token")
        source = f"the AWS profile {name!r}"
        return Credentials(access, Secret(secret), Secret(token) if token else None, source=source)
    if command := fields.get("credential_process"):
        return _from_process(name, command)
    return None


def _from_process(name: str, command: str) -> Credentials:
    """Run a program that prints keys as JSON. Its output is never shown."""
    try:
        done = subprocess.run(
            shlex.split(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PROCESS_TIMEOUT_S,
            check=False,
        )
        output: Any = parse_json(done.stdout) if done.returncode == 0 else None
        expiry = output.get("Expiration")
        found = Credentials(
            output["AccessKeyId"],
            Secret(output["SecretAccessKey"]),
            Secret(output["SessionToken"]) if output.get("SessionToken") else None,
            datetime.datetime.fromisoformat(expiry).timestamp() if expiry else None,
            f"the credential_process of the profile {name!r}",
        )
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError):
        raise StorageError(
            f"the credential_process of the AWS profile {name!r} failed or printed no credentials: "
            "run it by hand"
        ) from None
    return found


def _read_sections(variable: str, name: str) -> dict[str, dict[str, str]]:
    """Return the sections of a shared file. Its text is never shown, even if it is damaged."""
    path = os.path.expanduser(env.text(variable) or os.path.join("~", ".aws", name))
    parser = configparser.RawConfigParser(default_section="", strict=False)
    damaged = False
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as exn:
        raise StorageError(f"the AWS file {path} cannot be read: {exn.strerror}") from None
    except (configparser.Error, UnicodeDecodeError):
        damaged = True
    if damaged:  # raised here, so that the parser's exception, which quotes lines, is no context
        raise StorageError(f"the AWS file {path} is damaged: its lines are not NAME = VALUE")
    return {section: dict(parser.items(section)) for section in parser.sections()}


def _parse_nested(text: str) -> dict[str, str]:
    """Return the indented ``name = value`` lines under a name such as ``s3 =``."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
