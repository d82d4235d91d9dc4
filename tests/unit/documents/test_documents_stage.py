"""The stage documents: where images go, what is filtered, what is left out."""

from __future__ import annotations

import itertools
import json
import logging

import made
import numpy as np
import pytest

import penstock as wds
from penstock.documents import ImagePiece, TextPiece, documents
from penstock.documents.assign import assign_optimal
from penstock.errors import DecodingError, PipelineError, SampleError


def read(*samples, **options):
    return list(documents(**options)(list(samples)))


def shape(document):
    """The pieces in short: texts, and the names of images."""
    return [p.text if isinstance(p, TextPiece) else p.name for p in document.pieces]


IMAGES = {"x.jpg": b"x", "y.jpg": b"y", "z.jpg": b"z"}


def test_images_are_sorted_by_their_sentence_and_then_by_their_place():
    images = [("x.jpg", 1, 0.5), ("y.jpg", 0, 0.5), ("z.jpg", 1, 0.5)]
    one = made.sample(images=images, **IMAGES)
    assert shape(read(one)[0]) == ["y.jpg", "A", "x.jpg", "z.jpg", "B"]
    assert shape(read(one, place="after")[0]) == ["A", "y.jpg", "B", "x.jpg", "z.jpg"]


def test_names_are_matched_without_regard_to_case_and_ending():
    one = made.sample(images=[("dir/X.PNG", 0, None), ("Y.jpeg", 0, None)], **IMAGES)
    assert [image.data for image in read(one)[0].images] == [b"x", b"y"]


def test_best_takes_the_most_similar_sentence():
    matrix = [[0.1, 0.3], [0.2, 0.4]]
    one = made.sample(images=[("x.jpg", 0, 0.9), ("y.jpg", 0, 0.9)], matrix=matrix, **IMAGES)
    (document,) = read(one, assign="best")
    assert shape(document) == ["A", "x.jpg", "y.jpg", "B"]
    assert [image.similarity for image in document.images] == [0.3, 0.4]


def test_optimal_gives_each_sentence_one_image_at_most():
    matrix = [[0.3, 0.35], [0.1, 0.4], [0.2, 0.2]]
    images = [("x.jpg", 0, 0.9), ("y.jpg", 0, 0.9), ("z.jpg", 0, 0.9)]
    (document,) = read(made.sample(images=images, matrix=matrix, **IMAGES), assign="optimal")
    assert shape(document) == ["x.jpg", "A", "y.jpg", "B"]
    assert [image.similarity for image in document.images] == [0.3, 0.4]


def test_an_optimal_assignment_has_the_largest_sum():
    rng = np.random.default_rng(0)
    for _ in range(60):
        rows, columns = rng.integers(1, 6, 2)
        matrix = rng.normal(size=(rows, columns))
        found = assign_optimal(matrix)
        pairs = [(row, match[0]) for row, match in enumerate(found) if match is not None]
        assert len(pairs) == len({column for _, column in pairs}) == min(rows, columns)
        if rows <= columns:
            choices = [
                list(enumerate(c)) for c in itertools.permutations(range(columns), int(rows))
            ]
        else:
            choices = [
                [(r, c) for c, r in enumerate(p)]
                for p in itertools.permutations(range(rows), int(columns))
            ]
        best = max(sum(matrix[r, c] for r, c in choice) for choice in choices)
        assert sum(matrix[r, c] for r, c in pairs) == pytest.approx(best)


def test_an_optimal_assignment_agrees_with_scipy():
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(1)
    for rows, columns in ((3, 40), (40, 3), (30, 30), (1, 1), (200, 300)):
        matrix = rng.normal(size=(rows, columns))
        wanted = optimize.linear_sum_assignment(-matrix)
        found = [(r, m[0]) for r, m in enumerate(assign_optimal(matrix)) if m is not None]
        assert found == list(zip(*(side.tolist() for side in wanted)))


def test_images_below_the_threshold_are_dropped():
    images = [("x.jpg", 0, 0.2), ("y.jpg", 1, 0.3), ("z.jpg", 1, None)]
    one = made.sample(images=images, **IMAGES)
    assert shape(read(one, threshold=0.25)[0]) == ["A", "y.jpg", "B"]


def test_an_image_without_a_similarity_reaches_no_threshold_above_zero():
    one = made.sample(images=[("x.jpg", 0, None)], **IMAGES)
    assert shape(read(one)[0]) == ["x.jpg", "A", "B"]
    assert shape(read(one, threshold=-1)[0]) == ["x.jpg", "A", "B"]
    assert shape(read(one, threshold=0.01)[0]) == ["A", "B"]


