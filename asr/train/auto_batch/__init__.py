"""`training.batch_frames: auto`: the largest batch that fits the memory, found by trying before the first step.

`plan` puts it together: `search` proposes sizes, `worst` says which batches of a size take most memory, `step` trains
on them and measures, `available` says what there is.
"""
