"""Plans batches of similar length before anything is read.

Lengths come from an index or a manifest. ``batch_plan`` makes the plan, with ``length_pools`` (the
order that batches are cut from), ``length_levels`` (few padded shapes), ``rank_balance`` (the order
of batches, equal numbers for ranks) and ``cost``; ``planned_samples`` reads indexed shards by it.
``length_outliers`` reports samples that are far longer than the others.
"""
