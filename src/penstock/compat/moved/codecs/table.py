"""``penstock.codecs.table``, the former path of :mod:`penstock.codecs.registry`."""

from penstock.codecs.registry import *  # noqa: F403
