"""Stages: what happens to a stream of samples, one file per kind of stage.

Samples come as :mod:`penstock.shards` reads them, values as :mod:`penstock.codecs` decodes them;
the samples go to :mod:`penstock.batches`. ``stage`` explains the model: stages are values, and a
``run`` is a stage at work.

    sources/         which shards or samples, in which order, for which rank and worker; mixtures
    reading/         tar_samples record_files open_ahead: shards → samples
    shuffle select rename associate map decode to_tuple field_names: order, choice, change
    repeat sample_cache cache_files inspect: several passes, kept samples, printed samples
    stage run segment together drop_guard: what all stages are built from
    tickets: many tickets as one short text, for states
    iterable_dataset accelerate_warnings: how torch and Accelerate see our data sets
"""
