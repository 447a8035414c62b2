"""Samples in: read any file, resample, log-mel filterbanks, normalisation."""

from asr.audio.cmvn import Cmvn
from asr.audio.fbank import fbank, num_frames
from asr.audio.read import Audio, audio_info, read_audio
from asr.audio.source import AudioInfo

__all__ = ["Audio", "AudioInfo", "Cmvn", "audio_info", "fbank", "num_frames", "read_audio"]
