"""Every name of WebDataset, and of SpeechBrain's data modules, resolves here.

To something that works, or to a clear refusal.
"""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys

import pytest

import penstock as wds
from penstock.compat.left_out import LEFT_OUT, SPEECHBRAIN_LEFT_OUT, LeftOut
from penstock.errors import PipelineError

TOP = """
    Cached Continue DataPipeline Decoder DecodingError FluidInterface FluidWrapper LMDBCached
    LRUCleanup MockDataset MultiShardSample PipelineStage RandomMix ResampledShards RoundRobin
    ShardWriter SimpleShardList TarWriter WebDataset WebLoader __version__ associate batched decode
    detshuffle extract_keys getfirst gopen gopen_schemes gzfilter handle_extension
    ignore_and_continue ignore_and_stop imagehandler info map map_dict map_tuple non_empty
    numpy_dumps pipe_cleaner pipelinefilter pytorch_weights_only rename rename_keys repeatedly
    reraise_exception resampled rsample select shardspec shuffle single_node_only slice
    split_by_node split_by_worker tarfile_samples tarfile_to_samples to_tuple torch_audio
    torch_dumps torch_loads torch_video transform_with unbatched warn_and_continue warn_and_stop
    with_epoch with_length xdecode
"""
"""Version 1.0.2, at the top."""

OLDER = """
    Dataset Processor Composable Shorthands url_opener tar_file_iterator tar_file_expander
    group_by_keys DBCache Curried stage PytorchShardList ShardList ChoppedDataset ResizedDataset
    transformer MultiDataset SampleIterator Pipeline all_urls worker_urls default_handlers
    ignore_exception warn_exception cached_tarfile_samples cached_tarfile_to_samples lru_cleanup
    maybe_cached_tarfile_to_samples cbors_to_samples cbors2_to_samples ResampledShardList
"""
"""Earlier versions, at the top."""

MODULES = {
    "autodecode": """Continue Decoder DecodingError IMAGE_EXTENSIONS ImageHandler basichandlers
        call_extension_handler cbor_loads decoders default_decoder default_post_handlers
        default_pre_handlers gzfilter handle_extension imagehandler imagespecs msgpack_loads
        npy_loads npz_loads pytorch_weights_only tenbin_loads torch_audio torch_loads torch_video
        unpickle_loads""",
    "cache": """FileCache LRUCleanup StreamingOpen check_tar_format default_cache_dir
        default_cache_size download get_filetype islocal magic_filetype pipe_cleaner
        url_to_cache_name verbose_cache""",
    "cborsiterators": "cbors_to_samples cbors2_to_samples",
    "compat": "FluidInterface FluidWrapper WebDataset WebLoader check_empty",
    "composable": "Composable Processor Shorthands",
    "dbcache": "DBCache",
    "extradatasets": "MockDataset PipelineStage repeatedly with_epoch with_length",
    "filters": """Cached FilterFunction LMDBCached PipelineStage RestCurried _associate _batched
        _decode _extract_keys _info _log_keys _map _map_dict _map_tuple _rename _rename_keys
        _rsample _select _shuffle _to_tuple _unbatched _unlisted _xdecode associate batched
        combine_values
        compose compose2 decode decode_bin decode_pickle decode_text default_collation_fn
        default_decoders detshuffle dict2tuple extract_keys find_decoder getfirst identity info
        log_keys map map_dict map_tuple parse_field_spec pick pipeline pipelinefilter rename
        rename_keys reraise_exception rsample select shuffle to_tuple transform_with tuple2dict
        unbatched unlisted xdecode slice""",
    "fluid": "Dataset WebDataset",
    "gopen": """PIPE Pipe gopen gopen_ais gopen_curl gopen_error gopen_file gopen_gsutil gopen_hf
        gopen_htgs gopen_pipe gopen_schemes info reader rewrite_url set_options""",
    "handlers": """ignore_and_continue ignore_and_stop reraise_exception warn_and_continue
        warn_and_stop""",
    "mix": "RandomMix RoundRobin random_samples round_robin_longest round_robin_shortest",
    "pipeline": "DataPipeline PipelineStage",
    "pytorch": "DataLoader IterableDataset TorchTensor",
    "shardcache": "CacheStream cache_shards",
    "shardlists": """DirectoryShardList MSSource MultiShardSample ResampledShardList
        ResampledShards SimpleShardList check_pid_is_running envlookup envsubst expand
        expand_source expand_urls get_pid_from_filename non_empty pipelinefilter resampled
        resampled_ shardspec single_node_only split_by_node split_by_worker
        without_last_extension""",
    "tariterators": """base_plus_ext group_by_keys meta_prefix meta_suffix shardlist
        tar_file_expander tar_file_iterator tarfile_samples tarfile_to_samples trace url_opener
        valid_sample""",
    "tenbin": """bytedata bytelen check_acceptable_input_type check_infos decode_buffer
        decode_chunks decode_header decode_list encode_buffer encode_chunks encode_header
        encode_list load long_to_short magic magic_bytes magic_str read read_chunk roundup save
        short_to_long str64 unstr64 write write_chunk""",
    "utils": """ObsoleteException PipelineStage compute_sample_weights deprecated enforce_security
        fnmatch_with_braces glob_with_braces guess_batchsize identity is_iterable lookup_sym
        make_seed obsolete pytorch_worker_info pytorch_worker_seed repeatedly repeatedly0
        safe_eval""",
    "writer": """ShardWriter TarWriter gopen add_handlers bytestr cbor_dumps default_handlers
        encode_based_on_extension encode_based_on_extension1 imageencoder make_encoder
        make_handlers mp_dumps numpy_dumps numpy_npz_dumps tenbin_dumps torch_dumps""",
}