def test_further_images_are_dropped_in_reading_order():
    images = [("x.jpg", 1, 0.5), ("y.jpg", 0, 0.5), ("z.jpg", 1, 0.5)]
    assert shape(read(made.sample(images=images, **IMAGES), max_images=2)[0]) == [
        *("y.jpg", "A", "x.jpg", "B")
    ]


def test_a_document_ends_after_so_many_characters():
    images = [("x.jpg", 0, 0.5), ("y.jpg", 2, 0.5)]
    one = made.sample(["Hello", "world", "!"], images, **IMAGES)
    assert shape(read(one, max_text=7)[0]) == ["x.jpg", "Hello", "wo"]
    assert shape(read(one, max_text=10)[0]) == ["x.jpg", "Hello", "world", "y.jpg"]
    assert shape(read(one, max_text=0)[0]) == ["x.jpg"]
    assert read(one, max_text=7, min_images=2) == []


def test_documents_with_too_few_images_are_dropped():
    none = made.sample(key="a")
    one = made.sample(images=[("x.jpg", 0, 0.1)], key="b", **IMAGES)
    assert [d.key for d in read(none, one)] == ["a", "b"]
    assert [d.key for d in read(none, one, min_images=1)] == ["b"]
    assert read(one, min_images=1, threshold=0.2) == []


def test_empty_texts_are_no_pieces():
    assert shape(read(made.sample(["", "A", ""]))[0]) == ["A"]


MATRIX = [[0.1, 0.2]]
DEFECTS = {
    "missing": (made.sample(images=[("x.jpg", 0, 0.5)]), {}),
    "no index": (made.sample(images=[("x.jpg", None, 0.5)], **IMAGES), {}),
    "index too large": (made.sample(images=[("x.jpg", 2, 0.5)], **IMAGES), {}),
    "index a bool": (made.sample(images=[("x.jpg", True, 0.5)], **IMAGES), {}),
    "similarity a text": (made.sample(images=[("x.jpg", 0, "0.5")], **IMAGES), {}),
    "similarity NaN": (made.sample(images=[("x.jpg", 0, float("nan"))], **IMAGES), {}),
    "no matrix": (made.sample(images=[("x.jpg", 0, 0.5)], **IMAGES), {"assign": "best"}),
    "matrix with NaN": (
        made.sample(images=[("x.jpg", 0, 0.5)], matrix=[[0.1, float("nan")]], **IMAGES),
        {"assign": "optimal"},
    ),
    "matrix with infinity": (
        made.sample(images=[("x.jpg", 0, 0.5)], matrix=[[0.1, float("inf")]], **IMAGES),
        {"assign": "best"},
    ),
    "matrix of another shape": (
        made.sample(images=[("x.jpg", 0, 0.5)], matrix=[[0.1], [0.2]], **IMAGES),
        {"assign": "best"},
    ),
    "ragged matrix": (
        made.sample(images=[("x.jpg", 0, 0.5)], matrix=[[0.1, 0.2], [0.1]], **IMAGES),
        {"assign": "best"},
    ),
    "matrix of texts": (
        made.sample(images=[("x.jpg", 0, 0.5)], matrix=[["a", "b"]], **IMAGES),
        {"assign": "best"},
    ),
    "matrix of numbers as texts": (
        made.sample(images=[("x.jpg", 0, 0.5)], matrix=[["0.1", "0.2"]], **IMAGES),
        {"assign": "best"},
    ),
    "matrix with null": (
        made.sample(images=[("x.jpg", 0, 0.5)], matrix=[[0.1, None]], **IMAGES),
        {"assign": "optimal"},
    ),
    "decoded already": (
        made.sample(images=[("x.jpg", 0, 0.5)], **{"x.jpg": np.zeros((2, 2))}),
        {},
    ),
    "base64 of white space": (
        made.sample(images=[{"matched_text_index": 0, "image_base64": " \n"}]),
        {},
    ),
    "hostile base64": (
        made.sample(images=[{"matched_text_index": 0, "image_base64": "****"}]),
        {},
    ),
    "base64 cut short": (
        made.sample(images=[{"matched_text_index": 0, "image_base64": "aGVsbG8"}]),
        {},
    ),
    "base64 with data after its end": (
        made.sample(images=[{"matched_text_index": 0, "image_base64": "aGVsbG8=aGVs"}]),
        {},
    ),
    "base64 not in ASCII": (
        made.sample(images=[{"matched_text_index": 0, "image_base64": "aGVs\u00e9"}]),
        {},
    ),
    "base64 a number": (made.sample(images=[{"matched_text_index": 0, "image_base64": 7}]), {}),
}


