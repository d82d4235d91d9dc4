"""Video: mp4, webm, mov … to frames, sound and their rates, by av (FFmpeg)."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from penstock.codecs.field_handlers import handle_extension
from penstock.errors import DecodingError, MissingPackage

Array = np.ndarray[Any, np.dtype[Any]]

VIDEO_EXTENSIONS = "mp4 ogv mjpeg avi mov h264 mpg webm wmv"

MAX_VIDEO_BYTES = 16 << 30
"""The most that the frames of one field may take: a few bytes can say "the same once more"."""

# FFmpeg also reads play lists that name other files and addresses. A field may not do that.
_FORMATS = (
    "mov mp4 m4a 3gp 3g2 mj2 matroska webm avi ogg mpeg mpegvideo mpegts h264 hevc mjpeg asf flac"
    " mp3 wav aac aiff au sox ivf flv"
)
_MAX_PIXELS = "178956970"  # Pillow's limit for pictures


def open_media(data: bytes) -> Any:
    """The data as an av container that opens nothing else."""
    try:
        import av
    except ImportError as error:
        raise MissingPackage.of("decoding video and m4a or wma audio", "av", "video") from error
    options = {"format_whitelist": _FORMATS.replace(" ", ","), "protocol_whitelist": "none"}
    return av.open(io.BytesIO(data), options=options)


def decode_video(data: bytes) -> tuple[Any, Any, dict[str, Any]]:
    """What ``torchvision.io.read_video`` gives: frames, sound and rates.

    Frames are a uint8 tensor (time, height, width, 3), the sound a float32 tensor
    (channels, time), and the rates are ``video_fps`` and, where there is sound, ``audio_fps``.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingPackage.of("decoding video into tensors", "torch", "torch") from error
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
        with open_media(data) as container:  # streams are read one after the other
            sound, info["audio_fps"] = read_audio(container)
    return torch.from_numpy(frames), torch.from_numpy(sound), info


torch_video = handle_extension(VIDEO_EXTENSIONS, decode_video)
"""A decoder's handler: video fields as (frames, sound, rates), as torchvision has them."""


def _read_frames(container: Any) -> Array:
    container.streams.video[0].codec_context.options = {"max_pixels": _MAX_PIXELS}
    frames: list[Array] = []
    left = MAX_VIDEO_BYTES
    for frame in container.decode(video=0):
        frames.append(frame.to_ndarray(format="rgb24"))
        left -= frames[-1].nbytes
        if left < 0:
            raise DecodingError(f"the video unpacks to more than {MAX_VIDEO_BYTES} bytes")
    if not frames:
        raise DecodingError("there are no pictures in the video")
    return np.stack(frames)


def read_audio(container: Any) -> tuple[Array, int]:
    """The first sound of a container as float32 (channels, time), and its sample rate."""
    import av

    if not container.streams.audio:
        raise DecodingError("there is no sound in the data")
    resampler = av.AudioResampler(format="fltp")
    parts: list[Array] = []
    rate, left = container.streams.audio[0].rate, MAX_VIDEO_BYTES
    for frame in container.decode(audio=0):
        parts += [part.to_ndarray() for part in resampler.resample(frame)]
        left -= parts[-1].nbytes if parts else 0
        if left < 0:
            raise DecodingError(f"the sound unpacks to more than {MAX_VIDEO_BYTES} bytes")
    if not parts:
        return np.zeros((1, 0), np.float32), int(rate)
    return np.concatenate(parts, axis=1), int(rate)
