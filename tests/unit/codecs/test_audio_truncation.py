"""A sound that was cut is an error; whatever is whole, or does not tell, is none."""

from __future__ import annotations

import io
import struct
import sys

import numpy as np
import pytest

import penstock as wds
from penstock.codecs import audio
from penstock.codecs.audio import decode_audio, flac_dumps, wav_dumps
from penstock.codecs.audio_truncation import check_frames, check_whole
from penstock.errors import DecodingError

soundfile = pytest.importorskip("soundfile")

RATE = 16000
NOISE = (np.random.default_rng(0).standard_normal(3 * RATE + 1) * 0.2).astype(np.float32)
WAV = wav_dumps(((NOISE * 32767).astype(np.int16), RATE))
DATA = 44  # where the sound of such a file begins

FORMATS = [
    ("WAV", "PCM_16"),
    ("WAV", "PCM_U8"),
    ("WAV", "FLOAT"),
    ("WAV", "MS_ADPCM"),
    ("WAVEX", "PCM_24"),
    ("RF64", "PCM_16"),
    ("W64", "PCM_16"),
    ("AIFF", "PCM_16"),
    ("AIFF", "PCM_24"),
    ("AU", "PCM_16"),
    ("CAF", "PCM_16"),
    ("NIST", "PCM_16"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
    ("FLAC", "PCM_16"),
]


def written(format, subtype, sound=NOISE):
    stream = io.BytesIO()
    soundfile.write(stream, sound, RATE, format=format, subtype=subtype)
    return stream.getvalue()


class Pipe:
    """A file that cannot go back to write how long it has become."""

    def __init__(self):
        self.parts = []

    def write(self, part):
        self.parts.append(bytes(part))
        return len(part)


def written_by_ffmpeg(format, codec, pipe=False, **options):
    av = pytest.importorskip("av")
    stream = Pipe() if pipe else io.BytesIO()
    with av.open(stream, "w", format=format, options=options) as container:
        track = container.add_stream(codec, rate=RATE, layout="mono")
        numbers = (NOISE[None] * 32767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(numbers, format="s16", layout="mono")
        frame.rate = RATE
        resampler = av.AudioResampler(format=track.format, layout="mono", rate=RATE)
        for part in [*resampler.resample(frame), None]:
            container.mux(track.encode(part))
    return b"".join(stream.parts) if pipe else stream.getvalue()


def pages(data):
    """Where the pages of an Ogg file begin, and where the last ends."""
    places = [0]
    while places[-1] < len(data):
        at = places[-1]
        places.append(at + 27 + data[at + 26] + sum(data[at + 27 : at + 27 + data[at + 26]]))
    return places


def refused(data):
    with pytest.raises(DecodingError, match="is cut") as caught:
        decode_audio(data)
    return str(caught.value)


@pytest.mark.parametrize(("format", "subtype"), FORMATS)
@pytest.mark.parametrize("frames", [1, 2, 20_001, len(NOISE)])
def test_a_whole_file_is_read(format, subtype, frames):
    assert decode_audio(written(format, subtype, NOISE[:frames]))[0].shape[1] >= frames


@pytest.mark.parametrize(("format", "subtype"), FORMATS)
@pytest.mark.parametrize("without", ["3 bytes", "200 bytes", "half"])
def test_a_cut_file_is_an_error(format, subtype, without):
    whole = written(format, subtype)
    data = whole[: {"3 bytes": -3, "200 bytes": -200, "half": len(whole) // 2}[without]]
    with pytest.raises(DecodingError, match="is cut" if format != "FLAC" else "cannot read|is cut"):
        decode_audio(data)


@pytest.mark.parametrize("reader", ["soundfile", "av"])
@pytest.mark.parametrize(
    ("format", "subtype"), [("WAV", "PCM_16"), ("OGG", "OPUS"), ("FLAC", "PCM_16")]
)
def test_whichever_library_reads_it(monkeypatch, reader, format, subtype):
    pytest.importorskip(reader)
    monkeypatch.setattr(audio, "READERS", [getattr(audio, f"_read_by_{reader}")])
    data = written(format, subtype)
    decode_audio(data)
    with pytest.raises(DecodingError):
        decode_audio(data[:-200])


def test_a_cut_field_is_left_out_by_a_handler_and_has_an_origin(shard):
    url = shard([("a", {"wav": WAV}), ("b", {"wav": WAV[:-1000]})])
    clips = wds.WebDataset(url, shardshuffle=False).map_dict(wav=wds.AudioClip(RATE, seconds=4))
    with pytest.raises(DecodingError, match=r"1000 of its 96002 bytes are missing.*sample 'b'"):
        list(clips)
    silent = wds.WebDataset(url, shardshuffle=False).map_dict(
        wav=wds.AudioClip(RATE, seconds=4), handler=wds.ignore_and_continue
    )
    assert [sample["__key__"] for sample in silent] == ["a"]


def test_a_header_alone_is_cut():
    assert "96002 of its 96002 bytes" in refused(WAV[:DATA])
    assert "96006 of its 96046 bytes" in refused(WAV[: DATA - 4])
    assert "of its 96106 bytes" in refused(written("W64", "PCM_16")[:100])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_is_read(kind):
    assert decode_audio(kind(WAV))[0].shape == (1, len(NOISE))
    refused(kind(WAV[:-10]))


def test_a_header_that_tells_of_nothing_is_an_empty_sound():
    assert decode_audio(written("WAV", "PCM_16", NOISE[:0]))[0].shape == (1, 0)
    assert decode_audio(written("OGG", "VORBIS", NOISE[:0]))[0].shape == (1, 0)


@pytest.mark.parametrize("told", [0, 0x7FFFF000, 0x80000000, 0xFFFFFFFF])
def test_writers_into_pipes_need_not_tell_the_size(told):
    size = struct.pack("<I", told)
    data = WAV[:4] + size + WAV[8 : DATA - 4] + size + WAV[DATA:]
    check_whole(data)
    check_whole(data[:-1000])


@pytest.mark.parametrize("format", ["wav", "aiff"])
def test_ffmpeg_into_a_pipe(format):
    codec = "pcm_s16le" if format == "wav" else "pcm_s16be"
    data = written_by_ffmpeg(format, codec, pipe=True)
    assert decode_audio(data)[0].shape == (1, len(NOISE))


def test_the_byte_that_makes_a_chunk_even_may_be_missing():
    data = written("WAV", "PCM_U8")
    assert len(data) % 2 == 0 == (len(NOISE) + 1) % 2
    assert decode_audio(data[:-1])[0].shape == (1, len(NOISE))
    refused(data[:-2])


def test_what_stands_behind_the_sound_is_not_looked_at():
    for format, subtype in FORMATS[:-1]:
        if format != "CAF":
            check_whole(written(format, subtype) + b"what someone added" * 20)
    listed = WAV + b"LIST" + struct.pack("<I", 1000) + bytes(10)
    assert decode_audio(listed)[0].shape == (1, len(NOISE))


def test_a_sphere_file_that_was_packed_does_not_tell():
    data = written("NIST", "PCM_16")
    check_whole(data.replace(b"end_head", b"sample_coding -s26 pcm,embedded-shorten-v2.00")[:-200])


def test_a_size_that_counts_the_header_too_is_believed_to_be_a_slip():
    slip = WAV[: DATA - 4] + struct.pack("<I", len(WAV)) + WAV[DATA:]
    assert decode_audio(slip)[0].shape == (1, len(NOISE))
    refused(slip[:-2])


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_an_ogg_file_may_lack_the_mark_of_the_last_page(subtype):
    data = written("OGG", subtype)
    places = pages(data)
    check_whole(data[: places[-2]])  # as Android's recorder writes it


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
@pytest.mark.parametrize("left", [2, 20, 30])
def test_an_ogg_file_ends_with_a_whole_page(subtype, left):
    data = written("OGG", subtype)
    assert "last page" in refused(data[: pages(data)[-2] + left])


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_an_ogg_file_of_headers_alone_is_cut(subtype):
    assert "headers" in refused(written("OGG", subtype)[: pages(written("OGG", subtype))[2]])


def test_a_packet_that_continues_after_the_last_page_is_cut():
    page = b"OggS\0\0" + struct.pack("<q", 10) + bytes(12) + b"\1\xff" + bytes(255)
    with pytest.raises(DecodingError, match="continues after"):
        check_whole(page)
    check_whole(page + b"a page whose mark was damaged")
    check_whole(page + b"OggS\0\1" + struct.pack("<q", 10) + bytes(12) + b"\1\x01" + bytes(1))


@pytest.mark.parametrize("pipe", [False, True])
@pytest.mark.parametrize("options", [{}, {"write_xing": "0"}, {"id3v2_version": "0"}])
def test_mp3_by_ffmpeg_with_and_without_its_length(pipe, options):
    data = written_by_ffmpeg("mp3", "libmp3lame", pipe=pipe, **options)
    assert decode_audio(data)[0].shape[1] >= len(NOISE)
    for cut in (3, 100, len(data) // 3):
        assert "missing" in refused(data[:-cut])


@pytest.mark.parametrize(
    "tag", [b"TAG" + bytes(125), b"APETAGEX" + bytes(300), bytes(500), b"\xff" * 500]
)
@pytest.mark.parametrize("xing", ["0", "1"])
def test_tags_behind_an_mp3_are_no_frame(tag, xing):
    data = written_by_ffmpeg("mp3", "libmp3lame", write_xing=xing)
    assert decode_audio(data + tag)[0].shape[1] >= len(NOISE)


def test_an_mp3_that_tells_too_many_bytes_is_counted_by_frames():
    data = written("MP3", "MPEG_LAYER_III")
    at = data.index(b"Xing") + 12
    assert struct.unpack(">I", data[at : at + 4])[0] == len(data)
    more = data[:at] + struct.pack(">I", len(data) + 500) + data[at + 4 :]
    check_whole(more)
    with pytest.raises(DecodingError, match=r"1 of its \d+ frames"):
        check_whole(more[:-3])


def test_every_length_of_an_mp3_that_tells_is_seen_to_be_cut():
    data = written("MP3", "MPEG_LAYER_III", NOISE[:3000])
    for length in range(4, len(data)):
        with pytest.raises(DecodingError):
            check_whole(data[:length])


def test_an_mp3_of_one_bitrate_is_walked_to_its_last_frame():
    frame = b"\xff\xfb\x92\x00" + bytes(414)  # 128 kbit/s at 44.1 kHz, padded by a byte
    check_whole(frame * 3)
    check_whole((frame * 3)[:-1])  # the padding
    with pytest.raises(DecodingError, match="2 bytes of its last frame"):
        check_whole((frame * 3)[:-2])
    with pytest.raises(DecodingError, match="414 bytes of its last frame"):
        check_whole(frame * 2 + frame[:4])


@pytest.mark.parametrize("options", [{}, {"movflags": "frag_keyframe+empty_moov"}])
def test_an_m4a_is_cut_where_its_samples_are(options):
    data = written_by_ffmpeg("ipod", "aac", **options)
    assert decode_audio(data)[0].shape[1] >= len(NOISE)
    assert "missing" in refused(data[: len(data) // 2])


def test_a_flac_tells_how_many_frames_it_has():
    data = flac_dumps((NOISE, RATE))
    check_frames(data, len(NOISE))
    with pytest.raises(DecodingError, match="1 of its 48001 frames"):
        check_frames(data, len(NOISE) - 1)
    unknown = data[:21] + bytes([data[21] & 0xF0]) + bytes(4) + data[26:]
    check_frames(unknown, 5)


def test_a_flac_that_ends_between_two_frames_is_cut(monkeypatch):
    monkeypatch.setattr(audio, "READERS", [lambda data: (NOISE[None, :-4096], RATE)])
    assert "4096 of its 48001 frames" in refused(flac_dumps((NOISE, RATE)))


def test_nothing_decoded_of_a_file_that_tells_of_some_is_cut(monkeypatch):
    class Silent(soundfile.SoundFile):
        def read(self, *args, **options):
            return np.zeros((0, 1), np.float32)

    monkeypatch.setattr(soundfile, "SoundFile", Silent)
    assert "48001 frames" in refused(WAV)
    pytest.importorskip("av")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setattr(audio, "read_audio", lambda container: (np.zeros((1, 0), "f4"), RATE))
    assert "3.000 seconds" in refused(WAV)


@pytest.mark.parametrize(("format", "subtype"), FORMATS)
def test_the_beginning_of_a_file_is_never_taken_for_it(format, subtype):
    data = written(format, subtype)
    for length in range(60):
        with pytest.raises(DecodingError):
            decode_audio(data[:length])


@pytest.mark.parametrize(("format", "subtype"), FORMATS)
def test_damaged_headers_raise_nothing_else(format, subtype):
    data = bytearray(written(format, subtype, NOISE[:500]))
    draws = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(data[: draws.integers(1, len(data) + 1)])
        for place in draws.integers(0, min(100, len(damaged)), 4):
            damaged[place] = draws.choice([0, 1, 127, 255, draws.integers(256)])
        try:
            check_whole(bytes(damaged))
        except DecodingError:
            continue


def test_a_long_file_costs_a_look_at_its_headers():
    class Counted(bytes):
        asked = 0

        def __getitem__(self, part):
            found = super().__getitem__(part)
            Counted.asked += len(found)
            return found

    data = Counted(WAV[:4] + struct.pack("<I", 0) + WAV[8:])
    check_whole(data)
    assert Counted.asked < 100
