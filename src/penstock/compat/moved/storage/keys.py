"""``penstock.storage.keys``, the former path of :mod:`penstock.storage.auth.named_keys`."""

from penstock.storage.auth.named_keys import *  # noqa: F403
