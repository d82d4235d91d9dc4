"""Azure's accounts: find their credentials, and sign requests with an account key."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import email.utils
import functools
import hashlib
import hmac
from collections.abc import Mapping

from penstock import env
from penstock.errors import Origin, StorageError
from penstock.storage.auth.bearer_tokens import Token, find_scheme_key, no_token
from penstock.storage.auth.named_keys import Key

SCOPE = "https://storage.azure.com/.default"

# The same for every copy of the emulator: published by Microsoft, and not secret.
EMULATOR_ACCOUNT = "devstoreaccount1"
EMULATOR_ENDPOINT = "http://127.0.0.1:10000/devstoreaccount1"
EMULATOR_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclasses.dataclass(frozen=True, slots=True)
class AzureAccount:
    """An Azure storage account and its credentials: a key, a SAS token, or the signed-in user.

    ``repr`` and pickles contain only name and address; a copy looks up its secrets again.

    >>> AzureAccount("az://shards/", "mine", "https://mine.blob.core.windows.net", key="c2VjcmV0")
    Account('mine', 'https://mine.blob.core.windows.net')
    """

    url: str
    name: str
    endpoint: str
    key: str | None = None
    sas: str | None = None
    token: Token = dataclasses.field(default_factory=lambda: Token(no_token))

    def explain_refusal(self) -> str:
        """Explain why the credentials in use may have been refused, for messages."""
        if self.sas:
            return "the SAS token does not allow it, or has run out"
        if self.key:
            return f"the key does not fit the account {self.name!r}"
        if self.token.text() is None:
            return "no credentials were found, so the request was anonymous"
        return "whoever is signed in lacks a role such as 'Storage Blob Data Contributor'"

    def __repr__(self) -> str:
        return f"Account({self.name!r}, {self.endpoint!r})"

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (account_for, (self.url, self.name))


def account_for(url: str, name: str | None = None) -> AzureAccount:
    """Return the account that a URL names, or else the environment's, with its credentials.

    A named key that fits the URL comes first: ``access_key`` is the account, the secret its key.
    """
    key = find_scheme_key(url)
    if key is not None and (key.access_key or key.anonymous):
        return _account_of_key(url, key, name)
    settings = _parse_connection_string()
    own = settings.get("AccountName") or env.text("AZURE_STORAGE_ACCOUNT")
    own = own or env.text("AZURE_STORAGE_ACCOUNT_NAME")
    chosen = name or own
    if chosen is None:
        raise StorageError(
            "az:// needs an account: set AZURE_STORAGE_ACCOUNT or "
            "AZURE_STORAGE_CONNECTION_STRING, or write abfs://CONTAINER@ACCOUNT/NAME",
            origin=Origin(url),
        )
    endpoint = f"https://{chosen}.blob.core.windows.net"
    secret = sas = None
    if settings and chosen == settings.get("AccountName", chosen):
        protocol = settings.get("DefaultEndpointsProtocol", "https")
        suffix = settings.get("EndpointSuffix", "core.windows.net")
        endpoint = settings.get("BlobEndpoint") or f"{protocol}://{chosen}.blob.{suffix}"
        secret, sas = settings.get("AccountKey"), settings.get("SharedAccessSignature")
    elif chosen == (own or chosen):  # the key of one account is never sent to another
        endpoint = env.text("AZURE_STORAGE_ENDPOINT") or endpoint
        secret = env.text("AZURE_STORAGE_KEY") or env.text("AZURE_STORAGE_ACCOUNT_KEY")
        sas = env.text("AZURE_STORAGE_SAS_TOKEN")
    sas = sas.lstrip("?") if sas else None
    return AzureAccount(url, chosen, endpoint.rstrip("/"), secret, sas, _signed_in())


def _account_of_key(url: str, key: Key, name: str | None) -> AzureAccount:
    name = name or key.access_key
    if name is None:
        raise StorageError(
            f"the key {key.name!r} names no account: write abfs://CONTAINER@ACCOUNT/NAME",
            origin=Origin(url),
        )
    endpoint = (key.endpoint or f"https://{name}.blob.core.windows.net").rstrip("/")
    credentials = key.credentials()
    return AzureAccount(url, name, endpoint, credentials.secret.reveal() if credentials else None)


def sign_shared_key(
    account: AzureAccount,
    method: str,
    path: str,
    headers: Mapping[str, str],
    query: Mapping[str, str],
) -> dict[str, str]:
    """Return the headers that sign a request with the account's key: date and signature.

    ``path`` is the quoted path of the address; ``query`` is not quoted yet.
    """
    dated = {**headers, "x-ms-date": email.utils.formatdate(usegmt=True)}
    named = {name.lower(): value.strip() for name, value in dated.items()}
    length = named.get("content-length", "")
    lines = [
        method,
        named.get("content-encoding", ""),
        named.get("content-language", ""),
        "" if length == "0" else length,
        named.get("content-md5", ""),
        named.get("content-type", ""),
        "",  # the date is x-ms-date
        named.get("if-modified-since", ""),
        named.get("if-match", ""),
        named.get("if-none-match", ""),
        named.get("if-unmodified-since", ""),
        named.get("range", ""),
    ]
    lines += [f"{name}:{named[name]}" for name in sorted(named) if name.startswith("x-ms-")]
    lines.append(f"/{account.name}{path}")
    lines += [f"{name.lower()}:{query[name]}" for name in sorted(query, key=str.lower)]
    try:
        key = base64.b64decode(account.key or "", validate=True)
    except binascii.Error:
        raise StorageError(
            f"the key of the account {account.name!r} is not base64: copy it again"
        ) from None
    digest = hmac.digest(key, "\n".join(lines).encode(), hashlib.sha256)
    signature = base64.b64encode(digest).decode()
    return {
        "x-ms-date": dated["x-ms-date"],
        "Authorization": f"SharedKey {account.name}:{signature}",
    }


def _parse_connection_string() -> dict[str, str]:
    text = env.text("AZURE_STORAGE_CONNECTION_STRING") or ""
    settings = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    if settings.get("UseDevelopmentStorage", "").lower() == "true":
        emulator = {
            "AccountName": EMULATOR_ACCOUNT,
            "AccountKey": EMULATOR_KEY,
            "BlobEndpoint": EMULATOR_ENDPOINT,
        }
        return emulator | settings
    return settings


def _fetch_token() -> tuple[str | None, float | None]:
    try:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import CredentialUnavailableError, DefaultAzureCredential
    except ImportError:
        return None, None
    try:
        with DefaultAzureCredential() as credential:
            token = credential.get_token(SCOPE)
    except (CredentialUnavailableError, ClientAuthenticationError):
        return None, None  # nobody is signed in: public containers can still be read
    return token.token, float(token.expires_on)


@functools.cache
def _signed_in() -> Token:
    """Return the token of the signed-in user; one per process, because fetching takes seconds."""
    return Token(_fetch_token)