@pytest.mark.parametrize(("one", "options"), DEFECTS.values(), ids=DEFECTS)
def test_the_policy_decides_about_images_that_cannot_be_used(one, options, caplog):
    with pytest.raises(SampleError):
        read(one, **options)
    caplog.set_level(logging.INFO)
    (document,) = read(one, missing="drop_image", **options)
    assert (shape(document), document.missing) == (["A", "B"], 1)
    assert "x.tar, sample 'a'" in caplog.text
    assert read(one, missing="drop_image", min_images=1, **options) == []
    good = made.sample(key="b")
    found = read(one, good, missing="drop_document", **options)
    assert [document.key for document in found] == ["b"]


@pytest.mark.parametrize(
    "data",
    [
        b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b"{}", b'{"text_list": []}',
        b'{"text_list": [1], "image_info": []}', b'{"text_list": "AB", "image_info": []}',
        b'{"text_list": ["A"], "image_info": {"a": 1}}', b'{"text_list": [], "image_info": [1]}',
        b'{"images": ["a.jpg"], "texts": ["A"]}', b'{"images": ["a.jpg"], "texts": []}',
        b'{"images": [7], "texts": [null]}', b'{"example": 7, "image_map": {}}',
        b'{"example": "a", "image_map": []}',
        b'{"example": "a", "image_map": {}, "text_breaks": ["x"]}',
        b'{"images": ["http://[x/a.jpg"], "texts": [null]}',
    ],
)  # fmt: skip
def test_json_that_is_no_document_is_an_error_of_the_sample(data):
    one = {"__key__": "a", "__url__": "x.tar", "json": data}
    with pytest.raises(SampleError):
        read(one)
    assert read(one, missing="drop_document") == []
    assert read(one, handler=wds.ignore_and_continue) == []


def test_base64_texts_that_are_cut_out_of_the_json_give_what_the_parser_gives():
    infos = [
        {"matched_text_index": 0, "image_base64": made.encoded(bytes([n]) * n)} for n in (5, 9)
    ]
    base = {"text_list": ["A", "B"], "image_info": infos}
    spread = json.dumps(base, indent=2)
    marked = {
        "example": "a_!_IMAGE1_!__!_IMAGE2_!_",
        "image_map": {"_!_IMAGE1_!_": {"base64_image": "aGVs"}, "_!_IMAGE2_!_": "bG8h"},
    }
    texts = [
        *(json.dumps(base), spread, spread.replace("CQkJ", "CQ\\u006bJ"), json.dumps(marked)),
        json.dumps({**base, "thumbnail": {"image_base64": "aGVs"}}),
        json.dumps({**base, "note": 'a text with "image_base64": "aGVs" in it'}),
        json.dumps({**base, 'a "image_base64': "aGVs", "image_map": marked["image_map"]}),
        json.dumps(base)[:-1] + ', "image_info": [{"image_base64": "aGVs", "image_base64": "*0", '
        '"matched_text_index": 1}]}',
        json.dumps(base).replace("BQUFBQU=", "*1"),
        json.dumps(base).replace("image_base64", "image\\u005fbase64", 1).replace("BQUFBQU=", "*0"),
        json.dumps(base)[:-1],
        json.dumps(base) + "]",
    ]

    def outcome(text):
        try:
            (document,) = read({"__key__": "a", "json": text}, missing="drop_image")
        except SampleError as error:
            return str(error)
        return document.pieces, document.meta, document.missing

    fast = [outcome(text.encode()) for text in texts]
    assert [len(found) for found in fast[:7]] == [3] * 7
    assert fast == [outcome(text) for text in texts]  # a str is parsed as a whole


@pytest.mark.parametrize("known", [{}, {"_!_IMAGE1_!_": 7}, {"_!_IMAGE1_!_": [7]}])
def test_a_marker_of_what_is_no_image_is_missing(known):
    data = {"example": "a _!_IMAGE1_!_ b", "image_map": known}
    one = {"__key__": "a", "json": json.dumps(data).encode()}
    with pytest.raises(SampleError, match="IMAGE1"):
        read(one)
    (document,) = read(one, missing="drop_image")
    assert (shape(document), document.missing) == (["a ", " b"], 1)


@pytest.mark.parametrize("assign", ["index", "best", "optimal"])
def test_images_of_a_document_without_text_cannot_be_placed(assign):
    one = made.sample([], [("x.jpg", 0, 0.5)], [[]], **IMAGES)
    with pytest.raises(SampleError, match=r"x\.jpg"):
        read(one, assign=assign)
    (document,) = read(one, assign=assign, missing="drop_image")
    assert (document.pieces, document.missing) == ([], 1)


