"use strict";
(() => {
  const style = getComputedStyle(document.documentElement);
  const colours = () => {
    const [text, line] = ["--text", "--line"].map((name) => style.getPropertyValue(name).trim());
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line };
    const flat = { "font.color": text };
    for (const [name, value] of Object.entries(axis)) {
      flat[`xaxis.${name}`] = value;
      flat[`yaxis.${name}`] = value;
    }
    return flat;
  };
  const config = { displaylogo: false, modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
  const plots = [...document.querySelectorAll("[data-plot]")];
  const drawn = new Map();
  // Anew for each width: plotly's own way to follow it leaves legends and titles where a narrower plot had them.
  const draw = (place) => {
    drawn.set(place, place.clientWidth);
    const { data, layout } = JSON.parse(document.getElementById(place.dataset.plot).textContent);
    if (place.clientWidth < 500)
      for (const [axis, narrow] of Object.entries(layout.meta ?? {})) Object.assign(layout[axis], narrow);
    Plotly.newPlot(place, data, layout, config).then(() => Plotly.relayout(place, colours()));
  };
  let soon = 0;
  const widths = new ResizeObserver(() => {
    clearTimeout(soon);
    soon = setTimeout(() => plots.filter((place) => drawn.get(place) !== place.clientWidth).forEach(draw), 100);
  });
  for (const place of plots) {
    draw(place);
    widths.observe(place);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const place of plots) Plotly.relayout(place, colours());
  });
})();
