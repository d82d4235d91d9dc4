"""Every environment variable the library reads; the only module that looks at ``os.environ``.

Arguments always win over variables. ``VARIABLES`` is the list that the documentation is made from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLES: Mapping[str, str] = {
    "WDS_SEED": "seed of shard and sample order where none is given (an integer)",
    "WDS_EPOCH": "number of the first epoch (an integer)",
    "SB_GLOBAL_SEED": "seed of the order that make_dataloader(shuffle=True) gives (an integer)",
    "WDS_REWRITE": "rewrites URLs before opening: regex=replacement;regex=replacement",
    "GOPEN_REWRITE": "the older name of WDS_REWRITE; both apply, WDS_REWRITE first",
    "GOPEN_VERBOSE": "1: log every URL that is opened",
    "GOPEN_BUFFER": "bytes read at a time from local files",
    "WDS_CACHE": "folder for cached shards",
    "WDS_CACHE_SIZE": "bytes the shard cache may take",
    "WDS_VERBOSE_CACHE": "1: log what the cache does",
    "WDS_SHOW_SEED": "1: log the seed that resampled shard lists use",
    "WDS_SECURE": "1: refuse pipe: URLs, rewriting and pickles even where code allows them",
    "WDS_PYTORCH_WEIGHTS_ONLY": "1: .pth files hold weights only, even where allow_pickle is said",
    "WDS_*": "${X} in a URL is replaced by the variable WDS_X",
    "PENSTOCK_CHECKSUM": "declared or etag: hold remote shards that are read whole against the sum "
    "that the store tells",
    "PENSTOCK_KEYS": "file of named keys (TOML or YAML): which account a bucket belongs to",
    "XDG_CONFIG_HOME": "folder that holds penstock/keys.toml where PENSTOCK_KEYS is not set",
    "AWS_*": "what AWS tools read: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, "
    "AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL(_S3), AWS_CONFIG_FILE …",
    "AWS_CA_BUNDLE": "file of further authorities to trust for https:// and all stores (also "
    "REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE); SSL_CERT_FILE replaces the system's own",
    "STORAGE_EMULATOR_HOST": "address of a Google Cloud Storage emulator, instead of the cloud",
    "GOOGLE_APPLICATION_CREDENTIALS": "file of Google credentials; read by google-auth",
    "AZURE_STORAGE_CONNECTION_STRING": "Azure account, endpoint and key in one",
    "AZURE_STORAGE_ACCOUNT": "Azure account of az:// URLs (also AZURE_STORAGE_ACCOUNT_NAME)",
    "AZURE_STORAGE_KEY": "its key (also AZURE_STORAGE_ACCOUNT_KEY)",
    "AZURE_STORAGE_SAS_TOKEN": "a SAS token, instead of a key",
    "AZURE_STORAGE_ENDPOINT": "address of its blob service, where that is not Azure's own",
    "HF_TOKEN": "token for the Hugging Face Hub (also HUGGING_FACE_HUB_TOKEN)",
    "HF_TOKEN_PATH": "file with that token; else $HF_HOME/token, ~/.cache/huggingface/token",
    "HF_HOME": "folder of the Hub's tools, where their token is kept",
    "XDG_CACHE_HOME": "folder that holds huggingface/token where HF_HOME is not set, and the "
    "native module (penstock/)",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1: do not use the token file",
    "HF_ENDPOINT": "address of the Hub, where that is not https://huggingface.co",
    "AIS_ENDPOINT": "address of the AIStore cluster: http://HOST:PORT",
    "AIS_AUTHN_TOKEN": "token for that cluster",
    "USE_AIS_FOR": "schemes whose URLs are read and written through AIStore: s3:gs",
    "PENSTOCK_NATIVE": "0: do not use the native module; a path: the file to use, or to build",
    "CC": "compiler that builds the native module, with options; else cc",
    "CUDA_HOME": "folder of the CUDA toolkit, where libnvjpeg is looked for",
    "CUDA_PATH": "the same, where CUDA_HOME does not have it",
    "RANK": "this process's rank; with WORLD_SIZE it wins over torch.distributed",
    "WORLD_SIZE": "number of ranks",
    "WORKER": "this process's loader worker; with NUM_WORKERS it wins over torch's worker info",
    "NUM_WORKERS": "number of loader workers",
}


def text(name: str) -> str | None:
    """The variable's value, or None when it is unset or empty."""
    return os.environ.get(name) or None


def integer(name: str) -> int | None:
    """The variable as a whole number (``1e9`` is one), or None when it is unset."""
    value = text(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        try:
            return int(float(value))
        except (ValueError, OverflowError):
            raise ValueError(f"the variable {name} must be a number, not {value!r}") from None


def flag(name: str) -> bool:
    """True when the variable is set to something other than 0, no, off or false."""
    return (text(name) or "0").lower() not in ("0", "no", "off", "false")


def hand_on(name: str, value: str | None) -> None:
    """Set the variable for this process and those it will start; None takes it away."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
