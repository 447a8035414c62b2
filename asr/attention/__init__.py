"""Sequence mixers: one file each, one shared interface.

`asr.attention.mixer` has the interface: an `nn.Module` that maps `x` (batch, time, dim) and integer `lengths` (batch,)
to the same shape, where padding never changes a result, and its config, chosen by `kind` in a recipe.

To add one:

1. Write its file: equation, paper, cost in N and state size at the head; a config derived from `MixerConfig` (or from
   `asr.attention.directions.DirectionalConfig` where it is a recurrence by nature, which gives the two-way form), and a
   `Mixer`. What it cannot do is refused in the config's `check`, when the recipe is read. One that forms matrices of
   frame pairs says how large in `pair_bytes`.
2. Add the config to `asr.attention.config.AttentionConfig`.
3. Add one row to `MIXERS` in tests/attention/test_mixers.py: padding, batches, causality, gradients, the equal forms,
   reloading, autocast, empty and one-frame inputs are then tested. What is its own goes to a test file of its own.
"""
