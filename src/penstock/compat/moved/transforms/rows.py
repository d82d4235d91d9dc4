"""``penstock.transforms.rows``, the former path of :mod:`penstock.memory.output`."""

from penstock.memory.output import *  # noqa: F403
