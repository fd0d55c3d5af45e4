"""Pictures have safe names that do not depend on the order of attacks, and show what they are given."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.audit.samples import (
    BLIND_ATTACK,
    BROKEN,
    HOLDS,
    distinguisher,
    fitted_secrets,
    picture,
    read_softmax,
    with_ssim,
)

from bilateral.audit.evidence import Curve, Picture
from bilateral.report.audit_overview import overview_figure
from bilateral.report.audit_pictures import (
    OVERVIEW,
    curve_figure,
    picture_figure,
    pictures_of,
    slug,
    write_overview,
    write_pictures,
)


def test_an_audit_gets_an_overview_its_pictures_and_its_curves(tmp_path):
    evidence = [replace(BROKEN, pictures=(picture(),)), fitted_secrets(), HOLDS]
    paths = write_pictures(evidence, tmp_path / "new")
    assert [path.name for path in paths] == [
        OVERVIEW,
        "single-uploads--adaptive-curious-server--cosine-inversion--reconstructions-from-one-upload.png",
        "line-1--adaptive-curious-client--least-squares-fit-of-the-group-secrets--agreement-over-labelled-samples.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_the_same_evidence_gives_the_same_bytes(tmp_path):
    evidence = [replace(BROKEN, pictures=(picture(),)), fitted_secrets()]
    first, second = (write_pictures(evidence, tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_an_attacks_pictures_are_found_again(tmp_path):
    seen = replace(BROKEN, pictures=(picture(), picture(channels=3)))
    paths = write_pictures([seen, fitted_secrets()], tmp_path)
    assert len(pictures_of(seen, paths)) == 2
    assert len(pictures_of(fitted_secrets(), paths)) == 1
    assert pictures_of(replace(seen, adaptive=False), paths) == []


def test_no_evidence_gives_no_picture(tmp_path):
    assert write_pictures([], tmp_path) == []


def test_the_overview_can_be_drawn_anew(tmp_path):
    write_pictures([HOLDS], tmp_path)
    before = (tmp_path / OVERVIEW).read_bytes()
    assert write_overview([HOLDS, BROKEN], tmp_path).read_bytes() != before


@pytest.mark.parametrize("text", ["../../etc/passwd", "a/b\\c:d", "PSNR > 20 dB (%)", "", "ü", "x" * 500])
def test_names_are_safe(text):
    name = slug(text)
    assert name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert len(name) <= 60


def test_small_images_are_enlarged_pixel_by_pixel_and_clipped():
    image = torch.tensor([[[2.0, 0.0], [0.25, -1.0]]])
    figure = picture_figure(Picture("one", ("target",), ((image,),)), BROKEN)
    shown = figure.axes[0].images[0]
    assert shown.get_interpolation() == "nearest"
    assert np.array_equal(np.asarray(shown.get_array()), [[1.0, 0.0], [0.25, 0.0]])


def test_colour_stays_colour():
    figure = picture_figure(picture(rows=1, channels=3), BROKEN)
    assert np.asarray(figure.axes[0].images[0].get_array()).shape == (8, 8, 3)


def test_captions_stand_above_their_columns():
    figure = picture_figure(picture(), BROKEN)
    assert [axes.get_title() for axes in figure.axes[:3]] == [
        "target",
        "from FedSGD\n26.0 dB",
        "from this plan\n9.5 dB",
    ]


def test_a_curve_has_a_line_and_a_band_for_each_name():
    axes = curve_figure(fitted_secrets().curves[0], fitted_secrets()).axes[0]
    assert [line.get_label() for line in axes.lines] == ["adaptive", "naive"]
    assert len(axes.collections) == 2
    assert axes.get_xscale() == "log"
    assert axes.get_yscale() == "linear"


def test_a_curve_with_an_unknown_interval_is_drawn():
    inf = float("inf")
    curve = Curve("one", "x", "y", {"a": ((1, 0.5, -inf, inf), (2, 0.6, -inf, inf))})
    assert len(curve_figure(curve, BROKEN).axes[0].lines) == 1


def test_the_overview_has_a_panel_for_each_metric_and_a_row_for_each_attack():
    evidence = [BROKEN, BLIND_ATTACK, fitted_secrets(), read_softmax(), distinguisher(), with_ssim(HOLDS, 0.6, 0.05)]
    panels = {axes.get_title(loc="left").split(" (")[0]: axes for axes in overview_figure(evidence).axes}
    rows = {name: len(axes.get_yticks()) for name, axes in panels.items()}
    assert rows == {
        "PSNR dB": 3,
        "agreement with the true model": 1,
        "largest softmax error": 1,
        "epsilon, lower bound": 1,
        "SSIM": 1,
    }
    assert panels["largest softmax error"].get_xscale() == "log"


def test_infinite_scores_do_not_spoil_the_overview(tmp_path):
    perfect = replace(BROKEN, target=replace(BROKEN.target, scores=(replace_values(BROKEN, float("inf")),)))
    assert write_overview([perfect, HOLDS], tmp_path).stat().st_size > 1000


def replace_values(evidence, value):
    return replace(evidence.target.scores[0], values=(value,) * 20)


def test_matplotlib_is_imported_only_when_something_is_drawn_and_pyplot_never(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from tests.audit.samples import BROKEN\n"
        "from bilateral.report.audit_html import write_overview\n"
        "assert 'matplotlib' not in sys.modules\n"
        "write_overview([BROKEN], Path(sys.argv[2]))\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(root), str(tmp_path)], check=True)
