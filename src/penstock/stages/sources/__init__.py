"""Sources: lists of shards, samples of an index, mixtures; and the stages that split them.

Shards, for the stages of ``reading``:

    shard_list         a list of shards
    resampled_shards   shards drawn with replacement
    directory_queue    shards that are added to a folder while it is read
    split              assigns shards to ranks and workers

Samples, read by an index:

    indexed_samples    the samples of indexed shards
    epoch_order        their order in an epoch
    data_versions      the version of their data, saved in a state

Mixtures, which :func:`penstock.mix` makes:

    mixture_definition  the sources and their weights, as saved in a state
    mixed_samples       indexed data sets, mixed before anything is read
    mix_plan            position in the mixture → source, and the number of its sample
    mixed_order         position in the epoch → row
    mixed_reader        row → sample
    read_ahead          reads small samples ahead, shard by shard
    source_stages       the stages that apply only to the samples of one source
    stream_mix          data sets without an index, mixed while they are read
    mix                 WebDataset's RoundRobin and RandomMix
"""
