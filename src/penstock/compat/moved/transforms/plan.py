"""``penstock.transforms.plan``, the former path of :mod:`penstock.transforms.crop_plan`."""

from penstock.transforms.crop_plan import *  # noqa: F403
