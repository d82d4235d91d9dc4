"""Read audio files, or parts of them, as tensors; the functions that manifests call."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock import limits
from penstock.codecs.arrays import as_array
from penstock.codecs.audio_truncation import FileBytes, check_frames, check_whole
from penstock.errors import (
    DecodingError,
    Origin,
    PipelineError,
    SoundError,
    WriteError,
    optional,
)

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK_NUMBERS = 1 << 22  # 16 MiB


@dataclasses.dataclass(frozen=True, slots=True)
class AudioInfo:
    """The header of an audio file."""

    sample_rate: int
    num_frames: int
    num_channels: int
    subtype: str

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.num_channels

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return self.num_frames / self.sample_rate


def read_audio(waveforms_obj: Any, backend: str | None = None) -> Tensor:
    """Read audio as float32 numbers: (time), or (time, channels) if there are several channels.

    The argument is a path, bytes, an open file, or a dict ``{"file": …, "start": n, "stop": m}`` of
    frames; no ``stop``, or one equal to ``start``, means up to the end. A ``stop`` beyond the end
    returns fewer frames. A negative start, or a stop before it, raises
    :class:`~penstock.errors.PipelineError` (a ValueError); data that is no audio, or a file that is
    truncated before the part ends, raises :class:`~penstock.errors.DecodingError`. soundfile reads
    it; ``backend`` is ignored.

    >>> import os, tempfile, torch
    >>> path = os.path.join(tempfile.mkdtemp(), "a.wav")
    >>> write_audio(path, torch.linspace(-1, 1, 8), 8000)
    >>> read_audio(path).shape, read_audio({"file": path, "start": 2, "stop": 5}).shape
    (torch.Size([8]), torch.Size([3]))
    """
    import torch

    if not isinstance(waveforms_obj, Mapping):
        waveforms_obj = {"file": waveforms_obj}
    frames = _read_part(waveforms_obj["file"], *_span(waveforms_obj))
    return torch.from_numpy(frames[:, 0] if frames.shape[1] == 1 else frames)


def read_audio_multichannel(waveforms_obj: Any, backend: str | None = None) -> Tensor:
    """Read several files as channels of one tensor: ``{"files": [a, b], "start": n, "stop": m}``.

    The result is always (time, channels). Files of different length raise
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
    found = [_read_part(file, *_span(waveforms_obj)) for file in files]
    if len({len(frames) for frames in found}) > 1:
        lengths = sorted({len(frames) for frames in found})
        raise DecodingError(f"channels must have the same length, not {lengths} frames: {files}")
    return torch.from_numpy(np.concatenate(found, 1))


def read_audio_info(path: Any, backend: str | None = None) -> AudioInfo:
    """Read the sample rate, frames and channels from the header.

    >>> import os, tempfile, torch
    >>> path = os.path.join(tempfile.mkdtemp(), "a.wav")
    >>> write_audio(path, torch.zeros(8, 2), 8000)
    >>> read_audio_info(path)
    AudioInfo(sample_rate=8000, num_frames=8, num_channels=2, subtype='PCM_16')
    """
    with _open(path) as file:
        return AudioInfo(file.samplerate, file.frames, file.channels, file.subtype)


def write_audio(filepath: str | os.PathLike[str], audio: Any, samplerate: int) -> None:
    """Write numbers from -1 to 1, (time) or (time, channels), in the format of the file's name.

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
    return optional("soundfile", "audio", what)


def _span(given: Mapping[str, Any]) -> tuple[int, int | None]:
    start, stop = int(given.get("start") or 0), given.get("stop")
    stop = None if stop is None else int(stop)
    if start < 0 or (stop is not None and stop < start):
        raise PipelineError(f"a part of a sound has 0 <= start <= stop, not {start} and {stop}")
    return start, None if stop == start else stop


def read_frames(file: Any, wanted: int = -1, most: int | None = None) -> Any:
    """Read the next frames of an open soundfile (-1: all) as float32 numbers (time, channels).

    A header may claim any number of frames, so memory is allocated block by block. More than
    ``most`` bytes raise DecodingError.
    """
    import numpy as np

    claimed = file.frames - file.tell()
    wanted = claimed if wanted < 0 else min(wanted, claimed)
    block_frames = max(1, _BLOCK_NUMBERS // file.channels)
    blocks, taken = [], 0
    while wanted > 0:
        block = file.read(min(wanted, block_frames), dtype="float32", always_2d=True)
        if not len(block):
            break
        blocks.append(block)
        wanted -= len(block)
        taken += block.nbytes
        if most is not None and taken > most:
            raise limits.too_large("the audio")
    if not blocks:
        return np.zeros((0, file.channels), np.float32)
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _read_part(file: Any, start: int, stop: int | None) -> Any:
    with _open(file) as sound:
        begin = min(start, sound.frames)
        wanted = -1 if stop is None else stop - begin
        try:
            sound.seek(begin)
            frames = read_frames(sound, wanted)
        except RuntimeError as error:  # from libsndfile
            raise _unreadable(file, error) from error
    if len(frames) != wanted:
        _check_whole(file, begin + len(frames))
    return frames


def _check_whole(file: Any, frames: int) -> None:
    """Raise DecodingError if a file that was read to its end is truncated."""
    if isinstance(file, int):
        return  # a file descriptor, which soundfile has closed
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


def _open(file: Any) -> Any:
    soundfile = _soundfile("reading sound")
    if isinstance(file, (bytes, bytearray)):
        file = io.BytesIO(file)
    try:
        return soundfile.SoundFile(os.fspath(file) if isinstance(file, os.PathLike) else file)
    except (soundfile.LibsndfileError, TypeError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Any, error: Exception) -> SoundError:
    why = getattr(error, "error_string", error)
    return SoundError(f"cannot read the sound: {why}", origin=_origin(file))


def _origin(file: Any) -> Origin:
    held = isinstance(file, (bytes, bytearray, io.BytesIO))
    return Origin("sound" if held else str(getattr(file, "name", file)))
