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
