"""Experiment folders as a training leaves them, without the training."""

import json

import pytest

BASE = """\
seed: 1
data: {train: train.jsonl, dev: dev.jsonl, test: {test: test.jsonl}}
"""


class Fake:
    """Recipes in a folder, and what training them would have written."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "base.yaml").write_text(BASE)

    def recipe(self, name, kind="softmax", more=""):
        path = self.folder / f"{name}.yaml"
        path.write_text(
            f"extends: base.yaml\nmodel: {{encoder: {{kind: transformer, attention: {{kind: {kind}}}}}}}\n{more}"
        )
        return path

    def train(self, exp, recipe, seconds=(9.0, 2.0, 2.2, 2.1), rates=(90.0, 50.0, 30.0, 31.0), end=True, **start):
        """Write what the trainer writes. The first epoch is slow: it pays for warm-up."""
        from asr.recipe_loader import dump_recipe

        exp.mkdir(parents=True, exist_ok=True)
        (exp / "recipe.yaml").write_text(dump_recipe(recipe))
        (exp / "best.pt").write_bytes(b"")
        (exp / "last.pt").write_bytes(b"")
        about = {
            "name": recipe.name,
            "parameters": 1234567,
            "device": "cpu",
            "threads": 1,
            "utterances": 30,
            "frames": 6000,
        }
        events = [{"event": "start", **about, **start}]
        for number, (second, rate) in enumerate(zip(seconds, rates, strict=True), 1):
            events.append(
                {
                    "event": "epoch",
                    "epoch": number,
                    "seconds": {"total": second + 1},
                    "train_seconds": second,
                    "frames": 6000,
                    "loss": rate / 20,
                    "dev_per": rate,
                    "peak_memory_mb": 400.0 + number,
                    "elapsed": sum(seconds[:number]) + number,
                }
            )
        if end:
            events.append({"event": "end", "reason": "finished"})
        (exp / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.fixture
def fake(tmp_path):
    return Fake(tmp_path)
