"""Decode audio (flac, mp3, wav, ogg, m4a …) to an array and a sample rate; encode wav and flac.

The first installed library that can read the data is used: soundfile, then torchcodec,
torchaudio and av.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import limits
from penstock.codecs.arrays import as_array
from penstock.codecs.audio_files import read_frames
from penstock.codecs.audio_truncation import check_frames, check_whole
from penstock.codecs.field_handlers import handle_extension
from penstock.codecs.video import open_media, read_audio
from penstock.errors import DecodingError, MissingPackage, WriteError, optional

Array = np.ndarray[Any, np.dtype[Any]]
Sound = tuple[Array, int]

AUDIO_EXTENSIONS = "flac mp3 sox wav m4a ogg wma opus"

_NUMBER_BYTES = 4
_FORMATS = re.compile(
    rb"RIFF....WAVE|RIFX....WAVE|RF64|BW64|FORM....AIF|OggS|fLaC|\.snd|caff|....ftyp|ID3|\xff[\xe2-\xfb]"
    rb"|\x1aE\xdf\xa3|0&\xb2u\x8ef\xcf\x11|\.SoX|XoS\.",
    re.DOTALL,
)
"""First bytes of the formats that FFmpeg may read: the same formats as in ``video.open_media``."""
_BINARY = 32  # playlists are text: FFmpeg detects none if these first bytes contain a zero


def decode_audio(data: bytes) -> Sound:
    """Decode to float32 numbers from -1 to 1, one row per channel, and the sample rate.

    Raise :class:`~penstock.errors.DecodingError` for a truncated file, if its headers show that.
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
        except (DecodingError, MemoryError):  # too large, empty, or out of memory: no reader helps
            raise
        except Exception as error:  # noqa: BLE001  (each library has its own; reported below)
            failures.append(error)
    if not failures:
        raise MissingPackage.of("decoding audio", "soundfile", "audio")
    causes = "; ".join(str(getattr(error, "error_string", error)) for error in failures + hints)
    raise DecodingError(f"cannot read the audio: {causes}") from failures[0]


def decode_audio_as_tensor(data: bytes) -> tuple[Any, int]:
    """Decode as ``torchaudio.load`` does: a float32 tensor (channels, time), the sample rate."""
    torch = optional("torch", "torch", "decoding audio into tensors")
    sound, rate = decode_audio(data)
    return torch.from_numpy(np.ascontiguousarray(sound)), rate


def decode_audio_as_array(data: bytes) -> Sound:
    """Decode as ``soundfile.read`` does: a float32 array (time) or (time, channels), the rate."""
    sound, rate = decode_audio(data)
    return (sound[0] if len(sound) == 1 else np.ascontiguousarray(sound.T)), rate


torch_audio = handle_extension(AUDIO_EXTENSIONS, decode_audio_as_tensor)
"""A decoder's handler: audio fields as a tensor (channels, time) and the sample rate."""

audiohandler = handle_extension(AUDIO_EXTENSIONS, decode_audio_as_array)
"""A decoder's handler: audio fields as an array (time) or (time, channels) and the sample rate."""


def _read_by_soundfile(data: bytes) -> Sound:
    import soundfile

    with soundfile.SoundFile(io.BytesIO(data)) as file:
        sound = read_frames(file, most=limits.MAX_DECODED_BYTES)
        if not len(sound) and file.frames:
            raise _empty_error(f"{file.frames} frames")
        return sound.T, file.samplerate


def _read_by_torchcodec(data: bytes) -> Sound:
    from torchcodec.decoders import AudioDecoder

    _check_format(data)
    decoder = AudioDecoder(data)
    frames = 1 + limits.MAX_DECODED_BYTES // (_NUMBER_BYTES * (decoder.metadata.num_channels or 1))
    seconds = frames / decoder.metadata.sample_rate
    samples = decoder.get_samples_played_in_range(0.0, seconds)
    return _check_size(samples.data.numpy()), int(samples.sample_rate)


def _read_by_torchaudio(data: bytes) -> Sound:
    import torchaudio

    _check_format(data)
    frames = 1 + limits.MAX_DECODED_BYTES // _NUMBER_BYTES
    sound, rate = torchaudio.load(io.BytesIO(data), num_frames=frames)
    return _check_size(sound.numpy()), int(rate)


def _check_size(sound: Array) -> Array:
    if sound.nbytes > limits.MAX_DECODED_BYTES:
        raise limits.too_large("the audio")
    return sound


def _check_format(data: bytes) -> None:
    """Raise ValueError for other formats: FFmpeg also reads playlists, which name files and URLs.

    av has an argument for the admitted formats; torchcodec and torchaudio have none.
    """
    if not _FORMATS.match(data) or 0 not in data[:_BINARY]:
        raise ValueError("its first bytes are not those of an audio format that FFmpeg may read")


def _read_by_av(data: bytes) -> Sound:
    with open_media(data) as container:
        sound, rate = read_audio(container)
        if not sound.shape[1] and (container.duration or 0) > 0:
            raise _empty_error(f"{container.duration / 1e6:.3f} seconds")
        return sound, rate


def _empty_error(claimed: str) -> DecodingError:
    return DecodingError(f"the sound is cut: its header claims {claimed}, but it has no audio")


READERS: list[Callable[[bytes], Sound]] = [
    _read_by_soundfile,
    _read_by_torchcodec,
    _read_by_torchaudio,
    _read_by_av,
]


def _as_sound(value: Any) -> Sound:
    """Return (array, rate) or (tensor, rate) as an array (time, channels) and the rate."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise WriteError("audio is written from (array, rate) or (tensor, rate)")
    sound, rate = as_array(value[0]), int(value[1])
    sound = sound.reshape(-1, 1) if sound.ndim == 1 else sound
    if hasattr(value[0], "detach") and np.ndim(value[0]) == 2:
        sound = sound.T  # tensors are (channels, time), as in torchaudio
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
    """Encode (array, rate) or (tensor, rate) as WAV: int16 as 16 bits, floats as 32-bit floats."""
    # Not by libsndfile, which writes a timestamp into WAV files of floats.
    sound, rate = _as_sound(value)
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
    """Encode (array, rate) or (tensor, rate) as FLAC: int16 as 16 bits, floats as 24 bits."""
    soundfile = optional("soundfile", "audio", "encoding .flac")
    sound, rate = _as_sound(value)
    whole = sound.dtype == np.int16
    stream = io.BytesIO()
    subtype = "PCM_16" if whole else "PCM_24"
    soundfile.write(stream, sound, rate, format="FLAC", subtype=subtype)
    return stream.getvalue()
