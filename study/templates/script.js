"use strict";
(() => {
  const root = document.documentElement;
  const store = {
    get: (key) => { try { return localStorage.getItem(key); } catch { return null; } },
    set: (key, value) => { try { localStorage.setItem(key, value); } catch { /* no storage from the file system */ } },
  };

  // From another tab, or from the page just left: its last choice may arrive after this page has read the store.
  const follow = (key, take) => addEventListener("storage", (event) => { if (event.key === key) take(event.newValue); });

  const theme = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const choose = (kept) => {
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
    else delete root.dataset.theme;
    theme.textContent = dark() ? "Light" : "Dark";
  };
  choose(store.get("theme"));
  follow("theme", choose);
  theme.hidden = false;
  theme.addEventListener("click", () => {
    choose(dark() ? "light" : "dark");
    store.set("theme", root.dataset.theme);
  });

  for (const box of document.querySelectorAll(".choice input")) {
    if (store.get(box.id) === "no") box.checked = false;
    box.addEventListener("change", () => {
      const columns = '.choice [id^="show-"]';
      if (box.matches(columns) && !document.querySelector(`${columns}:checked`)) box.checked = true;
      store.set(box.id, box.checked ? "yes" : "no");
    });
    follow(box.id, (value) => { box.checked = value !== "no"; });
  }

  const find = document.getElementById("find");
  if (find) {
    document.getElementById("finding").hidden = false;
    const plain = (text) => text.toLowerCase().replace(/[_\s-]/g, "");
    const items = [...document.querySelectorAll(".contents > li")];
    const terms = (item) => item.dataset.terms ? [...document.querySelectorAll(item.dataset.terms)].map((term) => term.textContent) : [];
    const names = new Map(items.map((item) => [item, plain([item.dataset.words, ...terms(item)].join(" "))]));
    find.addEventListener("input", () => {
      const words = plain(find.value).replace(/\W/g, "\\$&");
      const sought = new RegExp(words + (/\d$/.test(words) ? "(?!\\d)" : ""));  // of ATT-1 and ATT-10 only what is asked
      for (const item of items) item.hidden = !sought.test(names.get(item));
      document.getElementById("nothing").hidden = items.some((item) => !item.hidden);
    });
  }

  document.addEventListener("keydown", (event) => {
    // In a field keys write, and in a frame arrows scroll.
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, [tabindex]")) return;
    const turned = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
    const link = turned && document.querySelector(`.turn [rel="${turned}"]`);
    if (link) location.href = link.href;
    if (event.key === "/") {
      event.preventDefault();
      if (find) find.focus(); else location.href = "lookup.html#find";
    }
  });

  // What scrolls sideways takes the focus, so that the arrow keys scroll it; what does not is no stop on the way.
  const reach = () => {
    for (const part of document.querySelectorAll("figure, .wide, .formulas")) {
      if (part.scrollWidth > part.clientWidth) part.tabIndex = 0; else part.removeAttribute("tabindex");
    }
  };
  addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);
  reach();

  const open = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    let around = target && (target.querySelector(":scope > details.optional") || target.closest("details"));
    if (around) {
      for (; around; around = around.parentElement.closest("details")) around.open = true;
      target.scrollIntoView();
    }
    if (target && target === find) find.focus();
  };
  addEventListener("hashchange", open);
  open();
})();
