"""From a pipeline to the training loop, in time.

In comes a data set (:mod:`penstock.pipeline`), out come batches. ``webloader`` runs it in the
worker processes of torch's ``DataLoader``.
"""
