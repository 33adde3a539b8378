// Before the first paint, so that a chosen theme does not flash.
(() => {
  document.documentElement.classList.add("scripted");
  let theme = null;
  try { theme = localStorage.getItem("sa_jobqueue.theme"); } catch { /* storage may be forbidden */ }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
