"""Sequence mixers: one file each, one shared interface.

Every mixer is an `nn.Module` that maps `x` (batch, time, dim) and integer `lengths` (batch,) to the same shape; its
config stands in the same file, is chosen by `kind` in a recipe and has `build(dim, heads, rotary)`. Padding never
changes a result. To add one: write its file, add its config to `asr.attention.config.AttentionConfig` and a row to
`MIXERS` in tests/attention/test_mixers.py, which puts it through the shared suite.
"""
