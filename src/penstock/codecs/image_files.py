"""Which files of a folder are images, and the key and field that each becomes.

The one rule of :class:`~penstock.ImageFolder` and ``penstock create --from images``.
"""

from __future__ import annotations

from collections.abc import Iterable

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Those of torchvision's ImageFolder."""


def is_image(path: str) -> bool:
    """Return whether a file is an image, by its extension.

    >>> is_image("cat/photo.v2.JPEG"), is_image("cat/notes.txt")
    (True, False)
    """
    return path.lower().endswith(IMG_EXTENSIONS)


def is_hidden(path: str) -> bool:
    """Return whether a relative path has a part that begins with a dot.

    >>> is_hidden(".ipynb_checkpoints/1.jpg"), is_hidden("cat/._1.jpg"), is_hidden("cat/1.jpg")
    (True, True, False)
    """
    return path.startswith(".") or "/." in path


def split_image_name(path: str) -> tuple[str, str]:
    """Return the key and the field of a file: the path without its extension, and the extension.

    A member's key ends at the first dot of its name, so further dots become underscores.

    >>> split_image_name("n01.v1/photo.v2.JPEG"), split_image_name("cat/scan")
    (('n01.v1/photo_v2', 'jpeg'), ('cat/scan', ''))
    """
    folder, slash, name = path.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    return folder + slash + (stem if dot else name).replace(".", "_"), extension.lower() * bool(dot)


def unified_field(name: str) -> str:
    """Return the field for images of several formats: readers choose a decoder by the extension,
    which then recognises the format by the content.

    >>> unified_field("image"), unified_field("photo.png"), unified_field("jpg")
    ('image.jpg', 'photo.png', 'jpg')
    """
    return name if is_image(f".{name}") else f"{name}.jpg"


def suggest_rename(wanted: Iterable[str], there: Iterable[str]) -> str:
    """Return a remedy for a sample whose image has another extension than the field asked for.

    >>> print(suggest_rename(["jpg"], ["__key__", "webp"]))
    ; images of several formats are one field after rename(image="jpg;jpeg;png;webp")
    """
    asked, found = (
        [name for name in names if "." not in name and is_image(f".{name}")]
        for names in (wanted, there)
    )
    if not asked or not found:
        return ""
    names = ";".join(dict.fromkeys(["jpg", "jpeg", "png", *asked, *found]))
    return f'; images of several formats are one field after rename(image="{names}")'
