"""Sound in files, as the items of a manifest read it: by path, or a part of it, as a tensor."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.codecs.arrays import as_array
from penstock.codecs.audio_truncation import FileBytes, check_frames, check_whole
from penstock.errors import DecodingError, MissingPackage, Origin, PipelineError, WriteError

if TYPE_CHECKING:
    from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class AudioInfo:
    """What a sound file says of itself."""

    sample_rate: int
    num_frames: int
    num_channels: int
    subtype: str

    @property
    def channels(self) -> int:
        """How many channels."""
        return self.num_channels

    @property
    def duration(self) -> float:
        """In seconds."""
        return self.num_frames / self.sample_rate


def read_audio(waveforms_obj: Any, backend: str | None = None) -> Tensor:
    """The sound as float32 numbers: (time), or (time, channels) where there are several.

    It is given as a path, bytes, an open file, or a dict ``{"file": …, "start": n, "stop": m}`` of
    frames; no ``stop``, or one equal to ``start``, means up to the end. A ``stop`` beyond the end
    gives fewer frames. A negative start and a stop before it are a
    :class:`~penstock.errors.PipelineError` (a ValueError); what is no sound, and a file that was
    cut before the part ends, is a :class:`~penstock.errors.DecodingError`. soundfile reads
    it, whatever ``backend`` says.

    >>> import os, tempfile, torch
    >>> path = os.path.join(tempfile.mkdtemp(), "a.wav")
    >>> write_audio(path, torch.linspace(-1, 1, 8), 8000)
    >>> read_audio(path).shape, read_audio({"file": path, "start": 2, "stop": 5}).shape
    (torch.Size([8]), torch.Size([3]))
    """
    import torch

    if not isinstance(waveforms_obj, Mapping):
        waveforms_obj = {"file": waveforms_obj}
    frames = _frames(waveforms_obj["file"], *_span(waveforms_obj))
    return torch.from_numpy(frames[:, 0] if frames.shape[1] == 1 else frames)


def read_audio_multichannel(waveforms_obj: Any, backend: str | None = None) -> Tensor:
    """The channels of several files side by side: ``{"files": [a, b], "start": n, "stop": m}``.

    Always (time, channels). Files of different length are a
    :class:`~penstock.errors.DecodingError`.

    >>> import os, tempfile, torch
    >>> path = os.path.join(tempfile.mkdtemp(), "a.wav")
    >>> write_audio(path, torch.zeros(8), 8000)
    >>> read_audio_multichannel({"files": [path, path]}).shape
    torch.Size([8, 2])
    """
    import numpy as np
    import torch

    if not isinstance(waveforms_obj, Mapping):
        waveforms_obj = {"files": waveforms_obj}
    files = waveforms_obj["files"]
    files = files if isinstance(files, (list, tuple)) else [files]
    found = [_frames(file, *_span(waveforms_obj)) for file in files]
    if len({len(frames) for frames in found}) > 1:
        lengths = sorted({len(frames) for frames in found})
        raise DecodingError(f"channels of one sound are as long, not {lengths} frames: {files}")
    return torch.from_numpy(np.concatenate(found, 1))


def read_audio_info(path: Any, backend: str | None = None) -> AudioInfo:
    """Sample rate, frames and channels, from the header.

    >>> import os, tempfile, torch
    >>> path = os.path.join(tempfile.mkdtemp(), "a.wav")
    >>> write_audio(path, torch.zeros(8, 2), 8000)
    >>> read_audio_info(path)
    AudioInfo(sample_rate=8000, num_frames=8, num_channels=2, subtype='PCM_16')
    """
    with _opened(path) as file:
        return AudioInfo(file.samplerate, file.frames, file.channels, file.subtype)


def write_audio(filepath: str | os.PathLike[str], audio: Any, samplerate: int) -> None:
    """Write numbers (time) or (time, channels) from -1 to 1; the name says the format.

    >>> import os, tempfile, torch
    >>> path = os.path.join(tempfile.mkdtemp(), "a.flac")
    >>> write_audio(path, torch.zeros(8), 8000)
    >>> os.path.exists(path)
    True
    """
    sound = as_array(audio)
    if sound.ndim not in (1, 2):
        raise WriteError(f"sound is (time) or (time, channels), not of shape {sound.shape}")
    soundfile = _soundfile("writing sound")
    try:
        soundfile.write(os.fspath(filepath), sound, int(samplerate))
    except (soundfile.LibsndfileError, TypeError, ValueError) as error:
        raise WriteError(
            f"cannot write the sound: {error}", origin=Origin(os.fspath(filepath))
        ) from error


def _soundfile(what: str) -> Any:
    try:
        import soundfile
    except ImportError:
        raise MissingPackage.of(what, "soundfile", "audio") from None
    return soundfile


def _span(given: Mapping[str, Any]) -> tuple[int, int | None]:
    start, stop = int(given.get("start") or 0), given.get("stop")
    stop = None if stop is None else int(stop)
    if start < 0 or (stop is not None and stop < start):
        raise PipelineError(f"a part of a sound has 0 <= start <= stop, not {start} and {stop}")
    return start, None if stop == start else stop


def _frames(file: Any, start: int, stop: int | None) -> Any:
    with _opened(file) as sound:
        begin = min(start, sound.frames)
        wanted = -1 if stop is None else stop - begin
        try:
            sound.seek(begin)
            frames = sound.read(wanted, dtype="float32", always_2d=True)
        except RuntimeError as error:  # libsndfile's
            raise _unreadable(file, error) from error
    if len(frames) != wanted:
        _check_whole(file, begin + len(frames))
    return frames


def _check_whole(file: Any, frames: int) -> None:
    """For a sound that came to its end: whether that is where it was to end."""
    if isinstance(file, int):
        return  # a descriptor, which soundfile has closed
    with contextlib.ExitStack() as stack:
        if isinstance(file, (str, os.PathLike)):
            file = stack.enter_context(open(file, "rb"))
        data = bytes(file) if isinstance(file, (bytes, bytearray)) else FileBytes(file)
        try:
            check_whole(data)
            check_frames(data, frames)
        except DecodingError as error:
            error.locate(_origin(file))
            raise


def _opened(file: Any) -> Any:
    soundfile = _soundfile("reading sound")
    if isinstance(file, (bytes, bytearray)):
        file = io.BytesIO(file)
    try:
        return soundfile.SoundFile(os.fspath(file) if isinstance(file, os.PathLike) else file)
    except (soundfile.LibsndfileError, TypeError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Any, error: Exception) -> DecodingError:
    why = getattr(error, "error_string", error)
    return DecodingError(f"cannot read the sound: {why}", origin=_origin(file))


def _origin(file: Any) -> Origin:
    held = isinstance(file, (bytes, bytearray, io.BytesIO))
    return Origin("sound" if held else str(getattr(file, "name", file)))
