// Live updates, theme and refresh settings. Without this script every page still reads, filters and acts.
(() => {
  "use strict";
  const stored = {
    get(name) { try { return localStorage.getItem(`sa_jobqueue.${name}`); } catch { return null; } },
    set(name, value) { try { localStorage.setItem(`sa_jobqueue.${name}`, value); } catch { /* kept for this page */ } },
  };
  const live = document.getElementById("live");
  const connection = document.getElementById("connection");
  const choice = (id, apply) => {
    const select = document.getElementById(id);
    if (!select) return;
    select.value = stored.get(id) ?? "";
    select.addEventListener("change", () => { stored.set(id, select.value); apply(select.value); });
  };

  choice("theme", (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  });

  // What a user has opened or selected stays as it is.
  const isBusy = () => live.querySelector("input:checked") !== null || live.contains(document.activeElement?.closest("form input, form select, form textarea"));
  if (window.Idiomorph) {
    Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.tagName === "DETAILS");
  }

  let timer = null;
  const schedule = () => {
    clearTimeout(timer);
    if (!live || !live.dataset.refresh) return;
    const chosen = stored.get("refresh");
    const seconds = Number(chosen === null || chosen === "" ? live.dataset.refresh : chosen);
    if (!(seconds > 0)) return;
    timer = setTimeout(() => {
      if (document.visibilityState === "visible" && !isBusy()) htmx.trigger(live, "refresh");
      else schedule();
    }, Math.min(Math.max(seconds, 1), 300) * 1000);
  };
  choice("refresh", schedule);

  const disconnected = (text) => {
    connection.textContent = text;
    connection.hidden = !text;
  };
  document.addEventListener("visibilitychange", schedule);
  document.addEventListener("htmx:afterRequest", (event) => {
    const status = event.detail.xhr?.status ?? 0;
    if (status === 0) disconnected("The connection to the dashboard is lost. It is tried again.");
    else if (status === 401) disconnected("You are no longer logged in. Reload the page.");
    else if (status >= 400) disconnected(`Not updated: ${event.detail.xhr.responseText.slice(0, 300)}`);
    else disconnected("");
    schedule();
  });
  schedule();
})();
