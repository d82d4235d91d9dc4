"""The layouts that documents are stored in, read into one form.

=========  ======================================================================================
layout     a document in a shard
=========  ======================================================================================
dashed     ``KEY.json``, then its images ``KEY-NAME.jpg`` (read with ``group="dashed"``)
base64     ``KEY.json`` alone, with the images in ``image_info[].image_base64`` (OpenFlamingo)
members    ``KEY.json`` and the images as fields of the same key, ``KEY.NAME.jpg`` (Energon)
markers    ``KEY.json`` with ``example``, a text with ``_!_IMAGE1_!_``, and ``image_map``
obelics    ``KEY.json`` with the parallel lists ``images`` (URLs) and ``texts`` (OBELICS)
=========  ======================================================================================

The JSON has one of three forms: *sentences* (MMC4's ``text_list`` and ``image_info``), *lists*
(``images`` and ``texts``, one of the two at each position) or *markers*. Nothing is fetched from
the URLs in it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.errors import PipelineError, SampleError, parsing

Sample = dict[str, Any]

LAYOUTS = ("dashed", "base64", "members", "markers", "obelics")
MARKER = re.compile(r"(_!_IMAGE\d+_!_)")
_BASE64 = re.compile(rb'"(?:image_base64|base64_image)"\s*:\s*"')
_FORMS = {
    "sentences": ("text_list", "image_info"),
    "lists": ("images", "texts"),
    "markers": ("example", "image_map"),
}
_ALLOWED = {
    "dashed": ("sentences", "lists"),
    "base64": ("sentences",),
    "members": ("sentences", "lists"),
    "markers": ("markers",),
    "obelics": ("lists",),
}


@dataclasses.dataclass(slots=True)
class ImageEntry:
    """An image as the JSON describes it.

    ``data`` is its bytes, or the base64 text of them, as a view if it was cut out of the JSON;
    ``problem`` says why there are none. ``index`` is the number of the text that it belongs to, or
    comes before.
    """

    name: str
    data: bytes | str | memoryview | None
    index: Any
    url: str | None = None
    similarity: float | None = None
    problem: str = ""


@dataclasses.dataclass(slots=True)
class Outline:
    """A document as its JSON describes it.

    ``layout`` says where its images are, "" if it does not show. ``ordered``: each image's position
    is known; otherwise ``index`` is only the data's own match.
    """

    form: str
    layout: str
    texts: list[str]
    images: list[ImageEntry]
    meta: dict[str, Any]

    @property
    def ordered(self) -> bool:
        return self.form != "sentences"


def check_layout(layout: str) -> str:
    """Return the name of a layout, or "auto"; raise PipelineError for any other text.

    >>> check_layout("auto")
    'auto'
    """
    if layout != "auto" and layout not in LAYOUTS:
        raise PipelineError(f"layout is 'auto' or one of {', '.join(LAYOUTS)}, not {layout!r}")
    return layout


def read_outline(sample: Sample, layout: str = "auto", media: Any = None) -> Outline:
    """Parse the JSON of a raw sample and find its images; raise SampleError if it cannot be read.

    ``media`` is where images are looked up that are not in the sample: see :func:`find_media`.
    """
    data = read_json(sample)
    form = next((f for f, names in _FORMS.items() if all(name in data for name in names)), None)
    allowed = tuple(_FORMS) if layout == "auto" else _ALLOWED[layout]
    if form not in allowed:
        wanted = " or ".join(repr(f"{a}, {b}") for a, b in (_FORMS[name] for name in allowed))
        raise SampleError(
            f"the JSON of a document of layout {layout!r} has {wanted}, but this one has "
            f"{sorted(data)[:10]}"
        )
    found = Found(sample, media, urls=layout == "obelics")
    shown = _shown_layout(data, form, found)
    images: list[ImageEntry]
    if form == "markers":
        texts, images = _read_markers(data)
    elif form == "lists":
        texts, images = _read_lists(data, found)
    else:
        texts, images = _read_sentences(data, found, layout)
    return Outline(form, shown, texts, images, data)


def _shown_layout(data: Mapping[str, Any], form: str | None, found: Found) -> str:
    """Return the layout that a document shows by where its images are; "" if it has none."""
    if form == "markers":
        return "markers"
    listed = data["images" if form == "lists" else "image_info"]
    images = [image for image in listed if image] if isinstance(listed, list) else []
    if form == "lists" and any("://" in str(image) for image in images):
        return "obelics"
    if any(isinstance(image, dict) and "image_base64" in image for image in images):
        return "base64"
    return "dashed or members" if images and found.has_images() else ""


def read_json(sample: Sample) -> dict[str, Any]:
    """Return the parsed field ``json``; a copy if it was parsed already."""
    value = sample.get("json")
    if value is None:
        raise SampleError(
            "a document needs the field 'json': images named KEY-NAME.jpg belong to the KEY.json "
            "before them, read with group=\"dashed\" ('tar --sort=name' puts them before it)"
        )
    if isinstance(value, (bytes, bytearray, str)):
        with parsing(lambda why: SampleError(f"the field 'json' of a document is no JSON: {why}")):
            value = _parse_without_images(value) or json.loads(value)
    if not isinstance(value, dict):
        raise SampleError(f"the JSON of a document is an object, not {type(value).__name__}")
    return dict(value)


def _parse_without_images(data: Any) -> dict[str, Any] | None:
    """Parse JSON with the base64 texts of images cut out, as views: the parser takes longer for
    them than for all the rest. None if that does not work.

    A text that is cut out is replaced by ``*NUMBER``, which is no base64.
    """
    if not isinstance(data, bytes):
        return None
    view, texts = memoryview(data), list[memoryview]()
    parts: list[bytes | memoryview] = []
    at = 0
    while (match := _BASE64.search(data, at)) is not None:
        start = match.end()
        end = data.find(b'"', start)
        escaped = data[match.start() - 1] == ord("\\") or data.find(b"\\", start, end) >= 0
        if end < 0 or escaped:
            return None
        parts += (view[at:start], b"*%d" % len(texts))
        texts.append(view[start:end])
        at = end
    if not texts:
        return None
    try:
        value = json.loads(b"".join((*parts, view[at:])))
    except ValueError:
        return None  # the message about the whole text has the right position
    return value if isinstance(value, dict) and _put_back(value, texts) else None


def _put_back(value: dict[str, Any], texts: list[memoryview]) -> bool:
    """Put the texts that were cut out into the images; return False if some belong elsewhere."""
    if "text_list" in value:
        name, infos = "image_base64", value.get("image_info")
    else:
        known = value.get("image_map")
        name, infos = "base64_image", list(known.values()) if isinstance(known, dict) else None
    found = 0
    for info in infos if isinstance(infos, list) else ():
        text = info.get(name) if isinstance(info, dict) else None
        if isinstance(text, str) and text[:1] == "*" and text[1:].isdecimal():
            info[name] = texts[min(int(text[1:]), len(texts) - 1)]
            found += 1
    return found == len(texts)


class Found:
    """The images of a sample, by case-insensitive name; then those of ``media``."""

    def __init__(self, sample: Sample, media: Any, *, urls: bool = False) -> None:
        self.sample, self.media, self.urls = sample, media, urls
        self._stems: dict[str, str] | None = None

    def find(self, name: str, url: str | None = None) -> tuple[bytes | None, str]:
        """Return the bytes of an image, or None and the reason."""
        wanted = name.rsplit("/", 1)[-1].lower()
        field = wanted if self._is_image(wanted) else self._by_stem(wanted)
        if field is not None:
            return self.sample[field], ""
        if self.media is not None:
            data = find_media(self.media, name, url)
            where = "neither in the document's sample nor in media="
            return (data, "") if data is not None else (None, where)
        if self.urls or "://" in (url or name):
            return None, ""  # only referred to
        if wanted in self.sample and wanted != "json" and wanted[:2] != "__":
            return None, "it is decoded already: documents() comes before decode()"
        hint = "" if self.has_images() else ' (images named KEY-NAME.jpg need group="dashed")'
        return None, f"not among the members of the document{hint}"

    def has_images(self) -> bool:
        """Return whether the sample has fields besides its JSON."""
        return any(map(self._is_image, self.sample))

    def _is_image(self, field: str) -> bool:
        return field != "json" and field[:2] != "__" and type(self.sample.get(field)) is bytes

    def _by_stem(self, wanted: str) -> str | None:
        """Return the field with that stem and another extension: images are often re-encoded as
        JPEG."""
        if self._stems is None:
            fields = [field for field in self.sample if self._is_image(field)]
            self._stems = {stem_of(field): field for field in reversed(fields)}
        return self._stems.get(stem_of(wanted))


def find_media(media: Any, name: str, url: str | None = None) -> bytes | None:
    """Return the bytes of an image in a mapping or an indexed set; None if it has none.

    It is looked up by URL, by name, and by name without its extension, as written and in lower
    case. The value is bytes, or a raw sample, of which the first field in bytes is taken.

    >>> find_media({"a": b"1", "http://x/b.jpg": b"2"}, "A.jpg")
    b'1'
    """
    names = [url, name, stem_of(name), name.lower(), stem_of(name).lower()]
    for key in dict.fromkeys(n for n in names if n):
        value = None
        if isinstance(media, Mapping):
            value = media.get(key)
        else:
            try:
                value = media.by_key(key)
            except SampleError:
                continue
        if isinstance(value, Mapping):
            fields = (v for f, v in value.items() if f[:2] != "__" and type(v) is bytes)
            value = next(fields, None)
        if isinstance(value, bytes):
            return value
    return None


def stem_of(name: str) -> str:
    """Return a name without its extension.

    >>> stem_of("a.b.jpg"), stem_of("a")
    ('a.b', 'a')
    """
    return name.rpartition(".")[0] or name


def name_of_url(url: str) -> str:
    """Return the last part of a URL's path.

    >>> name_of_url("https://example.org/i/a%20b.jpg?w=3")
    'a b.jpg'
    """
    with parsing(lambda why: SampleError(f"the image URL {url!r:.200} cannot be parsed: {why}")):
        return unquote(urlsplit(url).path).rsplit("/", 1)[-1] or url


def _read_sentences(
    data: dict[str, Any], found: Found, layout: str
) -> tuple[list[str], list[ImageEntry]]:
    texts = _texts(data["text_list"], "text_list")
    infos = data["image_info"]
    if not isinstance(infos, list) or not all(isinstance(info, dict) for info in infos):
        raise SampleError("image_info is a list of objects, one for each image")
    images = []
    for place, info in enumerate(infos):
        entry = _entry(info, str(info.get("image_name") or place), info.get("matched_text_index"))
        if "image_base64" in info or layout == "base64":
            entry.data = info.get("image_base64")
            _check_base64(entry, "image_base64")
        else:
            entry.data, problem = found.find(entry.name)
            entry.problem = entry.problem or problem
        images.append(entry)
    data["image_info"] = [{k: v for k, v in i.items() if k != "image_base64"} for i in infos]
    return texts, images


def _read_lists(data: dict[str, Any], found: Found) -> tuple[list[str], list[ImageEntry]]:
    given, words, about = data["images"], data["texts"], _about_images(data)
    if not (isinstance(given, list) and isinstance(words, list) and len(given) == len(words)):
        raise SampleError("images and texts are lists of the same length")
    texts: list[str] = []
    images = []
    for place, (image, text) in enumerate(zip(given, words)):
        if image is not None and text is not None:
            raise SampleError(f"images and texts both have a value at position {place}")
        if image is None:
            texts += _texts([text], "texts") if text is not None else []
            continue
        if not isinstance(image, str):
            raise SampleError(f"images has names or URLs, not {image!r:.100}")
        info = about(place)
        is_url = found.urls or "://" in image
        url = image if is_url else None
        name = info.get("image_name") or (name_of_url(image) if is_url else image)
        entry = _entry(info, str(name), len(texts), url)
        entry.data, problem = found.find(entry.name, url)
        entry.problem = entry.problem or problem
        images.append(entry)
    return texts, images


def _about_images(data: Mapping[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Return a function: number of an image → its entry in the metadata, {} if there is none.

    In OBELICS the metadata is a list, stored as JSON text.
    """
    known = data.get("metadata", data.get("image_info"))
    if isinstance(known, str):
        with parsing(lambda why: SampleError(f"metadata of a document is no JSON: {why}")):
            known = json.loads(known)

    def about(place: int) -> dict[str, Any]:
        entry = known[place] if isinstance(known, list) and place < len(known) else None
        return entry if isinstance(entry, dict) else {}

    return about