def test_decoded_images_are_named_as_the_reason():
    one = made.sample(images=[("x.jpg", 0, 0.5)], **{"x.jpg": np.zeros((2, 2))})
    with pytest.raises(SampleError, match=r"documents\(\) comes before decode\(\)"):
        read(one)


def test_a_named_layout_refuses_documents_of_another():
    one = made.sample(images=[("x.jpg", 0, 0.5)], **IMAGES)
    with pytest.raises(SampleError, match="obelics"):
        read(one, layout="obelics")
    with pytest.raises(SampleError, match="image_base64"):
        read(one, layout="base64")


def test_names_do_not_reach_other_fields():
    for name in ("__key__", "json", "__url__", "../q.jpg"):
        with pytest.raises(SampleError):
            read(made.sample(images=[(name, 0, 0.5)], **IMAGES), max_images=1)


def test_errors_name_the_document_and_drops_are_counted(tmp_path):
    members = [("a-x.jpg", b"1"), ("a.json", made.sample(images=[("x.jpg", 0, 0.5)])["json"])]
    members += [("b.json", made.sample()["json"])]
    url = made.write_members(tmp_path / "x.tar", members)
    with pytest.raises(SampleError, match=r"x\.tar, sample 'a-x' at byte 0.*"):
        list(wds.WebDataset(url, group="dashed").documents())
    dropping = wds.WebDataset(url, group="dashed").documents(missing="drop_document")
    assert [document.key for document in dropping] == ["b"]
    assert dropping.skipped == {"documents": 2}
    keeping = wds.WebDataset(url, group="dashed").documents(missing="drop_image")
    assert [(document.key, document.missing) for document in keeping] == [("a", 1), ("b", 0)]
    assert keeping.skipped == {"documents": 1}  # the image without a document


def test_documents_with_too_few_images_are_counted_and_logged_with_their_origin(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    members = [(f"{n}.json", made.sample()["json"]) for n in range(3)]
    url = made.write_members(tmp_path / "x.tar", members)
    for options in ({}, {"missing": "drop_image"}, {"missing": "drop_document"}):
        dataset = wds.WebDataset(url).documents(min_images=1, **options)
        assert list(dataset) == []
        assert dataset.skipped == {"documents": 3}
    assert "0 images are fewer than min_images=1" in caplog.text
    assert "x.tar, sample '2'" in caplog.text
    threads = wds.WebDataset(url).documents(min_images=1)
    assert list(wds.WebLoader(threads, batch_size=None, num_workers=2, engine="threads")) == []
    assert threads.skipped == {"documents": 3}


URLS = b'{"images": ["http://x/a.jpg"], "texts": [null]}'
ONE_OF_EACH = {
    "dashed or members": made.sample(images=[("x.jpg", 0, 0.5)], key="members", **IMAGES),
    "base64": made.sample(images=[{"matched_text_index": 0, "image_base64": "aGVs"}], key="b64"),
    "markers": {**made.sample(key="mark"), "json": b'{"example": "a", "image_map": {}}'},
    "obelics": {**made.sample(key="urls"), "json": URLS},
}


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(ONE_OF_EACH, 2)))
def test_a_document_of_another_layout_than_the_first_is_an_error(first, second):
    samples = [made.sample(), ONE_OF_EACH[first], made.sample(), ONE_OF_EACH[second]]
    for options in ({}, {"missing": "drop_document"}, {"handler": wds.ignore_and_continue}):
        with pytest.raises(PipelineError) as caught:
            read(*samples, **options)
        message = str(caught.value)
        assert f"layout {second}, but the first documents have {first}" in message
        assert f"x.tar, sample {ONE_OF_EACH[second]['__key__']!r}" in message


def test_a_stage_detects_the_layout_of_each_stream_again():
    stage = documents()
    for one in ONE_OF_EACH.values():
        assert len(list(stage([one, made.sample()]))) == 2


def test_the_message_names_the_grouping_that_was_forgotten(tmp_path):
    members = [("a.json", made.sample(images=[("x.jpg", 0, 0.5)])["json"]), ("a-x.jpg", b"1")]
    url = made.write_members(tmp_path / "x.tar", members)
    with pytest.raises(SampleError, match='group="dashed"'):
        list(wds.WebDataset(url, empty_check=False).documents())


