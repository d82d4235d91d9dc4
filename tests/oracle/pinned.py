"""Cases that failed once, by what was wrong."""

from __future__ import annotations

from typing import Any

from oracle.cases import Case

UNEVEN: dict[str, Any] = {"kind": "indexed", "data": "uneven", "shuffle": 2}
THREE = {"kind": "streaming", "data": "three"}
FILTERED = {"source": {**UNEVEN, "ends": "drop"}, "rows": [["select"]]}

PINNED = {
    "planned batches on threads": Case(
        {"kind": "planned", "data": "uneven", "shuffle": 2, "budget": 40, "rows": [["slow"]]},
        engine="threads",
        workers=2,
    ),
    "planned batches on threads of worker processes": Case(
        {"kind": "planned", "data": "uneven", "shuffle": 2, "budget": 40, "rows": [["slow"]]},
        engine="processes",
        workers=2,
        threads=2,
    ),
    "StatefulDataLoader after one worker has ended": Case(
        THREE, engine="stateful", workers=2, stops=[[0, 0.9]]
    ),
    "StatefulDataLoader with lanes that the workers do not divide": Case(
        UNEVEN, lanes=3, engine="stateful", workers=2, stops=[[0, 0.98]]
    ),
    "StatefulDataLoader without workers, saved after an epoch": Case(
        UNEVEN, engine="stateful", stops=[[0, 2]]
    ),
    "set_epoch with persistent workers of a fork server": Case(
        UNEVEN,
        engine="processes",
        workers=1,
        start="forkserver",
        persistent=True,
        epochs=[0, 3],
        stops=[[1, 0.5]],
    ),
    "ends='drop' after a random mix": Case(
        {"kind": "random_mix", "parts": [FILTERED, {"source": UNEVEN}], "longest": False},
        last=["listed", 2, True],
        ranks=3,
    ),
    "ends='drop' after a filter in a round robin": Case(
        {"kind": "round_robin", "parts": [FILTERED, FILTERED]}, last=["listed", 2, True], ranks=3
    ),
    "ends='pad' after a filter in a nested pipeline": Case(
        {"kind": "nested", "parts": [{**FILTERED, "source": {**UNEVEN, "ends": "pad"}}]},
        last=["listed", 2, True],
        ranks=3,
    ),
    "the default of ends after a filter in a nested pipeline": Case(
        {"kind": "nested", "parts": [{**FILTERED, "source": UNEVEN}]},
        last=["listed", 2, True],
        ranks=3,
    ),
    "a generator that returns its last items late, after unlisted": Case(
        THREE, rows=[["listed", 3, True], ["delayed"], ["shuffle", 4, 2, None]]
    ),
    "a generator that returns its last items late, after unbatched": Case(
        THREE, rows=[["batched", 3, True], ["delayed"], ["listed", 4, True]]
    ),
    "a generator in a loader with lanes, moved to other ranks": Case(
        UNEVEN, rows=[["delayed"]], lanes=4, ranks=2, engine="processes", workers=2, move=4
    ),
    "resampled shards of which nothing is left": Case(
        {"kind": "resampled", "data": "even"}, rows=[["select_none"]], length=5
    ),
    "repeated shards of which nothing is left": Case(
        {"kind": "repeated", "data": "even"}, rows=[["select_none"]], length=5
    ),
    "a user's Each that leaves out items": Case(
        {**UNEVEN, "shuffle": 0}, rows=[["dropping"]], last=["listed", 3, True]
    ),
    "a nested pipeline with lanes and an epoch of fixed length": Case(
        {"kind": "nested", "parts": [{"source": THREE, "length": 5}]}, lanes=3, length=9
    ),
    "a nested pipeline whose repeat has ended": Case(
        {"kind": "nested", "parts": [{"source": {"kind": "list"}, "rows": [["repeat", 1, -1]]}]},
        rows=[["shuffle", 4, 2, None]],
        stops=[[0, 0.9]],
    ),
    "a pass of repeat that has nothing for one lane": Case(
        {"kind": "indexed", "data": "gaps", "shuffle": 2},
        rows=[["copying", 3], ["repeat", 3, -1]],
        lanes=6,
    ),
    "random numbers of a generator's last items on threads": Case(
        {"kind": "streaming", "data": "one"},
        rows=[["slow"], ["delayed"], ["noisy"]],
        engine="threads",
        workers=1,
        epochs=list(range(12)),
    ),
    "len() of a loader over planned batches, at a later epoch": Case(
        {"kind": "planned", "data": "gaps", "shuffle": 2, "ends": "pad", "budget": 44},
        engine="threads",
        workers=3,
        epochs=[2, 3],
    ),
    "a pass of repeat in which a lane has no sample of a mixture of streams": Case(
        {
            "kind": "mix",
            "parts": [
                {"source": {"kind": "streaming", "data": "gaps", "shuffle": 3}},
                {"source": {"kind": "streaming", "data": "one"}},
            ],
        },
        rows=[["repeat", 3, -1]],
        lanes=3,
    ),
}
