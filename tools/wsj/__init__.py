"""The parts of `tools/prepare_wsj.py`: discs, indices, sets, transcripts, the normaliser, pronunciations."""
