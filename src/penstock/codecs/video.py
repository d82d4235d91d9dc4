"""Decode video (mp4, webm, mov …) to frames, audio and their rates, by av (FFmpeg)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock import limits
from penstock.codecs.field_handlers import handle_extension
from penstock.errors import DecodingError, optional

Array = np.ndarray[Any, np.dtype[Any]]

VIDEO_EXTENSIONS = "mp4 ogv mjpeg avi mov h264 mpg webm wmv"

TIMES_LARGER = 16
"""The frames of a video may take this many times ``limits.MAX_DECODED_BYTES``."""

# FFmpeg also reads playlists that name other files and URLs. A field must not do that.
_FORMATS = (
    "mov mp4 m4a 3gp 3g2 mj2 matroska webm avi ogg mpeg mpegvideo mpegts h264 hevc mjpeg asf flac"
    " mp3 wav aac aiff au sox ivf flv"
)
_MAX_PIXELS = str(8192 * 8192)  # per frame; each of several threads holds one


@contextlib.contextmanager
def open_media(data: bytes) -> Iterator[Any]:
    """Open the data as an av container that cannot open other files."""
    av = optional("av", "video", "decoding video and m4a or wma audio")
    options = {"format_whitelist": _FORMATS.replace(" ", ","), "protocol_whitelist": "none"}
    try:
        with av.open(io.BytesIO(data), options=options) as container:
            yield container
    except av.error.MemoryError as error:  # FFmpeg's error for an implausible size in a header
        raise DecodingError(f"FFmpeg refuses the size that the data claims: {error}") from error


def decode_video(data: bytes) -> tuple[Any, Any, dict[str, Any]]:
    """Decode as ``torchvision.io.read_video`` does: frames, audio and rates.

    Frames are a uint8 tensor (time, height, width, 3), the audio a float32 tensor
    (channels, time), and the rates are ``video_fps`` and, if there is audio, ``audio_fps``.
    """
    torch = optional("torch", "torch", "decoding video into tensors")
    with open_media(data) as container:
        if not container.streams.video:
            raise DecodingError("there are no pictures in the video")
        stream = container.streams.video[0]
        info: dict[str, Any] = {}
        if stream.average_rate is not None:
            info["video_fps"] = float(stream.average_rate)
        frames = _read_frames(container)
        has_sound = bool(container.streams.audio)
    sound: Array = np.zeros((1, 0), np.float32)
    if has_sound:
        with open_media(data) as container:  # the first container is at its end
            sound, info["audio_fps"] = read_audio(container)
    return torch.from_numpy(frames), torch.from_numpy(sound), info


torch_video = handle_extension(VIDEO_EXTENSIONS, decode_video)
"""A decoder's handler: video fields as (frames, audio, rates), as in torchvision."""


def _read_frames(container: Any) -> Array:
    container.streams.video[0].codec_context.options = {"max_pixels": _MAX_PIXELS}
    frames: list[Array] = []
    most = left = TIMES_LARGER * limits.MAX_DECODED_BYTES
    for frame in container.decode(video=0):
        frames.append(frame.to_ndarray(format="rgb24"))
        left -= frames[-1].nbytes
        if left < 0:
            raise limits.too_large("the video", most)
    if not frames:
        raise DecodingError("there are no pictures in the video")
    return np.stack(frames)


def read_audio(container: Any) -> tuple[Array, int]:
    """Read the first audio stream as float32 (channels, time), and its sample rate."""
    import av

    if not container.streams.audio:
        raise DecodingError("there is no sound in the data")
    resampler = av.AudioResampler(format="fltp")
    parts: list[Array] = []
    rate, left = container.streams.audio[0].rate, limits.MAX_DECODED_BYTES
    for frame in container.decode(audio=0):
        more = [part.to_ndarray() for part in resampler.resample(frame)]
        parts += more
        left -= sum(part.nbytes for part in more)
        if left < 0:
            raise limits.too_large("the sound")
    if not parts:
        return np.zeros((1, 0), np.float32), int(rate)
    return np.concatenate(parts, axis=1), int(rate)
