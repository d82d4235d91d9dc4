"""Saved states: their contents, when they fit a pipeline, and how those of all ranks are merged.

A state is plain values, for JSON::

    {"penstock": 1,                      the format version of the state
     "epoch": 3,                         the epoch that is running, complete, or about to begin
     "seed": 0,
     "stages": ["SimpleShardList(…)", …],  the pipeline, to check that it is the same
     "data": "9f2c…",                    a fingerprint of the shards
     "lanes": 64, "ranks": 2, "rank": 0, "workers": 4,
     "state": {"0": {…}, "2": {…}},      the state of each lane of this rank; None: not begun
     "tree": {"0": …},                   all stages, also nested ones: see fingerprint.py
     "complete": True,                   only after the end of the epoch, until the next iter()
     "moved": True}                      only if the epoch was begun on another number of ranks
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from penstock.context import Context
from penstock.errors import StateError
from penstock.pipeline.fingerprint import Tree, find_difference

VERSION = 1
StateDict = dict[str, Any]


def fingerprint(sources: Sequence[Any]) -> str:
    """Return a short text that changes with the shards."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sources:
        digest.update(str(getattr(source, "fingerprint", None)).encode())
        for url in getattr(source, "urls", ()):
            digest.update(str(url).rsplit("/", 1)[-1].encode() + b"\0")
    return digest.hexdigest()


def make_state(
    context: Context,
    stages: list[str],
    data: str,
    lanes: int | None,
    state: Any,
    complete: bool = False,
    tree: Tree | None = None,
) -> StateDict:
    """Return the state of one process."""
    made = {
        "penstock": VERSION,
        "epoch": context.epoch,
        "seed": context.seed,
        "stages": stages,
        "tree": tree or {},
        "data": data,
        "lanes": lanes,
        "ranks": context.world_size,
        "rank": context.rank,
        "workers": context.num_workers,
        "state": state,
    }
    return {**made, "complete": True} if complete else made


def is_running(saved: StateDict) -> bool:
    """Return True if the state was saved inside an epoch: only then the lanes' states matter."""
    return saved["state"] is not None and not saved.get("complete")


PARTS = ("epoch", "seed", "stages", "data", "lanes", "ranks", "rank", "workers", "state")


def as_states(given: Any) -> list[StateDict]:
    """Return one state, or those of all ranks, as a list; raise :class:`StateError` otherwise."""
    states = [given] if isinstance(given, dict) else given
    if not isinstance(states, (list, tuple)) or not states:
        raise StateError("no state was given: load_state_dict takes one, or a list of all ranks'")
    for state in states:
        if not isinstance(state, dict) or "penstock" not in state:
            raise StateError("this is not a state of a penstock pipeline")
        if state["penstock"] == VERSION and (missing := set(PARTS) - state.keys()):
            raise StateError(f"the state is damaged: {sorted(missing)} are missing")
    return list(states)


def check(saved: Any, now: StateDict) -> None:
    """Raise :class:`StateError`, naming the difference, unless the saved state fits."""
    if not isinstance(saved, dict) or "penstock" not in saved:
        raise StateError("this is not a state of a penstock pipeline")
    if saved["penstock"] != VERSION:
        raise StateError(
            f"the state has format {saved['penstock']}, this version of penstock reads {VERSION}"
        )
    difference = find_difference(saved.get("tree"), now["tree"])
    if difference or not saved.get("tree"):
        _check_stages(saved, now)
    for what, meaning in (("data", "other shards"), ("seed", "another seed")):
        if saved[what] != now[what]:
            raise StateError(
                f"the state is of {meaning}: {what} was {saved[what]!r} and is {now[what]!r}"
            )
    if difference:
        raise StateError(f"the state is of another pipeline: {difference}")
    _check_lanes(saved, now)


def _check_stages(saved: StateDict, now: StateDict) -> None:
    """Compare the stages by the texts that states of all versions have."""
    for number, (was, is_now) in enumerate(zip(saved["stages"], now["stages"])):
        # Earlier versions wrote WebDataset_Length for a nested data set with a length.
        if was != is_now and was.replace("_Length", "", 1) != is_now:
            raise StateError(
                f"the state is of another pipeline: stage {number} was {was} and is {is_now}"
            )
    if len(saved["stages"]) != len(now["stages"]):
        longer = max(saved["stages"], now["stages"], key=len)
        extra = longer[min(len(saved["stages"]), len(now["stages"])) :]
        which = "more" if longer is now["stages"] else "fewer"
        raise StateError(f"the state is of another pipeline: this one has {which} stages: {extra}")


