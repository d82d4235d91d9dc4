"""Every environment variable that the library reads; the only module that uses ``os.environ``.

Arguments take precedence over variables. The documentation page is generated from ``VARIABLES``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLES: Mapping[str, str] = {
    "WDS_SEED": "seed of shard and sample order if none is passed (an integer)",
    "WDS_EPOCH": "number of the first epoch (an integer)",
    "SB_GLOBAL_SEED": "seed of the order of make_dataloader(shuffle=True) (an integer)",
    "WDS_REWRITE": "rewrites URLs before opening: regex=replacement;regex=replacement",
    "GOPEN_REWRITE": "the older name of WDS_REWRITE; both apply, WDS_REWRITE first",
    "GOPEN_VERBOSE": "1: log every URL that is opened",
    "GOPEN_BUFFER": "bytes read at a time from local files",
    "WDS_CACHE": "folder for cached shards",
    "WDS_CACHE_SIZE": "bytes the shard cache may take",
    "WDS_VERBOSE_CACHE": "1: log what the cache does",
    "WDS_SHOW_SEED": "1: log the seed that resampled shard lists use",
    "WDS_SECURE": "1: refuse pipe: URLs, rewriting and pickles even where code allows them",
    "WDS_PYTORCH_WEIGHTS_ONLY": "1: load only weights from .pth files, even with allow_pickle",
    "WDS_*": "${X} in a URL is replaced by the variable WDS_X; in a spec, by X itself",
    "PENSTOCK_MAX_DECODED_BYTES": "bytes that one compressed field, or one member of a compressed "
    "shard, may unpack to; default 1 GiB",
    "PENSTOCK_CHECKSUM": "declared or etag: compare remote shards that are read whole with the "
    "checksum that the store reports",
    "PENSTOCK_PRIVATE_REDIRECTS": "0: do not follow a redirect from a public server to an address "
    "of a private network or of this machine",
    "PENSTOCK_KEYS": "file of named keys (TOML or YAML): which account a bucket belongs to",
    "XDG_CONFIG_HOME": "folder of penstock/keys.toml if PENSTOCK_KEYS is not set",
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
    "AZURE_STORAGE_ENDPOINT": "address of its blob service, if it is not Azure's own",
    "HF_TOKEN": "token for the Hugging Face Hub (also HUGGING_FACE_HUB_TOKEN)",
    "HF_TOKEN_PATH": "file with that token; else $HF_HOME/token, ~/.cache/huggingface/token",
    "HF_HOME": "folder of the Hub's tools, which holds their token",
    "XDG_CACHE_HOME": "folder of huggingface/token if HF_HOME is not set, and of the "
    "native module (penstock/)",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1: do not use the token file",
    "HF_ENDPOINT": "address of the Hub, if it is not https://huggingface.co",
    "AIS_ENDPOINT": "address of the AIStore cluster: http://HOST:PORT",
    "AIS_AUTHN_TOKEN": "token for that cluster",
    "USE_AIS_FOR": "schemes whose URLs are read and written through AIStore: s3:gs",
    "PENSTOCK_NATIVE": "0: do not use the native module; a path: the file to use, or to build",
    "CC": "compiler that builds the native module, with options; else cc",
    "CUDA_HOME": "folder of the CUDA toolkit, searched for libnvjpeg",
    "CUDA_PATH": "the same, searched after CUDA_HOME",
    "RANK": "this process's rank; with WORLD_SIZE it overrides torch.distributed",
    "WORLD_SIZE": "number of ranks",
    "WORKER": "this process's loader worker; with NUM_WORKERS it overrides torch's worker info",
    "NUM_WORKERS": "number of loader workers",
    "SLURM_ARRAY_TASK_ID": "number of this process of a job array (also _MIN, _STEP and _COUNT), "
    "for jobs with the engine array",
    "PBS_ARRAY_INDEX": "the same of PBS (also PBS_ARRAYID)",
    "SGE_TASK_ID": "the same of SGE (also SGE_TASK_FIRST, _LAST, _STEPSIZE)",
    "LSB_JOBINDEX": "the same of LSF (also LSB_JOBINDEX_END, _STEP)",
    "JOB_COMPLETION_INDEX": "the same of a Kubernetes indexed Job",
    "AWS_BATCH_JOB_ARRAY_INDEX": "the same of AWS Batch (also AWS_BATCH_JOB_ARRAY_SIZE)",
}


def text(name: str) -> str | None:
    """Return the variable's value, or None if it is unset or empty."""
    return os.environ.get(name) or None


def integer(name: str) -> int | None:
    """Return the variable as an integer (``1e9`` is one), or None if it is unset."""
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
    """Return whether the variable is set to something other than 0, no, off or false."""
    return (text(name) or "0").lower() not in ("0", "no", "off", "false")


def export(name: str, value: str | None) -> None:
    """Set the variable for this process and its future children; None removes it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
