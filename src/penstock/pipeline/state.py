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
     "moved": True,                      only if the epoch was begun on another number of ranks
     "mixture": {…},                     the mixture that the pipeline reads, if there is one
     "versions": {"0.0": {…}},           the versions of indexed shards, files and lists
     "sampling": {"0": "batch_size=8, …"},  how loaders make batches, if there are any
     "orders": {"0": {"0": {…}}},        by rank: what decided their order as the epoch began
     "check": ["5b1d…", "data", …]}      a checksum, and what it covers; earlier versions: none
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

from penstock.context import Context
from penstock.errors import StateError
from penstock.pipeline.fingerprint import (
    SAMPLER,
    Tree,
    describe_sampling,
    find_difference,
    find_loaders,
    list_inside,
)
from penstock.stages.run import reading_state
from penstock.stages.tickets import pack_lists, unpack_lists

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


def sealed(state: StateDict) -> StateDict:
    """Return the state as users get it: with long lists of tickets packed, and a checksum."""
    return seal({**state, "state": pack_lists(state["state"])})


# ── checksum ────────────────────────────────────────────────────────────────────────────


def seal(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with its checksum, which names the parts that it covers.

    >>> seal({"epoch": 3, "given": 5})
    {'epoch': 3, 'given': 5, 'check': ['077617eee8372ba0', 'epoch', 'given']}
    """
    state = unsealed(state)
    return {**state, "check": _checksum(state, sorted(state))}


def unsealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without its checksum."""
    return {name: value for name, value in state.items() if name != "check"}


def edited(state: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a changed state, with a checksum if it had a matching one."""
    changed = {**state, **changes}
    return seal(changed) if "check" in state and _matches(state) else changed


def open_sealed(state: Any, what: str) -> dict[str, Any]:
    """Return a state without its checksum; raise :class:`StateError` if it does not match.

    ``what`` is what the state should be of. States of earlier versions have no checksum.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"this is not a state of {what}, but {type(state).__name__}")
    with reading_state():
        if "check" in state and not _matches(state):
            raise StateError(
                "the state is damaged, or was edited: its checksum does not match; load another "
                "checkpoint, or delete the key 'check' of a state that you edited yourself"
            )
    return unsealed(state)


def _matches(state: Mapping[str, Any]) -> bool:
    # Parts that a subclass or a trainer has added are not covered.
    check = state["check"]
    return isinstance(check, (list, tuple)) and list(check) == _checksum(state, check[1:])


def _checksum(state: Mapping[str, Any], covered: Sequence[str]) -> list[str]:
    # The text is the same for tuples and lists: states are saved as JSON, by pickle, and by torch.
    parts = {name: state[name] for name in covered if name in state}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return [hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), *covered]


# ── contents ────────────────────────────────────────────────────────────────────────────


def is_running(saved: StateDict) -> bool:
    """Return True if the state was saved inside an epoch: only then the lanes' states matter."""
    return saved["state"] is not None and not saved.get("complete")


PARTS = ("epoch", "seed", "stages", "data", "lanes", "ranks", "rank", "workers", "state")


def as_states(given: Any) -> list[StateDict]:
    """Return one state, or those of all ranks, as a list; raise :class:`StateError` otherwise."""
    states = [given] if isinstance(given, dict) else given
    if not isinstance(states, (list, tuple)) or not states:
        raise StateError("no state was given: load_state_dict takes one, or a list of all ranks'")
    return [_checked(state) for state in states]


def _checked(given: Any) -> StateDict:
    """Return one state without its checksum; raise StateError if it is damaged."""
    if not isinstance(given, dict) or "penstock" not in given:
        raise StateError("this is not a state of a penstock pipeline")
    if given["penstock"] != VERSION:
        return given  # check() refuses it
    if missing := set(PARTS) - given.keys():
        raise StateError(f"the state is damaged: {sorted(missing)} are missing")
    state: StateDict = open_sealed(given, "a penstock pipeline")
    if "check" in given and (added := _VALID.keys() & given.keys() - set(given["check"])):
        raise StateError(f"the state is damaged: {sorted(added)} were not in it when it was saved")
    for name, is_valid in _VALID.items():
        if name in state and not is_valid(state[name]):
            raise StateError(f"the state is damaged: {name} is {reprlib.repr(state[name])}")
    state["state"] = unpack_lists(state["state"])
    if state["rank"] is not None and not 0 <= state["rank"] < state["ranks"]:
        raise StateError(f"the state is damaged: it is of rank {state['rank']} of {state['ranks']}")
    return state


