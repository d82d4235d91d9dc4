"""Streams of this machine, opened through ``penstock.storage.schemes``.

- ``files``: files and devices, written atomically; ``pipes``: ``pipe:COMMAND``; ``stdio``: ``-``.
- ``file_locks``: the locks by which processes of a machine share files.
"""
