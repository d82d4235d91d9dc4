"""``penstock.urls``. Lives in :mod:`penstock.storage.urls`."""

from penstock.storage.urls import *  # noqa: F403
