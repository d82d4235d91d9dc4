"""Documents counted, collated, tokenized and packed."""

from __future__ import annotations

import made
import numpy as np
import pytest

import penstock as wds
from penstock.documents import Counts, Document, ImagePiece, TextPiece, collate, counts
from penstock.errors import PipelineError, SampleError


def document(key, *pieces):
    return Document(key, [TextPiece(p) if isinstance(p, str) else p for p in pieces])


def test_counts_decode_nothing():
    one = document("a", "ab", ImagePiece("x", b"no image"), "cde", ImagePiece("y", None, "u"))
    assert counts(one) == Counts(texts=2, characters=5, images=2, image_bytes=8)


def test_a_batch_holds_images_of_any_size_and_texts_with_markers():
    pictures = [made.picture(n, (4 + n, 3 + n), "PNG") for n in range(3)]
    images = [ImagePiece(f"{n}.png", data) for n, data in enumerate(pictures)]
    batch = collate(
        [
            document("a", images[0], "A", images[1]),
            document("b", "B"),
            document("c", "C", images[2]),
        ]
    )
    assert batch["text"] == ["<image>A<image>", "B", "C<image>"]
    assert batch["image_counts"].tolist() == [2, 0, 1]
    assert batch["positions"].tolist() == [0, 8, 1]
    assert batch["shapes"].tolist() == [[3, 4, 3], [4, 5, 3], [5, 6, 3]]
    for n, image in enumerate(images):
        flat = batch["images"][batch["offsets"][n] : batch["offsets"][n + 1]]
        assert (flat.reshape(batch["shapes"][n]) == image.decode()).all()


def test_a_transform_is_applied_before_images_are_put_together():
    one = document("a", ImagePiece("x", made.picture()))
    batch = collate([one], spec="rgb", transform=lambda image: image[:2, :2], marker="[I]")
    assert batch["text"] == ["[I]"]
    assert batch["shapes"].tolist() == [[2, 2, 3]]
    assert batch["images"].dtype == np.float32


def test_collate_is_a_collation_function(tmp_path):
    from penstock.documents import convert

    lines, images, _ = made.write_source(tmp_path, 20)
    urls = convert(lines, str(tmp_path / "x-%d.tar"), to="base64", images=images)
    batches = list(wds.WebDataset(urls).documents().batched(8, collation_fn=collate))
    assert [len(batch["text"]) for batch in batches] == [8, 8, 4]
    assert sum(batch["text"][0].count("<image>") for batch in batches) > 0
    mapped = wds.WebDataset(urls).documents().batched(8, collation_fn=None).map(collate)
    for source in (mapped, wds.WebLoader(mapped, batch_size=None, num_workers=2, engine="threads")):
        for batch, wanted in zip(source, batches, strict=True):
            assert batch.keys() == wanted.keys()
            assert all(np.array_equal(batch[name], wanted[name]) for name in batch)


def test_interleaved_to_dict_keeps_matching_fields():
    sample = {"__key__": "a", "__url__": "u", "json": 1, "x.jpg": 2, "y.png": 3}
    assert list(wds.interleaved_to_dict("json;jpg;png")([sample])) == [
        {"json": 1, "x.jpg": 2, "y.png": 3}
    ]
    assert list(wds.interleaved_to_dict("json jpg", none_is_error=False)([sample])) == [
        {"json": 1, "x.jpg": 2, "y.png": None}
    ]
    with pytest.raises(SampleError, match=r"y\.png"):
        list(wds.interleaved_to_dict("json;jpg")([sample]))
    assert list(wds.interleaved_to_dict("json", handler=wds.ignore_and_continue)([sample])) == []
    with pytest.raises(PipelineError):
        wds.interleaved_to_dict()


def test_interleaved_to_dict_follows_decode(tmp_path):
    members = [("a.json", made.sample(images=[("x.jpg", 0, 0.5)])["json"])]
    members.append(("a-x.jpg", made.picture()))
    url = made.write_members(tmp_path / "x.tar", members)
    dataset = wds.WebDataset(url, group="dashed").decode("pilrgb")
    (found,) = dataset.interleaved_to_dict("json;jpg;png;jpeg")
    assert found["json"]["text_list"] == ["A", "B"]
    assert found["x.jpg"].size == (12, 9)
