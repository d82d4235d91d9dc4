"""Ways around the table of schemes: through an AIStore cluster, or through fsspec."""

from __future__ import annotations

from penstock import env

PROVIDERS = {
    "ais": "ais",
    "s3": "aws",
    "aws": "aws",
    "gs": "gcp",
    "gcp": "gcp",
    "az": "azure",
    "azure": "azure",
    "oci": "oci",
}
"""AIStore's name for the place behind a scheme."""


def goes_through_ais(scheme: str) -> bool:
    """Whether ``USE_AIS_FOR`` names the scheme: ``s3:gs``, where ``aws`` and ``gcp`` do as well."""
    named = env.text("USE_AIS_FOR")
    provider = PROVIDERS.get(scheme)
    if named is None or provider is None:
        return False
    words = named.replace(",", ":").lower().split(":")
    return any(PROVIDERS.get(word.strip()) == provider for word in words)


def fsspec_knows(scheme: str) -> bool:
    """Whether fsspec is installed and has a file system for the scheme."""
    try:
        from fsspec.registry import known_implementations, registry
    except ImportError:
        return False
    return scheme in known_implementations or scheme in registry
