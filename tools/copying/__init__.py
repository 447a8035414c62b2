"""The parts of `tools/copy_task.py`: the recipe, the sequences, the model, its training, the report."""
