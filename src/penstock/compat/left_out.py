"""Names of WebDataset and SpeechBrain that are left out on purpose, and why.

Such a name can be imported, so that a program that only mentions it still starts. Using it raises
a :class:`~penstock.errors.PipelineError` with the reason and the replacement.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from penstock.errors import PipelineError

OPENED = "URLs are opened without a helper program; use gopen(url) or open_url(url)"
CACHE = "the cache for shards from a network is an argument: WebDataset(urls, cache_dir=folder)"
SPECS = "dataset specs (YAML, JSON) are not read: list the shards instead"
INTERNAL = "it was internal to WebDataset"
VERSION_0_1 = "it was a submodule of version 0.1"

LEFT_OUT: dict[str, str] = {
    "CacheStream": CACHE,
    "MSSource": SPECS,
    "MultiShardSample": SPECS,
    "Pipeline": "it was a base class of version 0.1; build a DataPipeline",
    "SampleIterator": "it was a base class of version 0.1; build a DataPipeline",
    "add_length_method": INTERNAL + "; use the method with_length",
    "bench": "it was a command; use 'penstock --help'",
    "cache_shards": CACHE,
    "checks": INTERNAL,
    "construct_dataset": SPECS,
    "dataset": VERSION_0_1 + "; its data sets are at the top, for example penstock.Dataset",
    "deprecated": INTERNAL,
    "downloader": OPENED,
    "dsspecs": SPECS,
    "gopen_ais": OPENED,
    "gopen_curl": OPENED,
    "gopen_gsutil": OPENED,
    "gopen_hf": OPENED,
    "gopen_htgs": OPENED + ", with gs:// for htgs://",
    "iterators": VERSION_0_1 + "; penstock.filters has the stages as functions: _map(source, f)",
    "multi": "its loaders need ZeroMQ; use WebLoader",
    "obsolete": INTERNAL,
    "safe_eval": "text is not run as code here; ast.literal_eval reads plain values",
    "set_options": "streams have no options to set; give them to gopen, for example ignore_status",
    "typecheck": INTERNAL,
}
"""Name → why it is left out. A test compares this list with the names of WebDataset."""

KEEP = "it does not load data; import it from speechbrain"
TENSORS = "it computes with a model's tensors; import it from speechbrain"
SCORES = "it is for scoring texts; import it from speechbrain"
THEIRS = "it is internal to SpeechBrain"

SPEECHBRAIN_LEFT_OUT: dict[str, dict[str, str]] = {
    "dataio": {
        "audio_io": "use read_audio, read_audio_info and write_audio",
        "encoder": KEEP,
        "legacy": "use DynamicItemDataset.from_csv",
        "preprocess": KEEP,
        "wer": SCORES,
    },
    "dataio.dataio": {
        "IterativeCSVWriter": "it writes an old manifest format; use csv.DictWriter",
        "append_eos_token": TENSORS,
        "convert_index_to_lab": SCORES,
        "extract_concepts_values": SCORES,
        "merge_char": SCORES,
        "prepend_bos_token": TENSORS,
        "read_kaldi_lab": "it runs a shell command; import it from speechbrain",
        "split_word": SCORES,
        "to_doubleTensor": "use torch.as_tensor(x).double()",
        "to_floatTensor": "use torch.as_tensor(x).float()",
        "to_longTensor": "use torch.as_tensor(x).long()",
        "write_stdout": "use print",
        "write_txt_file": "use pathlib.Path.write_text",
    },
    "dataio.dataloader": {
        "distributed_loader_specifics": "wrap the sampler: DistributedSamplerWrapper(sampler)",
    },
    "dataio.iterators": {"RatioIndex": THEIRS},
    "utils.data_pipeline": {"StaticItem": THEIRS},
    "utils.data_utils": {
        "concat_padded_features": TENSORS,
        "dict_value_combinations": KEEP,
        "dict_value_combinations_gen": KEEP,
        "dist_stats": TENSORS,
        "length_range": TENSORS,
        "masked_max": TENSORS,
        "masked_mean": TENSORS,
        "masked_min": TENSORS,
        "masked_std": TENSORS,
        "match_shape": TENSORS,
        "non_batch_dims": TENSORS,
        "pad_divisible": "use batch_pad_right(tensors, multiple_of=n)",
        "recursive_items": KEEP,
        "recursive_update": KEEP,
        "scalarize": TENSORS,
        "split_by_whitespace": "use str.split",
        "split_list": KEEP,
        "trim_as": TENSORS,
        "trim_to_shape": TENSORS,
        "unsqueeze_1d": TENSORS,
        "unsqueeze_as": TENSORS,
    },
}
"""Module of SpeechBrain → its names that are left out → why."""


def left_out_of(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of one of SpeechBrain's modules, for its names that are left out.

    >>> left_out_of("dataio.iterators")("RatioIndex")
    LeftOut('RatioIndex')
    """

    def look_up(name: str) -> LeftOut:
        reason = SPEECHBRAIN_LEFT_OUT[module].get(name)
        if reason is None:
            raise AttributeError(f"module 'penstock.{module}' has no attribute {name!r}")
        return LeftOut(name, reason)

    return look_up


_STAGES = (
    "Cached LMDBCached batched detshuffle extract_keys log_keys map map_dict map_tuple rename"
    " rename_keys rsample select shuffle slice to_tuple unbatched unlisted xdecode"
)
NOT_LOOKED_UP: dict[str, tuple[str, str]] = {
    "filters": (_STAGES, "pass the stage to the method compose, or to DataPipeline"),
    "gopen": (
        "Pipe gopen_schemes rewrite_url",
        "put a function into gopen_schemes, for example gopen_schemes['pipe'] = f",
    ),
    "shardlists": ("expand_urls", "pass a list of the shards"),
    "utils": ("pytorch_worker_info", "pass a function as nodesplitter= and workersplitter="),
}
"""Module → names that WebDataset's own code looks up there and penstock's does not; what to do."""


class WarningModule(types.ModuleType):
    """A module that warns if a program assigns to one of its names in ``NOT_LOOKED_UP``."""

    def __setattr__(self, name: str, value: Any) -> None:
        module = self.__name__.rpartition(".")[2]
        names, remedy = NOT_LOOKED_UP[module]
        if name in names.split():
            warnings.warn(
                f"penstock does not use what is assigned to webdataset.{module}.{name}: {remedy}",
                stacklevel=2,
            )
        super().__setattr__(name, value)


class LeftOut:
    """Placeholder for a name that is left out; calling it or reading an attribute raises.

    >>> LeftOut("gopen_hf")
    LeftOut('gopen_hf')
    >>> LeftOut("multi")()
    Traceback (most recent call last):
    penstock.errors.PipelineError: 'multi' is left out of penstock: its loaders need ZeroMQ; ...
    """

    def __init__(self, name: str, reason: str | None = None) -> None:
        self.name = name
        self.reason = LEFT_OUT[name] if reason is None else reason

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PipelineError(f"{self.name!r} is left out of penstock: {self.reason}")

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):  # Python looks these up on any object
            raise AttributeError(attribute)
        self()

    def __repr__(self) -> str:
        return f"LeftOut({self.name!r})"
