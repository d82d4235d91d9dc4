"""Folders of images, a folder for each class: torchvision's ImageFolder, in pipelines too."""

from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from penstock.codecs.image_files import IMG_EXTENSIONS, is_hidden, split_image_name
from penstock.datasets.map_samples import MapPipeline
from penstock.datasets.shared_bytes import SharedBytes, check_memory
from penstock.errors import (
    DecodingError,
    ManifestError,
    Origin,
    PipelineError,
    StorageError,
    UnsafeError,
    describe_cause,
    ran_out,
)
from penstock.stages.sources.data_versions import DataVersion, version_of_files
from penstock.storage.local.walk import walk_links

Loader = Callable[[str], Any]
Transform = Callable[[Any], Any]


class ImageFolder(MapPipeline):
    """Images in folders, one for each class: ``root/CLASS/NAME.jpg``; torchvision's ImageFolder.

    ``dataset[i]`` is (image, class index). ``loader(path)`` reads an image; by default it is a
    Pillow image in RGB. ``transform`` is applied to the image, ``target_transform`` to the class
    index. ``is_valid_file(path)`` chooses files instead of the usual extensions. Files are found in
    folders of any depth, also through links, classes and files sorted by name; hidden files and
    folders, whose names begin with a dot, are left out. A class without images is a
    FileNotFoundError, unless ``allow_empty``. Attributes: ``classes`` (names), ``class_to_idx``,
    ``samples`` (path and class index of each image, also as ``imgs``), ``targets``, ``extensions``
    and ``transforms``. A subclass may override :meth:`find_classes` and :meth:`make_dataset`.

    ``labels`` takes the classes from a file instead, with the columns ``file`` (a path inside
    ``root``) and ``label``: CSV with a header, or JSONL. The images are those of the file, in its
    order; ``classes`` are the labels, sorted, as numbers if all of them are. A row whose file does
    not exist, or was in an earlier row, is a :class:`~penstock.errors.ManifestError`.

    ``dataset.sample(i)`` is the raw sample, as a shard would hold it: ``__key__``, the bytes of the
    image under its extension, and ``cls``; further dots of a file's name are underscores in its
    key. :meth:`pipeline` makes a pipeline of the images.
    ``memory="ram"`` reads all files once into memory that all processes of the machine share; what
    does not fit is a :class:`~penstock.errors.StorageError`.

    >>> import os, tempfile
    >>> from PIL import Image
    >>> root = tempfile.mkdtemp()
    >>> for name in ("cat", "dog"):
    ...     os.mkdir(os.path.join(root, name))
    ...     Image.new("RGB", (4, 3)).save(os.path.join(root, name, "1.png"))
    >>> dataset = ImageFolder(root)
    >>> len(dataset), dataset.classes, dataset[1][0].size, dataset[1][1]
    (2, ['cat', 'dog'], (4, 3), 1)
    >>> dataset.sample(1)["__key__"], sorted(dataset.sample(1))
    ('dog/1', ['__key__', 'cls', 'png'])
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        loader: Loader | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        *,
        labels: str | os.PathLike[str] | None = None,
        memory: str | None = None,
    ) -> None:
        self.memory = check_memory(memory)
        if memory is not None and loader is not None:
            raise PipelineError(
                'ImageFolder: memory="ram" hands no path to loader=: leave one of the two out'
            )
        self.root = os.path.expanduser(os.fspath(root))
        self.transform, self.target_transform = transform, target_transform
        self.transforms = None
        if transform is not None or target_transform is not None:
            self.transforms = StandardTransform(transform, target_transform)
        self.loader: Loader = self._load if loader is None else loader
        self.is_valid_file = is_valid_file
        self.extensions = IMG_EXTENSIONS if is_valid_file is None else None
        self.samples: list[tuple[str, int]]
        if labels is None:
            self.classes, self.class_to_idx = self.find_classes(self.root)
            self.samples = self.make_dataset(
                self.root, self.class_to_idx, self.extensions, is_valid_file, allow_empty
            )
        else:
            self.classes, self.class_to_idx, self.samples = self._labelled(
                os.fspath(labels), allow_empty
            )
        self.targets = [target for _, target in self.samples]
        self.imgs = self.samples
        self._bytes: SharedBytes | None = None

    def find_classes(self, directory: str | os.PathLike[str]) -> tuple[list[str], dict[str, int]]:
        """Return the sorted names of the classes, and the index of each; a subclass may override
        it."""
        classes = sorted(
            entry.name
            for entry in os.scandir(directory)
            if entry.is_dir() and not is_hidden(entry.name)
        )
        if not classes:
            raise FileNotFoundError(f"Couldn't find any class folder in {os.fspath(directory)}.")
        return classes, {name: number for number, name in enumerate(classes)}

    @staticmethod
    def make_dataset(
        directory: str | os.PathLike[str],
        class_to_idx: dict[str, int],
        extensions: str | tuple[str, ...] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> list[tuple[str, int]]:
        """Return path and class index of each image; a subclass may override it."""
        if (extensions is None) == (is_valid_file is None):
            raise PipelineError("make_dataset takes extensions or is_valid_file, one of the two")
        endings = (extensions,) if isinstance(extensions, str) else extensions or ()
        valid = is_valid_file or (lambda path: path.lower().endswith(endings))
        root = os.path.expanduser(os.fspath(directory))
        samples: list[tuple[str, int]] = []
        empty: list[str] = []
        for name in sorted(class_to_idx):
            before = len(samples)
            folder = os.path.join(root, name)
            for parent, _, files in sorted(walk_links(folder)):
                if is_hidden(parent[len(folder) :].replace(os.sep, "/")):
                    continue
                seen = (file for file in sorted(files) if not is_hidden(file))
                paths = (os.path.join(parent, file) for file in seen)
                samples += [(path, class_to_idx[name]) for path in paths if valid(path)]
            if len(samples) == before:
                empty.append(name)
        if empty and not allow_empty:
            known = f" of {', '.join(endings)}" if endings else ""
            raise FileNotFoundError(
                f"Found no valid file{known} for the classes {', '.join(empty)} in {root}."
            )
        return samples

    def _labelled(
        self, path: str, allow_empty: bool
    ) -> tuple[list[str], dict[str, int], list[tuple[str, int]]]:
        """Return classes and images as listed in a file of labels."""
        valid = self.is_valid_file or (lambda path: True)
        found = []
        lines: dict[str, int] = {}
        files_in = functools.cache(_list_files)  # quicker than asking for each file
        for line, name, label in _read_labels(path):
            if not _is_inside(name):
                raise UnsafeError(f"{path}, line {line}: the file {name!r} leaves {self.root}")
            file = os.path.join(self.root, name)
            if (before := lines.setdefault(os.path.normpath(file), line)) != line:
                raise ManifestError(f"{path}, line {line}: {name!r} is in line {before} already")
            folder, base = os.path.split(file)
            if base not in files_in(folder):
                raise ManifestError(
                    f"{path}, line {line}: there is no file {name!r} in {self.root}"
                )
            if valid(file):
                found.append((file, label))
        if not found and not allow_empty:
            raise ManifestError(f"the labels {path} name no image")
        texts = {label for _, label in found}
        numbers = all(re.fullmatch("-?[0-9]+", text) for text in texts)
        classes = sorted(texts, key=(lambda text: (int(text), text)) if numbers else None)
        indexes = {name: number for number, name in enumerate(classes)}
        return classes, indexes, [(file, indexes[label]) for file, label in found]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self.samples[index]
        if self.memory is None:
            image = self.loader(path)
        else:
            image = _decode(self._shared().read(range(len(self.samples))[index]), path)
        if self.transform is not None:
            image = self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)

    def sample(self, index: int) -> dict[str, Any]:
        """Read the raw sample: ``__key__``, the bytes of the image under its extension, and
        ``cls``."""
        path, target = self.samples[index]
        if self.memory is None:
            data = _read(path)
        else:
            data = self._shared().read(range(len(self.samples))[index])
        key, field = split_image_name(os.path.relpath(path, self.root).replace(os.sep, "/"))
        return {"__key__": key, field or "img": data, "cls": b"%d" % target}

    def origin(self, index: int) -> Origin:
        """Return the file of an image, for messages."""
        return Origin(self.samples[index][0])

    @functools.cached_property
    def fingerprint(self) -> str:
        """A text that differs when the images or their classes do."""
        digest = hashlib.blake2b(digest_size=16)
        for path, target in self.samples:
            digest.update(f"{os.path.relpath(path, self.root)}\0{target}\n".encode(*_NAMES))
        return digest.hexdigest()

    @functools.cached_property
    def data_versions(self) -> dict[str, DataVersion]:
        """The version of the files, by which a saved state recognizes that one has changed."""
        return {"0": version_of_files([path for path, _ in self.samples], self.root)}

    def _load(self, path: str) -> Any:
        return _decode(_read(path), path)

    def _shared(self) -> SharedBytes:
        if self._bytes is None:
            paths = [path for path, _ in self.samples]
            stamps = [os.stat(path) for path in paths]
            digest = hashlib.blake2b(digest_size=16)
            for path, stamp in zip(paths, stamps):
                line = f"{os.path.abspath(path)}\0{stamp.st_size}\0{stamp.st_mtime_ns}\n"
                digest.update(line.encode(*_NAMES))
            self._bytes = SharedBytes(
                digest.hexdigest(),
                [stamp.st_size for stamp in stamps],
                lambda number: iter([_read(paths[number])]),
                what=f"the images of {self.root}",
            )
        return self._bytes

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bytes": None}

    def __repr__(self) -> str:
        lines = [f"Number of datapoints: {len(self)}", f"Root location: {self.root}"]
        lines += [] if self.transforms is None else repr(self.transforms).splitlines()
        return "\n".join([f"Dataset {type(self).__name__}", *(f"    {line}" for line in lines)])


@dataclasses.dataclass(frozen=True)
class StandardTransform:
    """The transforms of an image and of its class index as one function: ``transforms(image, i)``.

    >>> StandardTransform(None, str)("image", 3)
    ('image', '3')
    """

    transform: Transform | None = None
    target_transform: Transform | None = None

    def __call__(self, image: Any, target: Any) -> tuple[Any, Any]:
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def __repr__(self) -> str:
        lines = [type(self).__name__]
        for name, value in (
            ("Transform", self.transform),
            ("Target transform", self.target_transform),
        ):
            if value is not None:
                head = f"{name}: "
                lines.append(head + repr(value).replace("\n", "\n" + " " * len(head)))
        return "\n".join(lines)


_NAMES = ("utf-8", "surrogateescape")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise StorageError(f"cannot read the image: {error}", origin=Origin(path)) from error


def _decode(data: bytes, path: str) -> Any:
    from penstock.codecs.images import decode_image

    try:
        return decode_image(data, "pil")
    except Exception as error:
        if ran_out(error) or isinstance(error, ImportError):
            raise
        raise DecodingError(
            f"cannot read the image: {describe_cause(error, data)}", origin=Origin(path)
        ) from error


def _list_files(folder: str) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return frozenset()


def _is_inside(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return not os.path.isabs(name) and ".." not in parts and "\0" not in name


def _read_labels(path: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, file and label of each row of a CSV or JSONL file."""
    lines = path.lower().endswith((".jsonl", ".ndjson"))
    try:
        with open(path, encoding="utf-8-sig", newline=None if lines else "") as file:
            if lines:
                rows: Any = (
                    (n, json.loads(text)) for n, text in enumerate(file, 1) if text.strip()
                )
            else:
                reader = csv.DictReader(file)
                rows = ((reader.line_num, row) for row in reader)
            for number, row in rows:
                known = row if isinstance(row, dict) else {}
                name, label = known.get("file"), known.get("label")
                if not isinstance(name, str) or not name or label in (None, ""):
                    raise ManifestError(
                        f"{path}, line {number}: each row needs a value in 'file' and 'label'"
                    )
                yield number, name, str(label)
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, ManifestError):
            raise
        raise ManifestError(f"the labels {path} cannot be read: {error}") from error