def _read_markers(data: dict[str, Any]) -> tuple[list[str], list[ImageEntry]]:
    (text,) = _texts([data["example"]], "example")
    known = data["image_map"]
    if not isinstance(known, dict):
        raise SampleError("image_map is an object: marker → image")
    breaks = data.get("text_breaks") or []
    if not isinstance(breaks, list) or not all(type(place) is int for place in breaks):
        raise SampleError("text_breaks is a list of offsets in the text")
    texts: list[str] = []
    images = []
    at = 0
    for number, part in enumerate(MARKER.split(text)):
        if number % 2 == 0:
            texts += _cut(part, [place - at for place in breaks if at < place < at + len(part)])
        else:
            given = known.get(part)
            info = {"base64_image": given} if isinstance(given, str) else given
            info = info if isinstance(info, dict) else {}
            entry = _entry(info, str(info.get("image_name") or part.strip("_!")), len(texts))
            entry.data = info.get("base64_image")
            _check_base64(entry, f"image_map[{part!r}].base64_image")
            images.append(entry)
        at += len(part)
    kept = {
        marker: {k: v for k, v in info.items() if k != "base64_image"}
        for marker, info in known.items()
        if isinstance(info, dict)
    }
    data["image_map"] = kept
    return texts, images


def _cut(text: str, places: list[int]) -> Iterator[str]:
    bounds = [0, *sorted(places), len(text)]
    return (text[a:b] for a, b in itertools.pairwise(bounds) if a < b)


def _entry(info: Mapping[str, Any], name: str, index: Any, url: str | None = None) -> ImageEntry:
    similarity, given = info.get("matched_sim"), info.get("raw_url")
    entry = ImageEntry(name, None, index, url or (given if isinstance(given, str) else None))
    if similarity is None:
        return entry
    if isinstance(similarity, bool) or not isinstance(similarity, (int, float)):
        entry.problem = f"matched_sim is no number but {similarity!r:.100}"
    elif not math.isfinite(similarity):
        entry.problem = f"matched_sim is {similarity}, not a finite number"
    else:
        entry.similarity = float(similarity)
    return entry


def _check_base64(entry: ImageEntry, where: str) -> None:
    if not isinstance(entry.data, (str, memoryview)) or not entry.data:
        entry.data = None
        entry.problem = entry.problem or f"there is no text in {where}"


def _texts(values: Any, name: str) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise SampleError(f"{name} of a document holds texts only")
    return values
