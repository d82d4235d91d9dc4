"""``speechbrain.dataio.dataio``"""

from __future__ import annotations

from penstock.batches.padding.pad import (
    clean_padding,
    clean_padding_,
    length_to_mask,
    relative_time_to_absolute,
)
from penstock.codecs.audio_files import (
    read_audio,
    read_audio_info,
    read_audio_multichannel,
    write_audio,
)
from penstock.compat.left_out import left_out_of
from penstock.datasets.manifests.recipe_files import (
    get_md5,
    load_data_csv,
    load_data_json,
    load_pkl,
    merge_csvs,
    save_md5,
    save_pkl,
)

load_pickle = load_pkl
__getattr__ = left_out_of("dataio.dataio")

__all__ = [
    "clean_padding",
    "clean_padding_",
    "get_md5",
    "length_to_mask",
    "load_data_csv",
    "load_data_json",
    "load_pickle",
    "load_pkl",
    "merge_csvs",
    "read_audio",
    "read_audio_info",
    "read_audio_multichannel",
    "relative_time_to_absolute",
    "save_md5",
    "save_pkl",
    "write_audio",
]
