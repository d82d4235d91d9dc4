"""Map-style data sets (samples by number, for torch's ``DataLoader``) and synthetic data.

In come manifests, or shards with an index; out come samples by number, and orders to read them in.
It imports the loaders and everything before them; the command line uses it.

    indexed_dataset   IndexedDataset: the samples of indexed shards by number
    memory_reader     memory="ram": the shards in memory that all processes share (shared_bytes)
    image_folder      ImageFolder: folders of images, a folder for each class
    map_samples       MapSamples: any map-style data set as the source of a pipeline
    make_dataloader   the right loader for a data set
    synthetic         generated images and sounds
    manifests/        DynamicItemDataset: rows of JSON, CSV or Parquet files, with computed items
    samplers/         orders and batches: the sampler= and batch_sampler= of a loader
"""

from __future__ import annotations

from penstock.datasets.synthetic import SHAPES, WORDS, drawn_images, spoken_tones

__all__ = ["SHAPES", "WORDS", "drawn_images", "spoken_tones"]