GONE = {
    "bench",
    "checks",
    "dataset",
    "downloader",
    "dsspecs",
    "iterators",
    "multi",
    "typecheck",
}
"""Submodules that are left out as a whole."""

NOT_THERE = {"add_length_method": "pipeline is a folder of the library's own"}
"""Names that do not even resolve in their submodule, and why."""


@pytest.mark.parametrize("name", (TOP + OLDER).split())
def test_a_name_at_the_top_of_any_version_resolves(name):
    assert getattr(wds, name) is not None


@pytest.mark.parametrize("module", MODULES)
def test_a_submodule_has_its_names_by_every_way_of_import(module):
    imported = importlib.import_module(f"penstock.{module}")
    for name in MODULES[module].split():
        assert hasattr(imported, name), name
        assert hasattr(getattr(wds, module), name), name


DIFFERENT = {
    ("extradatasets", "repeatedly"),
    ("gopen", "gopen"),
    ("gopen", "info"),
    ("writer", "gopen"),
}
"""Names that mean one thing at the top and another in a submodule, as in WebDataset."""


def test_the_names_at_the_top_and_in_the_submodules_are_the_same_things():
    for module in MODULES:
        for name in set(MODULES[module].split()) & set(TOP.split()):
            ours, theirs = getattr(wds, name), getattr(getattr(wds.compat, module), name)
            if (module, name) not in DIFFERENT and not isinstance(ours, LeftOut):
                assert theirs is ours, (module, name)


def test_what_is_left_out_is_exactly_the_list():
    known = {name for names in MODULES.values() for name in names.split()}
    known |= {*TOP.split(), *OLDER.split(), *GONE, *NOT_THERE, "construct_dataset"}
    assert set(LEFT_OUT) <= known
    for module, names in MODULES.items():
        for name in names.split():
            value = getattr(importlib.import_module(f"penstock.{module}"), name)
            assert isinstance(value, LeftOut) == (name in LEFT_OUT), name


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_a_name_that_is_left_out_says_why_when_it_is_used(name):
    value = getattr(wds, name)
    for use in (lambda: value("x", y=1), lambda: value.anything):
        with pytest.raises(PipelineError, match=f"'{name}' is left out of penstock: ....."):
            use()


def test_a_name_of_no_version_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        wds.nonsense
    assert not hasattr(wds, "nonsense")
    assert not hasattr(wds.compat, "nonsense")