def _check_lanes(saved: StateDict, now: StateDict) -> None:
    if not is_running(saved):
        return
    if saved["lanes"] != now["lanes"]:
        raise StateError(
            f"the state has {saved['lanes']} lanes and this pipeline {now['lanes']}: "
            "use lanes=… as before"
        )
    if saved["lanes"] is None and (saved["ranks"], saved["workers"]) != (
        now["ranks"],
        now["workers"],
    ):
        raise StateError(
            f"the state is of {saved['ranks']} ranks with {saved['workers']} workers, this job has "
            f"{now['ranks']} with {now['workers']}: only a pipeline with lanes (an indexed data "
            "set, or lanes=…) can resume on other numbers"
        )
    if saved["lanes"] is not None and saved["lanes"] % now["ranks"]:
        raise StateError(
            f"the {saved['lanes']} lanes of the state cannot be shared by {now['ranks']} ranks: "
            f"their number must divide {saved['lanes']}"
        )
    if saved["rank"] is None or saved["ranks"] == 1:
        return
    if saved["ranks"] == now["ranks"] and saved["rank"] != now["rank"]:
        raise StateError(
            f"the state is of rank {saved['rank']}, this is rank {now['rank']}: each rank loads "
            "its own, or all load the list of all ranks' states"
        )
    check_whole(saved, now["ranks"])


def check_whole(saved: StateDict, ranks: int) -> None:
    """Raise :class:`StateError` if one rank's state would resume on another number of ranks."""
    part = saved["rank"] is not None and saved["ranks"] != 1 and is_running(saved)
    if part and saved["ranks"] != ranks:
        raise StateError(
            f"the state is of one of {saved['ranks']} ranks, this job has {ranks}: load the "
            "states of all ranks together, load_state_dict([state_of_rank_0, …])"
        )


def merge(states: Sequence[StateDict]) -> StateDict:
    """Return the states of all ranks as one, from which any number of ranks can resume.

    >>> one = {"penstock": 1, "epoch": 0, "ranks": 2, "rank": 0, "state": {"0": {"given": 3}}}
    >>> two = {**one, "rank": 1, "state": {"1": {"given": 3}}}
    >>> merge([one, two])["state"]
    {'0': {'given': 3}, '1': {'given': 3}}
    """
    if not states:
        raise StateError("no state was given: load_state_dict takes one, or a list of all ranks'")
    first = states[0]
    if len(states) == 1:
        return first
    found = sorted(state["rank"] for state in states)
    if found != list(range(first["ranks"])):
        raise StateError(
            f"the states of ranks {found} were given, but the job had {first['ranks']} ranks: "
            "pass each rank's once"
        )
    compared = ["penstock", "seed", "data", "lanes", "ranks"]
    for state in states:
        for what in compared if first.get("tree") else [*compared, "stages"]:
            if state.get(what) != first.get(what):
                raise StateError(
                    f"the ranks' states are not of one run: {what} is {first.get(what)!r} for rank "
                    f"{first['rank']} and {state.get(what)!r} for rank {state['rank']}"
                )
        if difference := find_difference(first.get("tree"), state.get("tree")):
            raise StateError(f"the ranks' states are not of one run: {difference}")
        if state["epoch"] != first["epoch"] or (state["state"] is None) != (first["state"] is None):
            raise StateError("the ranks' states are not of one moment: their epochs differ")
    merged = {**first, "rank": None, "state": _merge_parts([state["state"] for state in states])}
    if not all(state.get("complete") for state in states):
        merged.pop("complete", None)  # one rank has reached its end, others have not
    return merged


def _merge_parts(parts: list[Any]) -> Any:
    if parts[0] is None:
        return None
    if isinstance(parts[0], list):  # cut to a length: [passes, given, gave, lanes]
        if len({part[0] for part in parts}) > 1:
            raise StateError("the ranks' states are not of one moment: their passes differ")
        return [*parts[0][:3], _merge_parts([part[3] for part in parts])]
    return {lane: state for part in parts for lane, state in part.items()}
