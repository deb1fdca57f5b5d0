"use strict";
// Choosing a pair lights its path. Everything on the page can be read without this.
(() => {
  const source = document.getElementById("pairs");
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  addEventListener("beforeprint", () => all("details").forEach((d) => { d.dataset.was = d.open ? "1" : ""; d.open = true; }));
  addEventListener("afterprint", () => all("details").forEach((d) => { d.open = d.dataset.was === "1"; }));
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const chooser = document.getElementById("chooser");
  const [from, to] = all("select", chooser);
  const answer = document.getElementById("answer");
  const clear = document.getElementById("clear");
  const drawings = all("figure svg.drawing");
  let first = null;

  const option = (select, i) => {
    const o = document.createElement("option");
    o.value = String(i);
    o.textContent = data.devices[i];
    select.append(o);
  };
  data.devices.forEach((_, i) => { option(from, i); option(to, i); });
  chooser.hidden = false;

  const found = (a, b) => data.pairs[a + "-" + b] || data.pairs[b + "-" + a];
  const line = (tag, text, name) => {
    const e = document.createElement(tag);
    e.textContent = text;
    if (name) e.className = name;
    return e;
  };

  // The address of the page names the pair, so that it can be handed on.
  const remember = (hash) => {
    try { history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search); } catch { /* a sandboxed frame */ }
  };

  const unlight = () => {
    drawings.forEach((d) => d.classList.remove("chosen"));
    all(".lit, .narrowest, svg .chosen").forEach((e) => e.classList.remove("lit", "narrowest", "chosen"));
    all("[aria-pressed=true]").forEach((e) => e.setAttribute("aria-pressed", "false"));
    all("td.chosen").forEach((e) => e.classList.remove("chosen"));
  };

  const of = (i) => all("svg [data-dev]").filter((e) => e.dataset.dev.split(" ").includes(String(i)));
  const press = (i) => of(i).forEach((e) => { e.classList.add("chosen"); e.setAttribute("aria-pressed", "true"); });

  const show = (a, b) => {
    unlight();
    from.value = String(a);
    to.value = b === null ? "" : String(b);
    clear.hidden = false;
    press(a);
    if (b === null) {
      answer.replaceChildren(line("p", data.devices[a] + ": now choose the other end."));
      return;
    }
    press(b);
    remember("pair=" + encodeURIComponent(data.devices[a]) + "," + encodeURIComponent(data.devices[b]));
    const pair = found(a, b);
    const name = data.devices[a] + " → " + data.devices[b];
    if (!pair) {
      answer.replaceChildren(line("p", name + ": no path between these two is worked out."));
      return;
    }
    const [kind, rate, narrowest, said, verdict, steps, boxes, links, least] = pair;
    const mark = (names, attribute, style) => names.split(" ").filter(Boolean).forEach((n) =>
      all(`svg [data-${attribute}="${n}"]`).forEach((e) => e.classList.add(style)));
    mark(boxes, "part", "lit");
    mark(links, "link", "lit");
    mark(least, "link", "narrowest");
    drawings.forEach((d) => d.classList.add("chosen"));
    all(`td[data-pair="${a}-${b}"]`).forEach((e) => e.classList.add("chosen"));
    const head = document.createElement("p");
    head.append(line("strong", name), ": ", data.texts[kind], ", ", line("b", data.texts[rate]));
    const list = document.createElement("ul");
    steps.forEach(([effect, text, fix]) => {
      const item = line("li", data.texts[text], effect);
      if (fix !== undefined) item.append(line("div", "Fix: " + data.texts[fix], "fix"));
      list.append(item);
    });
    answer.replaceChildren(head, line("p", data.texts[narrowest]), line("p", data.texts[said], "verdict " + verdict), list);
  };

  const reset = () => {
    unlight();
    first = null;
    from.value = to.value = "";
    clear.hidden = true;
    if (location.hash.startsWith("#pair=")) remember("");
    answer.replaceChildren(line("p", answer.dataset.hint, "dim"));
  };

  const pick = (i) => {
    if (first === null || first === i) {
      if (first === i) { reset(); return; }
      first = i;
      show(i, null);
    } else {
      const a = first;
      first = null;
      show(a, i);
    }
  };

  all("svg [data-dev]").forEach((e) => {
    const i = Number(e.dataset.dev.split(" ")[0]);
    e.setAttribute("role", "button");
    e.setAttribute("tabindex", "0");
    e.setAttribute("aria-pressed", "false");
    e.addEventListener("click", () => pick(i));
    e.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(i); }
    });
  });
  const chosen = () => {
    first = null;
    if (from.value === "") reset();
    else show(Number(from.value), to.value === "" || to.value === from.value ? null : Number(to.value));
  };
  from.addEventListener("change", chosen);
  to.addEventListener("change", chosen);
  clear.addEventListener("click", reset);
  addEventListener("keydown", (event) => { if (event.key === "Escape") reset(); });
  all("td[data-pair]").forEach((cell) => cell.addEventListener("click", () => {
    const [a, b] = cell.dataset.pair.split("-").map(Number);
    first = null;
    show(a, b);
    document.getElementById("drawing").scrollIntoView({ block: "nearest" });
  }));
  const named = () => {
    const ends = location.hash.startsWith("#pair=") ? location.hash.slice(6).split(",") : [];
    try {
      return ends.map((e) => data.devices.indexOf(decodeURIComponent(e)));
    } catch {
      return [];
    }
  };
  const [a, b] = named();
  reset();
  if (a >= 0 && b >= 0 && a !== b) show(a, b);
})();
