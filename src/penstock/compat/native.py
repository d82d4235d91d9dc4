"""``penstock.native``. Lives in :mod:`penstock.transforms.native`."""

from penstock.transforms.native import *  # noqa: F403
