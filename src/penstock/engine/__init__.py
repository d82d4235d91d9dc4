"""Runs consecutive per-sample stages on threads, in order, with exact states.

segment_run   the run of such stages: reads ahead, and yields results in the source's order
job           a chunk of items, processed by one thread
applying      applies the stages to the items of a chunk
executor      the threads of a loader, and how far ahead they may be
engine        the interface between a segment run and the threads
checkpoints   periodic checkpoints of the source's state
item_cost     measures items, to choose the number of threads and the size of chunks
observer      what the loader's statistics are told, per chunk or batch
"""
