"""Data sets from a manifest (JSON, CSV, Parquet): SpeechBrain's ``DynamicItemDataset``.

In comes a file or a dict of rows; out come samples by number, with items computed on demand.

    dynamic_item_dataset  the data set
    readers, json_stream, replacements    reading manifest files
    row_table, columns, worker_sharing    the rows as columns, which loader workers share
    items, item_pipeline, item_cache      computed items: declaring, ordering, caching them
    filtering             selecting and sorting samples
    dependency_graph, download_file, recipe_files    other SpeechBrain functions for recipes
"""
