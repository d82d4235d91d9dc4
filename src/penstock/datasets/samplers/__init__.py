"""Samplers and batch samplers for torch's ``DataLoader``, each with epochs and a state.

base             an order per epoch, with a state
reproducible     random and weighted orders, as torch draws them
chunked          orders that read an indexed data set chunk by chunk
dynamic_batch    SpeechBrain's DynamicBatchSampler; its buckets in bucket_boundaries
planned_batch    PlannedBatchSampler: batches of similar length, planned before reading
combined         samplers made from other samplers
"""
