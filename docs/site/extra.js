// What the theme makes when a page is loaded lacks two attributes: the version's button a name that contains its text, and
// wide tables, which scroll, a place in the order of the Tab key.
new MutationObserver(() => {
  for (const button of document.querySelectorAll(".md-version__current:not([data-named])")) {
    button.dataset.named = "";
    button.setAttribute("aria-label", `${button.textContent.trim()}: select version`);
  }
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    table.setAttribute("tabindex", "0");
  }
}).observe(document.documentElement, { childList: true, subtree: true });

// On a telephone, names in the cells of tables break after an underscore.
for (const code of document.querySelectorAll(".md-typeset td code")) {
  code.innerHTML = code.innerHTML.replace(/_(?![^<]*>)/g, "_<wbr>");
}

// Options in sentences do not break after their hyphens.
for (const code of document.querySelectorAll(".md-typeset :is(p, li) > code")) {
  if (code.textContent.length < 24) code.style.whiteSpace = "nowrap";
}

// Draw the Mermaid diagrams of a page, and again when its colours change. The source stays on the page, folded. The library,
// 0.8 MB compressed, is loaded only by pages that have a diagram.
const sources = [...document.querySelectorAll("pre.diagram")];

const drawings = () => sources.map((source) => {
  const drawing = document.createElement("div");
  const folded = document.createElement("details");
  const summary = document.createElement("summary");
  drawing.className = "drawing";
  drawing.tabIndex = 0; // it scrolls
  summary.textContent = "Source of the diagram";
  source.replaceWith(drawing, folded);
  folded.append(summary, source);
  return drawing;
});

const draw = async (places) => {
  const style = getComputedStyle(document.body);
  const colour = (name) => style.getPropertyValue(`--md-${name}`);
  const background = colour("default-bg-color"), line = colour("default-fg-color--light");
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: "strict",
    theme: "base",
    themeVariables: {
      background,
      primaryColor: colour("code-bg-color"),
      primaryTextColor: colour("default-fg-color"),
      primaryBorderColor: line,
      lineColor: line,
      edgeLabelBackground: background,
      fontFamily: style.fontFamily,
      dropShadow: "none",
      useGradient: false,
    },
  });
  for (const [at, source] of sources.entries()) {
    places[at].innerHTML = (await mermaid.render(`diagram-${at}`, source.textContent)).svg;
    const drawn = places[at].firstElementChild;
    drawn.style.minWidth = `${drawn.viewBox.baseVal.width * 0.7}px`; // the text stays legible
  }
};

if (sources.length) {
  const script = document.createElement("script");
  script.src = new URL("vendored/mermaid.tiny.js", document.currentScript.src);
  script.addEventListener("load", () => {
    const places = drawings();
    draw(places);
    new MutationObserver(() => draw(places)).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  });
  document.head.append(script);
}
