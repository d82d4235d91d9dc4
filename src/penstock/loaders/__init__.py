"""Loaders: run a data set ahead of the training loop.

In comes a data set (:mod:`penstock.pipeline`, or a map-style one), out come batches, on the device
if asked. Work on threads is done by :mod:`penstock.engine`.

    webloader            WebLoader: a pipeline in worker processes or on threads, with a state
    options              WebLoader's arguments, and which engine runs them
    measuring, unsplit   how engine="auto" decides; sources that every worker would repeat
    batch_order          what decides the order of a map-style loader's batches, for its state
    thread_loader        the loader on threads
    worker_state         items that carry the state of their lane from a worker to the loader
    to_tensors           arrays to tensors, as torch's loader converts them
    small_tensors        small tensors are sent from worker processes by value
    saveable_dataloader  torch's DataLoader for map-style data sets, with a state
    looped_loader        an endless loader in epochs of a fixed number of batches
    speechbrain          hooks for SpeechBrain's Checkpointer and Brain
    device/              copies batches to the device ahead of the training step
    stats/               measurements of a running loader, and their export
"""
