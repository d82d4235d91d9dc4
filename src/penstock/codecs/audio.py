"""Audio: flac, mp3, wav, ogg, m4a … to numbers and a sample rate, and wav and flac back.

The first installed library that can read the data is used: soundfile, then torchcodec,
torchaudio and av.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.codecs import gzip_fields as gz
from penstock.codecs.arrays import as_array
from penstock.codecs.audio_truncation import check_frames, check_whole
from penstock.codecs.field_handlers import handle_extension
from penstock.codecs.video import open_media, read_audio
from penstock.errors import DecodingError, MissingPackage, WriteError

Array = np.ndarray[Any, np.dtype[Any]]
Sound = tuple[Array, int]

AUDIO_EXTENSIONS = "flac mp3 sox wav m4a ogg wma opus"

_BLOCK = 1 << 20  # numbers read at a time where the header cannot be believed


def decode_audio(data: bytes) -> Sound:
    """The sound as float32 numbers from -1 to 1, one row per channel, and its sample rate.

    A file that was cut is a :class:`~penstock.errors.DecodingError`, as far as it tells.
    """
    data = bytes(data)
    check_whole(data)
    failures: list[Exception] = []
    hints: list[Exception] = []
    for read in READERS:
        try:
            sound, rate = read(data)
            check_frames(data, sound.shape[1])
            return sound, rate
        except MissingPackage as error:
            hints.append(error)
        except ImportError:
            continue
        except DecodingError:  # ours: too large, or without sound; no other library will help
            raise
        except Exception as error:  # noqa: BLE001  (each library has its own; all are told below)
            failures.append(error)
    if not failures:
        raise MissingPackage.of("decoding audio", "soundfile", "audio")
    causes = "; ".join(str(getattr(error, "error_string", error)) for error in failures + hints)
    raise DecodingError(f"cannot read the audio: {causes}") from failures[0]


def decode_audio_as_tensor(data: bytes) -> tuple[Any, int]:
    """What ``torchaudio.load`` gives: a float32 tensor (channels, time) and the sample rate."""
    try:
        import torch
    except ImportError as error:
        raise MissingPackage.of("decoding audio into tensors", "torch", "torch") from error
    sound, rate = decode_audio(data)
    return torch.from_numpy(np.ascontiguousarray(sound)), rate


def decode_audio_as_array(data: bytes) -> Sound:
    """What ``soundfile.read`` gives: float32 numbers (time) or (time, channels), and the rate."""
    sound, rate = decode_audio(data)
    return (sound[0] if len(sound) == 1 else np.ascontiguousarray(sound.T)), rate


torch_audio = handle_extension(AUDIO_EXTENSIONS, decode_audio_as_tensor)
"""A decoder's handler: audio fields as a tensor (channels, time) and the sample rate."""

audiohandler = handle_extension(AUDIO_EXTENSIONS, decode_audio_as_array)
"""A decoder's handler: audio fields as an array (time) or (time, channels) and the sample rate."""


def _by_soundfile(data: bytes) -> Sound:
    import soundfile

    with soundfile.SoundFile(io.BytesIO(data)) as file:
        # A header may claim any number of frames: they are believed only as far as they come.
        frames = max(1, _BLOCK // file.channels)
        blocks, left = [], gz.MAX_DECODED_BYTES
        while len(block := file.read(frames, dtype="float32", always_2d=True)):
            blocks.append(block)
            left -= block.nbytes
            if left < 0:
                raise gz.too_large("the audio")
        if not blocks and file.frames:
            raise _nothing(f"{file.frames} frames")
        sound = np.concatenate(blocks) if blocks else np.zeros((0, file.channels), np.float32)
        return sound.T, file.samplerate


def _by_torchcodec(data: bytes) -> Sound:
    from torchcodec.decoders import AudioDecoder

    samples = AudioDecoder(data).get_all_samples()
    return samples.data.numpy(), int(samples.sample_rate)


def _by_torchaudio(data: bytes) -> Sound:
    import torchaudio

    sound, rate = torchaudio.load(io.BytesIO(data))
    return sound.numpy(), int(rate)


def _by_av(data: bytes) -> Sound:
    with open_media(data) as container:
        sound, rate = read_audio(container)
        if not sound.shape[1] and (container.duration or 0) > 0:
            raise _nothing(f"{container.duration / 1e6:.3f} seconds")
        return sound, rate


def _nothing(told: str) -> DecodingError:
    return DecodingError(f"the sound is cut: its header tells of {told}, and there is nothing")


READERS: list[Callable[[bytes], Sound]] = [_by_soundfile, _by_torchcodec, _by_torchaudio, _by_av]


def _sound(value: Any) -> Sound:
    """(array, rate) or (tensor, rate) as numbers (time, channels)."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise WriteError("audio is written from (array, rate) or (tensor, rate)")
    sound, rate = as_array(value[0]), int(value[1])
    sound = sound.reshape(-1, 1) if sound.ndim == 1 else sound
    if hasattr(value[0], "detach") and np.ndim(value[0]) == 2:
        sound = sound.T  # tensors are (channels, time), as torchaudio has them
    if sound.ndim != 2 or sound.dtype.kind not in "fi" or not 0 < sound.shape[1] < 256:
        raise WriteError(
            "audio is an array (time) or (time, channels), or a tensor (channels, time),"
            f" of int16 or float numbers, not {sound.dtype} of shape {sound.shape}"
        )
    if sound.dtype.kind == "i" and sound.dtype != np.int16:
        raise WriteError(f"audio of whole numbers is int16, not {sound.dtype}")
    if not 0 < rate < 1 << 31:
        raise WriteError(f"a sample rate is a positive number, not {rate}")
    return sound, rate


def wav_dumps(value: Any) -> bytes:
    """(array, rate) or (tensor, rate) as a WAV file: int16 as 16 bits, floats as 32-bit floats."""
    # Written by hand: libsndfile puts the time of day into WAV files of floats.
    sound, rate = _sound(value)
    whole = sound.dtype == np.int16
    body = np.ascontiguousarray(sound, "<i2" if whole else "<f4").tobytes()
    channels, width = sound.shape[1], 2 if whole else 4
    if len(body) >= (1 << 32) - 64:
        raise WriteError("a WAV file holds less than 4 GiB: use flac")
    frame = channels * width
    kind = 1 if whole else 3
    layout = struct.pack("<HHIIHH", kind, channels, rate, rate * frame, frame, 8 * width)
    chunks = _chunk(b"fmt ", layout)
    if not whole:
        chunks += _chunk(b"fact", struct.pack("<I", len(sound)))
    return _chunk(b"RIFF", b"WAVE" + chunks + _chunk(b"data", body))


def _chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)


def flac_dumps(value: Any) -> bytes:
    """(array, rate) or (tensor, rate) as a FLAC file: int16 as 16 bits, floats as 24 bits."""
    try:
        import soundfile
    except ImportError as error:
        raise MissingPackage.of("encoding .flac", "soundfile", "audio") from error
    sound, rate = _sound(value)
    whole = sound.dtype == np.int16
    stream = io.BytesIO()
    subtype = "PCM_16" if whole else "PCM_24"
    soundfile.write(stream, sound, rate, format="FLAC", subtype=subtype)
    return stream.getvalue()
