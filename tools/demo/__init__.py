"""The parts of `tools/make_demo_corpus.py`: sentences, pronunciations, a synthesiser and a room."""