def _is_number(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_lanes(value: Any) -> bool:
    """Return whether a value can be the states of lanes; cut to a length:
    [passes, given, gave, lanes]."""
    if value is None:
        return True
    if isinstance(value, (list, tuple)):
        return len(value) == 4 and isinstance(value[3], dict) and _is_lanes(value[3])
    return isinstance(value, dict) and all(
        isinstance(lane, dict) and _is_number(lane.get("given")) and str(number).isdecimal()
        for number, lane in value.items()
    )


_VALID: dict[str, Callable[[Any], bool]] = {
    "epoch": lambda value: _is_number(value) and abs(value) < 1 << 40,
    "stages": lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value),
    "data": lambda value: isinstance(value, str),
    "lanes": lambda value: value is None or (_is_number(value) and value > 0),
    "ranks": lambda value: _is_number(value) and value > 0,
    "rank": lambda value: value is None or _is_number(value),
    "workers": lambda value: _is_number(value) and value > 0,
    "state": _is_lanes,
    "complete": lambda value: isinstance(value, bool),
    "moved": lambda value: isinstance(value, bool),
    "mixture": lambda value: isinstance(value, dict),
    "versions": lambda value: isinstance(value, dict),
    "sampling": lambda value: isinstance(value, dict),
    "orders": lambda value: isinstance(value, dict),
    "tree": lambda value: isinstance(value, dict),
}
"""What the parts of a state may be. Other parts are allowed, for later versions."""


def accept_changes(state: StateDict) -> StateDict:
    """Return a state without the versions of the data that it was saved with."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(part) for name, part in value.items() if name != "versions"}
        return [without(part) for part in value] if isinstance(value, (list, tuple)) else value

    accepted: StateDict = without(state)
    return accepted


def data_versions(stages: Sequence[Any], mixture: Any = None, prefix: str = "") -> dict[str, Any]:
    """Return the versions of the data that the stages read, by the source's place among them.

    ``mixture`` is the outermost one, which saves the versions of its sources itself.
    """
    found: dict[str, Any] = {}
    for number, stage in enumerate(stages):
        own: Any = {} if stage is mixture else getattr(stage, "data_versions", {})
        found |= {f"{prefix}{number}.{name}": version for name, version in own.items()}
        inside = list_inside(stage)
        if (turns := getattr(stage, "turns", None)) is not None:  # a mixture of streams
            named = dict(zip(stage.names, inside))
            # Sources of weight 0 are not opened.
            inside = [(name, named[name][1]) for name in turns.active]
        for place, inner in inside:
            found |= data_versions(inner, mixture, f"{prefix}{number}.{place.strip('.[]')}.")
    return found


def check_versions(saved: StateDict, stages: Sequence[Any], mixture: Any) -> None:
    """Raise :class:`StateError` if data has changed since a state was saved."""
    versions = saved.get("versions")
    if not versions:
        return
    for place, version in data_versions(stages, mixture).items():
        if place in versions:
            version.check(versions[place])


def save_orders(stages: Sequence[Any]) -> dict[str, Any]:
    """Return what decides the order of the next pass of the loaders among the stages."""
    found = {path: loader.save_order() for path, loader in find_loaders(stages)}
    return {path: order for path, order in found.items() if order}


def restore_orders(
    saved: StateDict, stages: Sequence[Any], rank: int, mid_epoch: bool = False
) -> None:
    """Set samplers and generators of loaders to what they were when the epoch of a state began, or
    would have been in the next one."""
    if orders := saved.get("orders"):
        own = orders.get(str(rank)) or next(iter(orders.values()))
        mid_epoch = mid_epoch and not _is_at_end(saved, stages)
        for path, loader in find_loaders(stages):
            if path in own:
                loader.restore_order(own[path], mid_epoch)


def _is_at_end(saved: StateDict, stages: Sequence[Any]) -> bool:
    """Return whether all batches of a pipeline that is only a loader had come, so that their order
    does not matter."""
    if len(stages) != 1 or not hasattr(stages[0], "sampling"):
        return False
    try:
        count = len(stages[0].loader)
    except TypeError:
        return False
    lanes = saved["state"]
    return isinstance(lanes, dict) and all(lane["given"] >= count for lane in lanes.values())


def check_sampling(saved: StateDict, stages: Sequence[Any], rank: int) -> None:
    """Raise :class:`StateError` if a loader makes other batches than in the running epoch of a
    state."""
    was = saved.get("sampling")
    if not isinstance(was, dict):  # of an earlier version
        return
    now = describe_sampling(stages)
    if not any(path.endswith(SAMPLER) for path in was):  # of an earlier version
        now = {path: text for path, text in now.items() if not path.endswith(SAMPLER)}
    if saved["rank"] != rank:  # ranks may have different generators
        was, now = (
            {path: text for path, text in one.items() if path.endswith(SAMPLER)}
            for one in (was, now)
        )
    if difference := find_difference(was, now):
        raise StateError(f"the state is of other batches: {difference}")


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
    if orders := {rank: one for state in states for rank, one in state.get("orders", {}).items()}:
        merged["orders"] = orders
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
