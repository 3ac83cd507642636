"use strict";
/* Tooltips, keys in figures, circuits to click, panels to choose, light and dark. */
(() => {
  const tip = document.getElementById("tip"), root = document.documentElement;

  /* light and dark: as the system has it, or as the reader chose */
  const theme = document.getElementById("theme"), MODES = ["auto", "light", "dark"];
  const recall = () => { try { return localStorage.getItem("interp-theme") || "auto"; } catch { return "auto"; } };
  const apply = mode => {
    if (mode === "auto") delete root.dataset.theme; else root.dataset.theme = mode;
    theme.textContent = `Colours: ${mode}`;
    theme.setAttribute("aria-label", `Colours: ${mode === "auto" ? "as the system has them" : mode}`);
    theme.dataset.mode = mode;
  };
  apply(recall());
  theme.addEventListener("click", () => {
    const mode = MODES[(MODES.indexOf(theme.dataset.mode) + 1) % MODES.length];
    try { localStorage.setItem("interp-theme", mode); } catch { /* a file may have no storage */ }
    apply(mode);
  });

  /* browsers' own tooltips are slow and unknown to keys: ours take their text */
  document.querySelectorAll(".ip svg title").forEach(t => {
    const p = t.parentNode;
    p.dataset.tip = t.textContent; t.remove();
  });
  document.querySelectorAll(".ip .token[title]").forEach(t => { t.dataset.tip = t.title; t.removeAttribute("title"); });
  const place = (x, y) => {
    const w = tip.offsetWidth, h = tip.offsetHeight, gap = 14;
    tip.style.left = `${Math.max(4, Math.min(x + gap, innerWidth - w - 4))}px`;
    tip.style.top = `${y + gap + h > innerHeight ? Math.max(4, y - h - gap) : y + gap}px`;
  };
  const show = (el, x, y) => { tip.textContent = el.dataset.tip; tip.hidden = false; place(x, y); };
  const hide = () => { tip.hidden = true; };
  document.addEventListener("pointerover", e => {
    const el = e.target.closest?.("[data-tip]");
    if (el) show(el, e.clientX, e.clientY); else hide();
  });
  document.addEventListener("pointermove", e => { if (!tip.hidden && e.target.closest?.("[data-tip]")) place(e.clientX, e.clientY); });
  document.addEventListener("scroll", hide, { capture: true, passive: true });

  /* arrow keys walk through a figure's marks: cells by row and column, edges by size, points in order */
  function walk(plot) {
    const edges = [...plot.querySelectorAll(".edge[data-rank]")].sort((a, b) => a.dataset.rank - b.dataset.rank);
    const items = edges.length ? edges : [...plot.querySelectorAll("[data-at][data-tip]")];
    if (!items.length) return;
    const cells = plot.classList.contains("grid") && new Map(items.map((el, i) => [el.dataset.at, i]));
    let here = -1;
    plot.setAttribute("tabindex", "0");
    const mark = to => {
      items[here]?.classList.remove("here");
      here = to;
      const el = items[here], box = el.getBoundingClientRect();
      el.classList.add("here");
      el.scrollIntoView({ block: "nearest", inline: "nearest" });
      const now = el.getBoundingClientRect();
      show(el, now.left + now.width / 2, now.top + Math.min(now.height / 2, 20) || box.top);
    };
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    plot.addEventListener("keydown", e => {
      const by = step[e.key];
      if (by) {
        e.preventDefault();
        if (here < 0) return mark(0);
        if (cells) {
          const [i, j] = items[here].dataset.at.split(",").map(Number), to = cells.get(`${i + by[0]},${j + by[1]}`);
          return to === undefined ? undefined : mark(to);
        }
        return mark((here + by[0] + by[1] + items.length) % items.length);
      }
      if ((e.key === "Enter" || e.key === " ") && here >= 0 && edges.length) { e.preventDefault(); plot.dispatchEvent(new CustomEvent("keep", { detail: items[here] })); }
      if (e.key === "Escape") { hide(); plot.dispatchEvent(new CustomEvent("keep", { detail: null })); }
    });
    plot.addEventListener("blur", () => { items[here]?.classList.remove("here"); here = -1; hide(); });
  }
  document.querySelectorAll(".ip svg, .ip-tokens").forEach(walk);

  /* circuits: a click keeps an edge, or all edges of a node, and writes below what it is */
  document.querySelectorAll("svg.circuit").forEach(svg => {
    const said = document.createElement("p"), edges = [...svg.querySelectorAll(".edge")];
    said.className = "kept-edge"; said.setAttribute("role", "status");
    svg.closest(".ip-scroll").after(said);
    const first = svg.querySelector(".node");
    edges.forEach(edge => { // thin lines are hard to hit: a wide unseen one lies over each, under the nodes
      const hit = edge.cloneNode(false);
      hit.setAttribute("class", "hit"); hit.removeAttribute("data-rank"); hit.removeAttribute("stroke-width"); hit.removeAttribute("opacity");
      hit.edge = edge; svg.insertBefore(hit, first);
      hit.addEventListener("pointerenter", () => edge.classList.add("here"));
      hit.addEventListener("pointerleave", () => edge.classList.remove("here"));
    });
    const keep = (kept, text) => {
      edges.forEach(e => e.classList.toggle("kept", kept.includes(e)));
      svg.classList.toggle("keeping", kept.length > 0);
      said.textContent = text;
    };
    const one = edge => edge ? keep([edge], edge.dataset.tip) : keep([], "");
    svg.addEventListener("keep", e => one(e.detail));
    svg.addEventListener("click", e => {
      const edge = e.target.edge || e.target.closest(".edge"), node = e.target.dataset.node;
      if (edge) return one(edge);
      if (!node) return one(null);
      const its = edges.filter(x => x.dataset.src === node || x.dataset.dst === node);
      return keep(its, `${node}: ${its.length} edges\n${its.slice(-8).reverse().map(x => x.dataset.tip.replace(/\n/g, "  ")).join("\n")}`);
    });
  });

  /* views with many panels: one at a time, or all */
  document.querySelectorAll(".figures").forEach(group => {
    const panels = [...group.children].filter(p => p.dataset.panel !== undefined);
    if (panels.length < 4) return;
    const line = document.createElement("p"), label = document.createElement("label"), select = document.createElement("select");
    line.className = "choose"; label.textContent = "Show "; label.append(select); line.append(label);
    [`all ${panels.length}`, ...panels.map(p => p.dataset.panel)].forEach((name, i) => select.add(new Option(name, i - 1)));
    select.addEventListener("change", () => {
      const at = Number(select.value);
      panels.forEach((p, i) => { p.hidden = at >= 0 && i !== at; });
    });
    group.before(line);
  });

  /* attention by circuitsvis, whose script comes after this one: mounted when it comes near, a layer at a time */
  const FEW = 8;
  const layerOf = name => name.replace(/[.]h\d+$/, "");
  function mount(place) {
    const props = JSON.parse(document.querySelector(`[data-props="${place.id}"]`).textContent);
    const names = props.attentionHeadNames, layers = [...new Set(names.map(layerOf))];
    const draw = layer => {
      const kept = names.map((n, i) => i).filter(i => layer === null || layerOf(names[i]) === layer), div = document.createElement("div");
      div.id = `${place.id}-view`; place.replaceChildren(div);
      window.CircuitsVis.render(div.id, window.CircuitsVis[place.dataset.component],
        { ...props, attention: kept.map(i => props.attention[i]), attentionHeadNames: kept.map(i => layer === null ? names[i] : names[i].slice(layer.length + 1)) });
    };
    if (names.length <= FEW || layers.length < 2) return draw(null);
    const line = document.createElement("p"), label = document.createElement("label"), select = document.createElement("select");
    line.className = "choose"; label.textContent = "Layer "; label.append(select); line.append(label); place.before(line);
    layers.forEach(l => select.add(new Option(l.replace(/^L/, ""), l)));
    select.addEventListener("change", () => draw(select.value));
    return draw(layers[0]);
  }
  window.interpMount = () => {
    const near = new IntersectionObserver(seen => seen.filter(e => e.isIntersecting).forEach(e => { near.unobserve(e.target); mount(e.target); }),
      { rootMargin: "400px" });
    document.querySelectorAll("[data-component]").forEach(place => near.observe(place));
  };

  /* the index: cards that hold the words */
  const find = document.getElementById("find");
  if (find) find.addEventListener("input", () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    document.querySelectorAll(".group").forEach(group => {
      const head = group.querySelector("h2").textContent.toLowerCase();
      const cards = [...group.querySelectorAll("li")];
      cards.forEach(c => { c.hidden = !words.every(w => `${head} ${c.textContent.toLowerCase()}`.includes(w)); });
      group.hidden = cards.every(c => c.hidden);
    });
  });
})();
