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
  const config = { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
  const plots = [...document.querySelectorAll("[data-plot]")];
  for (const place of plots) {
    const { data, layout } = JSON.parse(document.getElementById(place.dataset.plot).textContent);
    Plotly.newPlot(place, data, layout, config).then(() => Plotly.relayout(place, colours()));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const place of plots) Plotly.relayout(place, colours());
  });
})();
