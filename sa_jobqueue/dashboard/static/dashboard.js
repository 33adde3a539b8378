// Live updates, charts, times, keys and settings. Without this script every page still reads, filters and acts.
(() => {
  "use strict";
  const stored = {
    get(name) { try { return localStorage.getItem(`sa_jobqueue.${name}`); } catch { return null; } },
    set(name, value) { try { localStorage.setItem(`sa_jobqueue.${name}`, value); } catch { /* kept for this page */ } },
  };
  const byId = (id) => document.getElementById(id);
  const live = byId("live");

  const choice = (id, apply) => {
    const select = byId(id);
    if (!select) return;
    select.value = stored.get(id) ?? "";
    if (select.selectedIndex < 0) select.value = "";
    select.addEventListener("change", () => { stored.set(id, select.value); apply(select.value); });
  };

  // Times: in the chosen zone or relative to now, with all of them in the title. "Now" is by the database's clock.
  const zones = byId("zone");
  const zoneNames = () => Intl.supportedValuesOf?.("timeZone") ?? [];
  const addZones = (names) => {
    const there = new Set([...zones.options].map((one) => one.value));
    for (const name of names) if (!there.has(name)) zones.add(new Option(name, name));
  };
  if (stored.get("zone")) addZones(zoneNames().filter((name) => name === stored.get("zone")));
  // All of the four hundred when one may be chosen, which keeps pages quick to open.
  byId("settings").addEventListener("toggle", () => addZones(zoneNames()), { once: true });
  const ahead = Date.parse(document.body.dataset.now) - Date.now();
  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const inWords = (at) => {
    const seconds = (at - Date.now() - ahead) / 1000;
    const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? UNITS[3];
    const span = `${Math.trunc(Math.abs(seconds) / size)} ${unit}`;
    return seconds < 0 ? `${span} ago` : `in ${span}`;
  };
  const formats = new Map();
  const inZone = (at, zone) => {
    if (!formats.has(zone)) {
      formats.set(zone, new Intl.DateTimeFormat("en-GB", {
        timeZone: zone || undefined, timeZoneName: "short", hourCycle: "h23", year: "numeric",
        month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
      }));
    }
    const part = Object.fromEntries(formats.get(zone).formatToParts(at).map(({ type, value }) => [type, value]));
    return `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second} ${part.timeZoneName}`;
  };
  const chosenZone = () => (zones.value === "local" ? "" : zones.value || "UTC");
  const showTimes = () => {
    const zone = chosenZone();
    for (const time of document.querySelectorAll("time[datetime]")) {
      const at = Date.parse(time.dateTime);
      if (Number.isNaN(at)) continue;  // a year that only PostgreSQL has
      time.dataset.utc ??= time.textContent;
      const there = zone === "UTC" ? time.dataset.utc : inZone(at, zone);
      const words = inWords(at);
      time.title = [...new Set([there, time.dataset.utc, words])].join("\n");
      // In the rows of a table an age is read at a glance, and leaves room for the other columns.
      const isBrief = byId("times").value === "relative" || (!byId("times").value && time.closest("td, tbody th"));
      time.textContent = isBrief ? words : there;
    }
  };
  setInterval(() => { if (document.visibilityState === "visible") showTimes(); }, 10_000);

  // Copies exactly what the server sent.
  const copied = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const place = Object.assign(document.createElement("textarea"), { value: text, className: "visually-hidden" });
    document.body.append(place);  // without https there is no clipboard
    place.select();
    const done = document.execCommand("copy");
    place.remove();
    if (!done) throw new Error("refused");
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const { copy, copyFrom } = button.dataset;
    try {
      await copied(copyFrom ? byId(copyFrom).textContent : copy);
      byId("announced").textContent = "Copied.";
      button.classList.add("done");
      setTimeout(() => button.classList.remove("done"), 2000);
    } catch {
      byId("announced").textContent = "The browser did not allow to copy.";
    }
  });

  choice("theme", (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  });
  choice("times", showTimes);
  choice("zone", showTimes);

  // A point of a chart leads to the jobs that were enqueued in its time.
  document.addEventListener("click", (event) => {
    const point = event.target.closest(".chart .at"), chart = point?.closest("[data-jobs]");
    if (!chart) return;
    const at = Number(point.dataset.at), time = (seconds) => new Date(seconds * 1000).toISOString();
    location.href = `${chart.dataset.jobs}&created_after=${time(at)}&created_before=${time(at + Number(chart.dataset.step))}`;
  });

  // One box selects all rows of the page.
  const addSelectAll = () => {
    const heading = document.querySelector(".selection thead th");
    const boxes = () => document.querySelectorAll(".selection tbody input[type=checkbox]");
    if (!heading || !boxes().length || heading.querySelector("input")) return;
    const all = Object.assign(document.createElement("input"), { type: "checkbox", title: "Select all rows of this page" });
    all.setAttribute("aria-label", "Select all rows of this page");
    all.addEventListener("change", () => boxes().forEach((box) => { box.checked = all.checked; }));
    heading.replaceChildren(all);
  };

  // Announced at most every ten seconds, and only what has changed.
  let announced = "", announcedAt = 0;
  const announce = () => {
    const text = live.querySelector("[data-announce]")?.dataset.announce ?? "";
    if (text === announced || Date.now() - announcedAt < 10_000) return;
    if (announced) byId("announced").textContent = text;
    [announced, announcedAt] = [text, Date.now()];
  };

  // On a narrow screen rows are cards: each value has the heading of its column before it.
  const addLabels = () => {
    for (const table of live.querySelectorAll("table")) {
      const headings = [...table.querySelectorAll("thead th")].map((one) => one.textContent.trim());
      for (const row of table.querySelectorAll("tbody tr")) {
        [...row.cells].forEach((cell, at) => { if (cell.colSpan === 1) cell.dataset.label = headings[at] ?? ""; });
      }
    }
  };

  const shown = () => { showTimes(); addSelectAll(); addLabels(); announce(); };

  // Rows stay selected wherever an update moves them, and no row is selected in the place of another.
  const rows = () => [...live.querySelectorAll("tbody input[name=ids]")];
  let selected = [];
  document.addEventListener("htmx:beforeSwap", () => {
    selected = rows().filter((box) => box.checked).map((box) => box.value);
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const box of rows()) box.checked = selected.includes(box.value);
  });

  // What a user has opened or selected stays as it is.
  const isBusy = () => live.querySelector("input:checked") !== null
    || live.contains(document.activeElement?.closest("form input, form select, form textarea") ?? null);
  if (window.Idiomorph) {
    const callbacks = Idiomorph.defaults.callbacks;
    callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.tagName === "DETAILS");
  }

  let timer = null;
  const schedule = () => {
    clearTimeout(timer);
    if (!live.dataset.refresh) return;
    const chosen = stored.get("refresh");
    const seconds = Number(chosen === null || chosen === "" ? live.dataset.refresh : chosen);
    if (!(seconds > 0)) return;
    timer = setTimeout(() => {
      if (document.visibilityState === "visible" && !isBusy()) htmx.trigger(live, "refresh");
      else schedule();
    }, Math.min(Math.max(seconds, 1), 300) * 1000);
  };
  choice("refresh", schedule);

  // After an upgrade, once: two releases behind one address would take turns.
  const reload = (version) => {
    try {
      if (sessionStorage.getItem("sa_jobqueue.version") === version) return;
      sessionStorage.setItem("sa_jobqueue.version", version);
    } catch { return; }
    location.reload();
  };

  const connection = byId("connection");
  const disconnected = (text) => {
    connection.textContent = text;
    connection.hidden = !text;
  };
  // The icon has a dot while a finding is critical: each update brings the title.
  const icon = document.querySelector("link[rel=icon]");
  const showIcon = () => { icon.href = /^[\d,]+ critical/.test(document.title) ? icon.dataset.critical : icon.dataset.calm; };
  document.addEventListener("htmx:afterSettle", showIcon);
  document.addEventListener("visibilitychange", schedule);
  document.addEventListener("htmx:afterSwap", shown);
  document.addEventListener("htmx:afterRequest", (event) => {
    const status = event.detail.xhr?.status ?? 0;
    const version = event.detail.xhr?.getResponseHeader("X-Dashboard-Version");
    if (version && version !== document.body.dataset.version) reload(version);
    if (status === 0) disconnected("The connection to the dashboard is lost. It is tried again.");
    else if (status === 401) disconnected("You are no longer logged in. Reload the page.");
    else if (status >= 400) disconnected(`Not updated: ${event.detail.xhr.responseText.slice(0, 300)}`);
    else disconnected("");
    schedule();
  });

  // Acts in place: the pages of a preview and of its outcome are shown over the page that they are sent from.
  const dialog = byId("act");
  let changed = false;
  document.addEventListener("submit", async (event) => {
    const form = event.target, action = event.submitter?.getAttribute("formaction") ?? form.getAttribute("action") ?? "";
    if (form.method !== "post" || !action.includes("/acts/")) return;
    event.preventDefault();
    const fields = new URLSearchParams(new FormData(form));
    try {
      const response = await fetch(action, { method: "POST", body: fields });
      const answer = new DOMParser().parseFromString(await response.text(), "text/html");
      const title = Object.assign(document.createElement("h2"), { id: "act-title" });
      title.textContent = answer.querySelector("h1").textContent;
      changed ||= response.ok && fields.has("confirmed");
      dialog.replaceChildren(title, ...answer.getElementById("live").childNodes);
      if (!dialog.open) dialog.showModal();
      showTimes();
    } catch { disconnected("The act was not sent: the connection to the dashboard is lost."); }
  });
  dialog.addEventListener("click", (event) => {
    const link = event.target.closest("a.back");
    if (!link || new URL(link.href).href !== location.href.split("#")[0]) return;
    event.preventDefault();
    dialog.close();
  });
  dialog.addEventListener("close", () => {
    if (changed) location.reload();
  });

  // A job of a list is shown beside it; its link opens the page. On a narrow screen there is only the page.
  const panel = byId("panel");
  let opener = null;
  const closePanel = () => {
    panel.close();
    panel.replaceChildren();
    opener?.focus();
  };
  live.addEventListener("click", async (event) => {
    const link = event.target.closest("tbody a.id[href*='/job?id=']");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || innerWidth < 1000) return;
    event.preventDefault();
    const response = await fetch(link.href).catch(() => null);
    if (!response?.ok) { location.href = link.href; return; }
    const answer = new DOMParser().parseFromString(await response.text(), "text/html");
    const title = Object.assign(document.createElement("h2"), { id: "panel-title", tabIndex: -1 });
    title.append(Object.assign(document.createElement("a"), { href: link.href, textContent: `Job ${link.title}` }));
    const close = Object.assign(document.createElement("button"), { type: "button", textContent: "Close" });
    close.addEventListener("click", closePanel);
    panel.replaceChildren(close, title, ...answer.getElementById("live").childNodes);
    opener = link;
    panel.show();
    title.focus();
    showTimes();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && panel.open && !document.querySelector("dialog:modal")) closePanel();
  });

  // Ctrl+K: what the search page finds, as one types. Enter opens the first.
  const palette = byId("palette"), searched = palette?.querySelector("input");
  let typed = null;
  searched?.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(async () => {
      const query = new URLSearchParams({ q: searched.value });
      const response = await fetch(`${searched.form.action}?${query}`).catch(() => null);
      const answer = new DOMParser().parseFromString(response ? await response.text() : "", "text/html");
      if (query.get("q") === searched.value) byId("results").replaceChildren(...(answer.getElementById("live")?.childNodes ?? []));
    }, 150);
  });
  searched?.form.addEventListener("submit", (event) => {
    const first = byId("results").querySelector("a");
    if (!first) return;
    event.preventDefault();
    first.click();
  });
  document.addEventListener("keydown", (event) => {
    if (!palette || event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    palette.showModal();
    searched.select();
  });

  // Keys, which can be turned off.
  const help = byId("help");
  const keys = byId("keys");
  keys.checked = stored.get("keys") !== "off";
  keys.addEventListener("change", () => stored.set("keys", keys.checked ? "on" : "off"));
  byId("open-help").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (!keys.checked || event.ctrlKey || event.metaKey || event.altKey || help.open || dialog.open || palette?.open) return;
    if (event.target.closest("input, select, textarea")) return;
    const links = document.querySelectorAll("nav.pages a");
    if (event.key === "?") help.showModal();
    else if (event.key === "/") document.querySelector("input[type=search], .filters input:not([type=hidden])")?.focus();
    else if (event.key === "r" && live.dataset.refresh) htmx.trigger(live, "refresh");
    else if (/^[1-9]$/.test(event.key) && links[event.key - 1]) links[event.key - 1].click();
    else return;
    event.preventDefault();
  });

  // On a narrow screen the menu scrolls: it opens at the current page.
  const menu = document.querySelector("nav.pages"), here = menu?.querySelector("[aria-current]");
  if (here) menu.scrollLeft += here.getBoundingClientRect().left - menu.getBoundingClientRect().left - (menu.clientWidth - here.clientWidth) / 2;

  shown();
  schedule();
})();
