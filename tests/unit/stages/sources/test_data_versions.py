"""Versions of data are compared by the kinds of content that both sides know."""

from __future__ import annotations

import pytest

from penstock.errors import StateError
from penstock.stages.sources.data_versions import DataVersion

NAMES = [f"{n}.tar" for n in range(200)]


def version(kind, changed=(), missing=(), times=(), place="here"):
    texts = [f"{kind} {n} {n in changed}" if n not in missing else "" for n in range(200)]
    return DataVersion(NAMES, {kind: texts}, times, place)


def test_a_changed_part_is_named_with_its_group():
    with pytest.raises(StateError, match=r"one of 71\.tar … 74\.tar has changed"):
        version("ends", changed={72}).check(version("ends").plain())


def test_other_kinds_of_content_are_not_compared():
    version("ends").check(version("checksum", changed={3}).plain())


def test_a_part_without_content_on_one_side_is_not_compared():
    version("ends", missing={3}).check(version("ends").plain())
    version("ends").check(version("ends", missing={3}).plain())
    with pytest.raises(StateError):
        version("ends", changed={90}).check(version("ends", missing={3}).plain())


def test_times_are_compared_only_in_the_same_place():
    saved = version("ends", times=["1"] * 200).plain()
    version("ends", times=["2"] * 200, place="there").check(saved)
    with pytest.raises(StateError):
        version("ends", times=["2"] * 200).check(saved)


def test_another_number_of_parts_is_refused():
    with pytest.raises(StateError, match="another number of parts"):
        DataVersion(["a"], {"ends": ["a"]}).check(version("ends").plain())