@pytest.mark.parametrize(
    "order",
    [
        "import penstock; f = penstock.gopen; from penstock.gopen import rewrite_url",
        "from penstock.gopen import rewrite_url; import penstock; f = penstock.gopen",
        "import penstock.gopen; from penstock import gopen as f; from penstock.gopen import Pipe",
    ],
)
def test_gopen_is_a_function_and_a_module_in_any_order_of_import(order):
    program = f"""
{order}
import penstock, pickle
for opener in (f, penstock.gopen, pickle.loads(pickle.dumps(penstock.gopen))):
    with opener("pipe:echo hello") as stream:
        assert stream.read() == b"hello\\n"
assert penstock.gopen.__name__
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_penstock_loads_no_older_names():
    program = "import sys, penstock; assert not [m for m in sys.modules if 'compat' in m]"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_star_import_brings_the_public_names():
    space: dict[str, object] = {}
    exec("from penstock import *", space)
    assert {"WebDataset", "shuffle", "TarWriter", "map"} <= set(space)


def test_stages_of_the_filters_module_can_be_pickled():
    for name in ("_shuffle", "_map", "_batched"):
        copy = pickle.loads(pickle.dumps(getattr(wds.filters, name)))
        assert repr(copy) == name


SPEECHBRAIN = {
    "dataio": """audio_io batch dataio dataloader dataset encoder iterators legacy preprocess
        sampler wer""",
    "dataio.batch": "BatchsizeGuesser PaddedBatch PaddedData",
    "dataio.dataio": """IterativeCSVWriter append_eos_token clean_padding clean_padding_
        convert_index_to_lab extract_concepts_values get_md5 length_to_mask load_data_csv
        load_data_json load_pickle load_pkl merge_char merge_csvs prepend_bos_token read_audio
        read_audio_info read_audio_multichannel read_kaldi_lab relative_time_to_absolute save_md5
        save_pkl split_word to_doubleTensor to_floatTensor to_longTensor write_audio write_stdout
        write_txt_file""",
    "dataio.dataloader": """LoopedLoader SaveableDataLoader distributed_loader_specifics
        make_dataloader""",
    "dataio.dataset": """DynamicItemDataset FilteredSortedDynamicItemDataset add_dynamic_item
        apply_overfit_test set_output_keys""",
    "dataio.iterators": """LengthItem RatioIndex dynamic_bucketed_batch indices_around_random_pivot
        padding_ratio total_length_with_padding""",
    "dataio.sampler": """BalancingDataSampler ConcatDatasetBatchSampler DistributedSamplerWrapper
        DynamicBatchSampler ReproducibleRandomSampler ReproducibleWeightedRandomSampler""",
    "utils.data_pipeline": """CachedDynamicItem DataPipeline DependencyGraph DynamicItem
        GeneratorDynamicItem StaticItem provides takes""",
    "utils.data_utils": """batch_pad_right batch_shuffle concat_padded_features
        dict_value_combinations dict_value_combinations_gen dist_stats download_file get_all_files
        get_list_from_csv length_range masked_max masked_mean masked_min masked_std match_shape
        mod_default_collate non_batch_dims pad_divisible pad_right_to recursive_items recursive_to
        recursive_update scalarize set_writing_permissions split_by_whitespace split_list split_path
        trim_as trim_to_shape undo_padding unsqueeze_1d unsqueeze_as""",
    "utils.depgraph": "CircularDependencyError DGNode DependencyGraph",
}
"""Version 1.1.2: the modules that are about data, and the names that they define."""


@pytest.mark.parametrize("module", SPEECHBRAIN)
def test_a_data_module_of_speechbrain_has_its_names(module):
    pytest.importorskip("torch")
    imported = importlib.import_module(f"penstock.{module}")
    refused = SPEECHBRAIN_LEFT_OUT.get(module, {})
    for name in SPEECHBRAIN[module].split():
        assert isinstance(getattr(imported, name), LeftOut) == (name in refused), name
    for name in refused:
        with pytest.raises(PipelineError, match=f"'{name}' is left out of penstock: ....."):
            getattr(imported, name)("x", y=1)
    assert not hasattr(imported, "nonsense")


FORMER_PATHS = """
    datasets.drawn_images index.build_index storage.cache.ShardCache storage.keys.use_keys
    storage.patience.Patience transforms.images.ImageTransform transforms.plan.resized
    transforms.crop_plan.resized transforms.rows.empty testing.codecs.CodecContract
    testing.stages.StageContract
"""
"""What the manual of earlier versions imported by its path."""


@pytest.mark.parametrize("path", FORMER_PATHS.split())
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_paths_of_earlier_manuals_still_lead_to_their_names(path):
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(f"penstock.{module}"), name)
