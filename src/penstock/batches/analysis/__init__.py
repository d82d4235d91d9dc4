"""Reports on padding and shuffling of any sampler, plan or loader, and searches for a budget.

``padding_report`` (with ``batch_lengths`` and ``charts``), ``shuffle_quality``, and ``find_budget``
(with ``peak_memory``).
"""
