"""espeak-ng through ctypes: phonemes in, samples and the phonemes spoken out; or words in, phonemes out.

The library and its data come from the wheel `espeakng-loader`. It is GPL-3, loaded at run time and no part of this
project.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from asr.errors import AsrError

# From espeak-ng's speak_lib.h.
_SYNCHRONOUS, _PHONEME_EVENTS, _DONT_EXIT = 2, 0x0001, 0x8000
_UTF8, _PHONEMES = 1, 0x100
_SEPARATED = ord(" ") << 8  # bits 8 to 23: what stands between phonemes
_RATE, _PITCH, _RANGE = 1, 3, 4
_LIST_TERMINATED, _PHONEME = 0, 7


class _Id(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    ]


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


@dataclass
class Speech:
    """What one call gave: `samples` (n,) float32 in [-1, 1] at `rate` Hz, and espeak-ng's names of the phonemes."""

    rate: int
    samples: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    phonemes: list[str] = field(default_factory=list)


def speak(text: str, *, voice: str, rate: int, pitch: int, pitch_range: int, seed: int) -> Speech:
    """Synthesise `text`, which may hold `[[phonemes]]`.

    voice: a voice file and a variant, such as `gmw/en-US+f3`; rate: words per minute, 80 to 450; pitch, pitch_range:
    0 to 100, 50 is the voice's own; seed: of the noise in breathy voices.

    The same arguments give the same samples, whatever was spoken before: espeak-ng carries the phase of its noise and
    pitch flutter from one call to the next and no call resets it, so that the library is loaded afresh each time
    (some 5 ms). That needs a C library that unloads, such as glibc.

    Raises AsrError where the package or the voice is missing, or nothing is spoken.
    """
    with _loaded(voice) as (library, spoken_rate):
        speech = Speech(spoken_rate)
        _speak(library, speech, text, {_RATE: rate, _PITCH: pitch, _RANGE: pitch_range}, seed)
    if not len(speech.samples):
        raise AsrError(f"espeak-ng spoke nothing for {text!r}")
    return speech


def phonemes_of(texts: Iterable[str], *, voice: str) -> list[list[str]]:
    """The phonemes that espeak-ng would speak for each text, by its rules and its dictionary; nothing is synthesised.

    They carry its stress marks (`'` primary, `,` secondary) and include its pauses. A text does not depend on those
    before it. Raises AsrError where the package or the voice is missing.
    """
    with _loaded(voice) as (library, _):
        library.espeak_TextToPhonemes.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int]
        library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        return [_phonemes(library, text.encode("utf-8")) for text in texts]


def _phonemes(library: ctypes.CDLL, data: bytes) -> list[str]:
    names: list[str] = []
    rest = ctypes.c_char_p(data)
    while rest.value is not None:  # each call reads one clause and moves on; after the last one the pointer is null
        names += (library.espeak_TextToPhonemes(ctypes.byref(rest), _UTF8, _SEPARATED) or b"").decode("utf-8").split()
    return names


@contextmanager
def _loaded(voice: str) -> Iterator[tuple[ctypes.CDLL, int]]:
    """A library of its own that speaks with `voice`, and its sample rate in Hz."""
    library_path, data_path = _find()
    library = ctypes.CDLL(library_path)
    try:
        library.espeak_Initialize.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
        rate = library.espeak_Initialize(_SYNCHRONOUS, 0, os.fsencode(data_path), _PHONEME_EVENTS | _DONT_EXIT)
        if rate <= 0:
            raise AsrError(
                f"espeak-ng cannot use its data in {data_path} (paths above 150 characters are too long for it)"
            )
        try:
            if library.espeak_SetVoiceByName(voice.encode()):
                raise AsrError(f"espeak-ng has no voice {voice!r}")
            yield library, rate
        finally:
            library.espeak_Terminate()
    finally:
        unload = _ctypes.FreeLibrary if os.name == "nt" else _ctypes.dlclose  # type: ignore[attr-defined]
        unload(library._handle)


def _speak(library: ctypes.CDLL, speech: Speech, text: str, settings: dict[int, int], seed: int) -> None:
    chunks = []

    def collect(samples, count, event) -> int:
        if samples and count:
            chunks.append(ctypes.string_at(samples, count * 2))
        index = 0
        while event[index].type != _LIST_TERMINATED:
            if event[index].type == _PHONEME:
                speech.phonemes.append(event[index].id.string.decode("utf-8"))
            index += 1
        return 0

    callback = _Callback(collect)  # must outlive the call
    library.espeak_SetSynthCallback(callback)
    library.espeak_ng_SetRandSeed(ctypes.c_long(seed))
    for parameter, value in settings.items():
        library.espeak_SetParameter(parameter, value, 0)
    data = text.encode("utf-8")
    size = ctypes.c_size_t(len(data) + 1)
    if library.espeak_Synth(data, size, 0, 1, 0, _UTF8 | _PHONEMES, None, None):
        raise AsrError(f"espeak-ng cannot speak {text!r}")
    speech.samples = np.frombuffer(b"".join(chunks), np.int16).astype(np.float32) / 32768


def _find() -> tuple[str, str]:
    try:
        import espeakng_loader
    except ImportError:
        raise AsrError(
            "this needs espeak-ng, from the package espeakng-loader (GPL-3, loaded at run time only): "
            "pip install 'asr[demo]'"
        ) from None
    return str(espeakng_loader.get_library_path()), str(espeakng_loader.get_data_path())
