from dataclasses import replace

import matplotlib.image
import numpy as np
from matplotlib.text import Text

from asr.report import plots
from asr.report.plots import Curve, plot_curves, plot_rate_by_time
from asr.report.table import Rate, Row

ROWS = [
    Row("softmax", {"test": Rate("PER", 9.1, 8.0, 10.3)}, dev_rate=9.0, epoch_seconds=41.0),
    Row("linear", {"test": Rate("PER", 8.9, 7.8, 10.1)}, dev_rate=8.5, epoch_seconds=40.0),
    Row("linear-2", {"test": Rate("PER", 8.9, 7.8, 10.1)}, dev_rate=8.5, epoch_seconds=40.5),
    Row("softmax", dev_rate=5.12, epoch_seconds=2711.0, published="paper"),
]


def drawn(monkeypatch, call):
    """The figure that `call(path)` would have written."""
    kept = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: kept.append(figure))
    call(None)
    return kept[0]


def test_png_is_written_and_not_blank(tmp_path):
    path = tmp_path / "new" / "a.png"
    plot_curves([Curve("softmax", [1, 2, 3], [90.0, 40.0, 10.0])], "dev PER (%)", path)
    image = matplotlib.image.imread(path)
    assert image.shape[1] > 800
    assert np.unique(image.reshape(-1, image.shape[-1]), axis=0).shape[0] > 10


def test_curves_have_labels_units_and_a_log_axis_where_values_span_much(monkeypatch):
    wide = [Curve("softmax", [1, 2], [90.0, 9.0]), Curve("lsh", [1, 2], [80.0, 20.0])]
    (axes,) = drawn(monkeypatch, lambda path: plot_curves(wide, "dev PER (%)", path)).axes
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("epoch", "dev PER (%)", "log")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["softmax", "lsh"]
    narrow = [Curve("softmax", [1, 2], [12.0, 9.0])]
    (axes,) = drawn(monkeypatch, lambda path: plot_curves(narrow, "dev PER (%)", path)).axes
    assert axes.get_yscale() == "linear"


def test_seeds_of_a_model_share_a_colour_and_a_name(monkeypatch):
    curves = [Curve(model, [1, 2], [2.0, 1.0]) for model in ("linear", "linear", "lsh")]
    (axes,) = drawn(monkeypatch, lambda path: plot_curves(curves, "loss", path, "update")).axes
    assert axes.get_xlabel() == "update"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["linear", "lsh"]
    one, two, three = axes.get_lines()
    assert one.get_color() == two.get_color() != three.get_color()


def test_one_epoch_has_whole_numbers_on_its_axis(monkeypatch):
    figure = drawn(monkeypatch, lambda path: plot_curves([Curve("a", [1], [99.0])], "PER (%)", path))
    ticks = figure.axes[0].get_xticks()
    assert [t for t in ticks if 0 <= t <= 2] == [0, 1, 2]


def test_names_of_points_do_not_overlap(monkeypatch):
    figure = drawn(monkeypatch, lambda path: plot_rate_by_time(ROWS, path))
    test, dev = figure.axes
    assert (test.get_ylabel(), dev.get_ylabel()) == ("test PER (%)", "best dev (%)")
    assert [text.get_text() for text in test.texts] == ["softmax", "linear", "linear-2"]
    assert "softmax (published)" in [text.get_text() for text in dev.texts]
    boxes = [text.get_window_extent() for text in test.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert dev.get_xscale() == "log"


def test_twenty_models_are_told_apart(monkeypatch):
    models = [f"a-mixer-{i}" for i in range(20)]
    near = [Row(m, {"test": Rate("PER", 9 + i % 5, 8, 14)}, epoch_seconds=40 + i / 4) for i, m in enumerate(models)]
    (axes,) = drawn(monkeypatch, lambda path: plot_rate_by_time(near, path)).axes
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # the names without their lines
    assert len(boxes) == 20
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    figure = drawn(monkeypatch, lambda path: plot_curves([Curve(m, [1, 2], [2.0, 1.0]) for m in models], "loss", path))
    figure.canvas.draw()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 20
    assert not legend.get_window_extent().overlaps(figure.axes[0].bbox)


def test_nothing_to_plot_still_makes_a_picture(tmp_path):
    undefined = replace(ROWS[0], rates={"test": Rate("PER", None)})
    plot_rate_by_time([undefined, replace(ROWS[1], epoch_seconds=None)], tmp_path / "a.png")
    plot_curves([Curve("softmax", [], [])], "dev PER (%)", tmp_path / "b.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert (tmp_path / "b.png").stat().st_size > 1000
