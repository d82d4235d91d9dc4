"""Stages that turn shards into samples.

``tar_samples`` reads tar files, ``record_files`` files of CBOR or MessagePack records;
``open_ahead`` opens the next shard early.
"""
