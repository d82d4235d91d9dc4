from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UrlError
from penstock.storage.urls import expand_braces


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("plain.tar", ["plain.tar"]),
        ("", [""]),
        ("s-{8..11}", ["s-8", "s-9", "s-10", "s-11"]),
        ("s-{08..11}", ["s-08", "s-09", "s-10", "s-11"]),
        ("s-{8..011}", ["s-008", "s-009", "s-010", "s-011"]),
        ("{0..10..5}", ["0", "5", "10"]),
        ("{0..9..5}", ["0", "5"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{3..0..2}", ["3", "1"]),
        ("{3..1..-1}", ["3", "2", "1"]),
        ("{1..2..0}", ["1", "2"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{-01..1}", ["-01", "000", "001"]),
        ("{a..e..2}", ["a", "c", "e"]),
        ("{c..a}", ["c", "b", "a"]),
        ("x{a,b,}y", ["xay", "xby", "xy"]),
        ("{a,b}{1..2}", ["a1", "a2", "b1", "b2"]),
        ("{a{1,2},b}", ["a1", "a2", "b"]),
        ("{a,{b,{c,d}}}", ["a", "b", "c", "d"]),
    ],
)
def test_groups_expand_as_in_a_shell(pattern, names):
    assert expand_braces(pattern) == names


@pytest.mark.parametrize(
    "pattern",
    [
        "a{b",
        "a}b",
        "{}",
        "{a}",
        "{1..a}",
        "{1..}",
        "{1.2}",
        "${X}",
        "${A,B}",
        "{{",
        "}{",
        "{1.5..2}",
    ],
)
def test_what_is_no_group_stays_as_it_is(pattern):
    assert expand_braces(pattern) == [pattern]


def test_braces_without_a_partner_do_not_hide_their_neighbours():
    assert expand_braces("{a{1,2}") == ["{a1", "{a2"]
    assert expand_braces("{1,2}}") == ["1}", "2}"]
    assert expand_braces("{x{1,2}}") == ["{x1}", "{x2}"]


def test_three_dots_are_taken_for_two():
    assert expand_braces("shard-00{00...24}.tar") == [f"shard-00{i:02d}.tar" for i in range(25)]


def test_a_group_with_blanks_can_be_left_alone():
    assert expand_braces("{a b,c}") == ["a b", "c"]
    assert expand_braces("{a b,c}{1,2}", blanks=False) == ["{a b,c}1", "{a b,c}2"]


@pytest.mark.parametrize("pattern", ["{0..999999999999999999}", "{0..9}" * 30, "{0..9}" * 5])
def test_too_many_names_are_an_error_before_any_is_made(pattern):
    with pytest.raises(UrlError, match="at most 1000 names"):
        expand_braces(pattern, max_urls=1e3)


def test_the_limit_itself_is_allowed():
    assert len(expand_braces("{0..99}", max_urls=100)) == 100


def test_fewer_of_longer_names_are_allowed():
    assert len(expand_braces("x" * 1024 + "{10..59}", max_urls=101)) == 50
    with pytest.raises(UrlError, match="at most 49 names"):
        expand_braces("x" * 1024 + "{10..59}", max_urls=100)
    assert len(expand_braces("x" * 100_000 + "{1..1}", max_urls=100)) == 1


def test_nesting_without_end_is_an_error():
    with pytest.raises(UrlError, match="nested"):
        expand_braces("{" * 5000 + "," + "}" * 5000)
    assert len(expand_braces("{" * 5000)) == 1
    assert len(expand_braces("{1..1}" * 5000)) == 1


@given(st.text(alphabet="{},.0123ab$ -", max_size=30))
def test_any_text_expands_or_is_an_error_of_ours(text):
    try:
        names = expand_braces(text, max_urls=1000)
    except UrlError:
        return
    assert 1 <= len(names) <= 1000


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash to compare with")
@settings(max_examples=5, deadline=None)
@given(st.data())
def test_nested_groups_equal_bash(data):
    group = st.recursive(
        st.sampled_from(["a", "b1", "{0..3}", "{01..3}", "{5..1..2}", "{c..a}", "{x,y}"]),
        lambda inner: st.lists(inner, min_size=2, max_size=3).map(
            lambda parts: "{" + ",".join(parts) + "}"
        ),
        max_leaves=5,
    )
    patterns = data.draw(
        st.lists(
            st.lists(group, max_size=3).map(lambda p: "p" + "".join(p)), min_size=1, max_size=20
        )
    )
    script = "\n".join(f"echo {pattern}" for pattern in patterns)
    lines = subprocess.run(
        ["bash"], input=script, text=True, capture_output=True, check=True
    ).stdout.splitlines()
    assert [" ".join(expand_braces(pattern)) for pattern in patterns] == lines
