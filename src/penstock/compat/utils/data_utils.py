"""``speechbrain.utils.data_utils``"""

from __future__ import annotations

from penstock.batches.padding.pad import batch_pad_right, pad_right_to, undo_padding
from penstock.batches.padding.padded_batch import batch_shuffle, mod_default_collate, recursive_to
from penstock.compat.left_out import left_out_of
from penstock.datasets.manifests.download_file import download_file, set_writing_permissions
from penstock.datasets.manifests.recipe_files import get_all_files, get_list_from_csv, split_path

__getattr__ = left_out_of("utils.data_utils")

__all__ = [
    "batch_pad_right",
    "batch_shuffle",
    "download_file",
    "get_all_files",
    "get_list_from_csv",
    "mod_default_collate",
    "pad_right_to",
    "recursive_to",
    "set_writing_permissions",
    "split_path",
    "undo_padding",
]