def test_sizes_come_from_the_header():
    for format in ("JPEG", "PNG", "WEBP", "GIF"):
        data = made.picture(size=(31, 17), format=format)
        assert ImagePiece("x", data).size() == (31, 17)
    progressive = made.picture(size=(31, 17))
    assert ImagePiece("x", progressive[:400]).size() == (31, 17)
    for data in (b"", b"\xff\xd8", b"\xff\xd8\xff", b"<html>", progressive[:20]):
        with pytest.raises(DecodingError, match="'x'"):
            ImagePiece("x", data).size()


def test_images_are_decoded_on_request():
    image = ImagePiece("x.dat", made.picture())
    assert image.decode().shape == (9, 12, 3)
    assert image.decode("pil").size == (12, 9)
    with pytest.raises(DecodingError, match=r"x\.dat"):
        ImagePiece("x.dat", b"no image").decode()


def test_filters_look_at_bytes_and_sizes_before_decoding():
    pictures = {"x.jpg": made.picture(), "y.jpg": made.picture(size=(64, 64))}
    one = made.sample(images=[("x.jpg", 0, 0.5), ("y.jpg", 0, 0.5)], **pictures)
    (document,) = read(one)
    large = document.filter_images(lambda image: min(image.size()) >= 32)
    assert [image.name for image in large.images] == ["y.jpg"]
    assert len(document.images) == 2


@pytest.mark.parametrize(
    "options",
    [
        *({"assign": "hungarian"}, {"place": "random"}, {"missing": "skip"}, {"min_images": -1}),
        *({"max_images": 1.5}, {"max_text": "7"}, {"max_images": 1, "min_images": 2}),
        *({"threshold": float("nan")}, {"threshold": "0.2"}, {"media": "images"}),
    ],
)
def test_wrong_arguments_are_refused(options):
    with pytest.raises(PipelineError, match=next(iter(options))):
        documents(**options)


def test_threads_give_what_one_thread_gives(tmp_path):
    from penstock.documents import convert

    lines, images, _ = made.write_source(tmp_path, 40)
    urls = convert(lines, str(tmp_path / "x-%d.tar"), to="dashed", images=images, maxcount=10)
    make = lambda: wds.WebDataset(urls, group="dashed").documents(assign="optimal")  # noqa: E731
    wanted = list(make())
    found = list(wds.WebLoader(make(), batch_size=None, num_workers=2, engine="threads"))
    assert [(d.key, d.pieces) for d in found] == [(d.key, d.pieces) for d in wanted]


def test_documents_without_filters_keep_the_number_of_samples(tmp_path):
    members = [(f"{n}.json", made.sample()["json"]) for n in range(5)]
    url = made.write_members(tmp_path / "x.tar", members)
    dataset = wds.WebDataset(url, group="dashed", index=True)
    assert len(dataset.documents()) == 5
    for options in ({"min_images": 1}, {"missing": "drop_document"}, {"missing": "drop_image"}):
        with pytest.raises(TypeError):
            len(dataset.documents(**options))


def test_a_state_does_not_depend_on_how_media_prints(tmp_path):
    data = {"images": ["https://example.org/a.jpg"], "texts": [None]}
    members = [(f"{n}.json", json.dumps(data).encode()) for n in range(5)]
    url = made.write_members(tmp_path / "x.tar", members)
    media_url = made.write_members(tmp_path / "media.tar", [("a.jpg", b"1")])

    def make():
        return wds.WebDataset(url).documents(media=wds.IndexedDataset(media_url))

    first = make()
    stream = iter(first)
    assert next(stream).images[0].data == b"1"
    second = make()
    second.load_state_dict(first.state_dict())
    assert [document.key for document in second] == ["1", "2", "3", "4"]


def test_large_images_are_read_on_threads(tmp_path):
    large = made.picture(size=(256, 256), format="PNG")
    assert len(large) > 100_000
    one = made.sample(images=[("x.png", 0, 0.5)])["json"]
    members = [pair for n in range(6) for pair in ((f"{n}.json", one), (f"{n}-x.png", large))]
    url = made.write_members(tmp_path / "x.tar", members)
    options = {"batch_size": None, "num_workers": 2, "engine": "threads"}
    for index in (None, True):
        dataset = wds.WebDataset(url, group="dashed", index=index).shuffle(3).documents()
        found = list(wds.WebLoader(dataset, **options))
        assert [document.images[0].data for document in found] == [large] * 6
        dataset = wds.WebDataset(url, group="dashed", index=index).interleaved_to_dict("json;png")
        assert [s["x.png"] for s in wds.WebLoader(dataset, **options)] == [large] * 6
