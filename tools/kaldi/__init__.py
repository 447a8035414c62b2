"""Kaldi data directories, read and written without Kaldi and without a shell.

Source of the formats: Kaldi's documentation, "Data preparation" and "Kaldi I/O mechanisms".
"""
