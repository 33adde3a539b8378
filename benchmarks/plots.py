"""The curves of tests that go on for a while, drawn by plotly and photographed by a browser without a window."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.catalogue import OURS
from benchmarks.scenarios.degradation import PINNED

_WIDTH: Final = 1000
_HEIGHT: Final = 460
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_CURVES: Final = {
    "claims": ("claim_ms", "time of one claim, ms"),
    "depth": ("depth", "jobs waiting, none shown as one"),
}
_COLOURS: Final = ("#c0392b", "#2471a3", "#229954", "#8e44ad", "#b9770e", "#5d6d7e")


def draw(document: Mapping[str, Any], folder: Path) -> list[str]:
    """Write a picture a curve into a folder and return their names; none without a browser, or without the curves."""
    results = [result for result in document["results"] if result["scenario"] == "degradation" and result["series"]]
    pictures = {f"{name}.png": _figure(results, *curve) for name, curve in _CURVES.items()} if results else {}
    return [name for name, figure in pictures.items() if photograph(figure, folder / name)]


def photograph(figure: Any, picture: Path) -> bool:
    """Write a figure of plotly as a picture, in the style of all of them; False without a browser at hand."""
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        return False
    figure.update_layout(
        template="plotly_white",
        width=_WIDTH,
        height=_HEIGHT,
        margin={"l": 70, "r": 20, "t": 40, "b": 50},
        font={"family": "sans-serif", "size": 14},
    )
    _photograph(browser, str(figure.to_html(include_plotlyjs=True, config={"staticPlot": True})), picture)
    return True


def _figure(results: list[Any], field: str, title: str) -> Any:
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for number, result in enumerate(results):
        ours = result["case"] == OURS.name
        figure.add_scatter(
            x=[point["second"] for point in result["series"]],
            y=[_shown(point[field], field) for point in result["series"]],
            name=result["case"],
            mode="lines",
            connectgaps=True,
            line={"width": 4 if ours else 2, "color": _COLOURS[number % len(_COLOURS)]},
        )
    figure.add_vrect(
        x0=PINNED[0], x1=PINNED[1], fillcolor="#888", opacity=0.15, line_width=0, annotation_text="a transaction stays open"
    )
    figure.update_layout(xaxis_title="seconds", yaxis_title=title, yaxis_type="log")
    return figure


def _shown(value: float | None, field: str) -> float | None:
    # A logarithm has no place for nothing.
    return max(1.0, value) if field == "depth" and value is not None else value


def _photograph(browser: str, page: str, picture: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "page.html"
        file.write_text(page)
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={directory}/profile",
                f"--window-size={_WIDTH + 16},{_HEIGHT + 16}",
                "--virtual-time-budget=5000",
                f"--screenshot={picture.absolute()}",
                file.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
