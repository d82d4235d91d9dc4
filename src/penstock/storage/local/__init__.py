"""Streams of this machine, opened through ``penstock.storage.schemes``.

- ``files``: files and devices, written atomically; ``pipes``: ``pipe:COMMAND``; ``stdio``: ``-``.
- ``open_folder``: a folder that is held open, for files whose names come from data.
- ``scratch_folder``: temporary folders that the next process deletes if theirs was killed.
- ``walk``: the files below a folder, also through links.
- ``file_locks``: the locks by which processes of a machine share files.
"""
