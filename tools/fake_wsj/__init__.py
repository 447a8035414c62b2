"""The parts of `tools/make_fake_wsj.py`: the plan, transcription marks, a SPHERE writer with a shorten encoder."""
