"""List the files below a folder, also through links to folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator


def walk_links(
    root: str,
    *,
    onerror: Callable[[OSError], object] | None = None,
    onloop: Callable[[str], object] | None = None,
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as ``os.walk`` does, also through links to folders.

    A link to the folder that it is in, or to one above, is not followed, because it would never
    end; ``onloop`` is called with its path.
    """
    for folder, folders, files in os.walk(root, onerror=onerror, followlinks=True):
        loops = {name for name in folders if _leads_back(os.path.join(folder, name), root)}
        folders[:] = [name for name in folders if name not in loops]
        if onloop is not None:
            for name in sorted(loops):
                onloop(os.path.join(folder, name))
        yield folder, folders, files


def _leads_back(path: str, root: str) -> bool:
    """Return whether a link leads to a folder that it was found in, or to one that holds it."""
    if not os.path.islink(path):
        return False
    target = os.path.join(os.path.realpath(path), "")
    while len(path) > len(root):
        path = os.path.dirname(path)
        if os.path.join(os.path.realpath(path), "").startswith(target):
            return True
    return False
