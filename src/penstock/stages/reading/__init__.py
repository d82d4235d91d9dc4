"""Stages that turn shards into samples.

``tar_samples`` reads tar files, ``record_files`` files of CBOR or MessagePack records;
``open_ahead`` opens the next shard early. ``shard_versions`` refuses shards that have changed since
a state was saved.
"""
