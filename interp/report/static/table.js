"use strict";
/* A table of any length: only the rows in view are in the page. Sorted and searched on typed arrays. */
(() => {
  const ROW = 30, SPARE = 6;
  const shown = (v, digits = 4) => {
    if (v === null || v === undefined || Number.isNaN(v)) return "";
    const a = Math.abs(v);
    const s = Number.isInteger(v) && a < 1e6 ? String(v)
      : a >= 1e6 || (a < 1e-4 && a > 0) ? v.toExponential(2) : String(Number(v.toPrecision(digits)));
    return s.replace(/-/g, "−");
  };
  const between = (lo, hi) => Number.isNaN(lo) || Number.isNaN(hi) ? "" : `[${shown(lo, 3)}, ${shown(hi, 3)}]`;
  const make = (tag, cls, text) => {
    const e = document.createElement(tag);
    if (cls) e.className = cls;
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const ruler = document.createElement("canvas").getContext("2d");
  const wide = (words, weight = "400") => {
    ruler.font = `${weight} 13.5px ${getComputedStyle(document.body).fontFamily}`;
    return Math.max(...words.map(w => ruler.measureText(w).width));
  };
  const floats = values => Float64Array.from(values, v => v === null ? NaN : v);

  const c95 = col => col.between.length > 24 ? "range" : col.between;

  function columnsOf(data) {
    return data.columns.map(c => {
      const col = { name: c.name, about: c.about, kind: c.kind };
      if (c.kind === "text") {
        col.words = c.words;
        col.codes = Int32Array.from(c.codes);
        const order = c.words.map((_, i) => i).sort((a, b) => c.words[a].localeCompare(c.words[b], "en", { numeric: true }));
        col.rank = new Int32Array(c.words.length);
        order.forEach((w, place) => { col.rank[w] = place; });
        col.text = i => col.codes[i] < 0 ? "" : col.words[col.codes[i]];
        col.width = Math.min(190, wide(c.words.slice(0, 2000).concat("")) + 22);
      } else {
        col.values = floats(c.values);
        col.text = i => shown(col.values[i], c.kind === "index" ? 12 : 4);
        col.signed = c.kind === "number" && col.values.some(v => v < 0);
        col.width = c.kind === "index" ? 64 : 92;
      }
      col.width = Math.max(col.width, wide([c.name.replace(/_/g, " ") + " |↓|"], "600") + 22);
      if (c.low) {
        col.drawn = c.drawn; col.between = c.between;
        col.low = floats(c.low); col.high = floats(c.high);
        let lo = 0, hi = 0;
        for (const a of [col.values, col.low, col.high]) for (const v of a) { if (v < lo) lo = v; if (v > hi) hi = v; }
        const span = hi - lo || 1;
        const said = Array.from({ length: Math.min(500, data.rows) }, (_, i) => between(col.low[i], col.high[i]));
        col.ends = Math.max(110, wide(said.concat("")) + 16);
        col.place = v => 2 + 96 * (v - lo) / span;
      }
      return col;
    });
  }

  /* Keys whose increasing order is the wanted one; what is missing comes last. */
  function keysOf(col, how, n) {
    const keys = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      let v = col.kind === "text" ? (col.codes[i] < 0 ? NaN : col.rank[col.codes[i]]) : col.values[i];
      if (how === "size") v = -Math.abs(v); else if (how === "down") v = -v;
      keys[i] = Number.isNaN(v) ? Infinity : v;
    }
    return keys;
  }

  const TERM = /^([\w.]+)(>=|<=|!=|=|>|<|:)(.+)$/, HEAD = /^l(\d+)(?:[.]?h(\d+))?$/i;
  const COMPARE = { ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b,
    "=": (a, b) => a === b, ":": (a, b) => a === b, "!=": (a, b) => a !== b };

  function textTest(col, test) {
    const yes = col.words.map(w => test(w.toLowerCase()));
    return i => col.codes[i] >= 0 && yes[col.codes[i]];
  }
  function testOf(term, columns) {
    const named = TERM.exec(term), col = named && columns.find(c => c.name.toLowerCase() === named[1].toLowerCase());
    if (col) {
      const [, , op, rest] = named, wanted = rest.toLowerCase();
      if (col.kind === "text") {
        const exact = op === "=" ? w => w === wanted : op === "!=" ? w => w !== wanted : w => w.includes(wanted);
        return textTest(col, exact);
      }
      const number = Number(rest.replace("−", "-"));
      return i => COMPARE[op](col.values[i], number);
    }
    const by = name => columns.find(c => c.name === name);
    const head = HEAD.exec(term);
    if (head && by("layer") && (!head[2] || by("head"))) {
      const l = Number(head[1]), h = head[2] && Number(head[2]);
      return i => by("layer").values[i] === l && (h === undefined || by("head").values[i] === h);
    }
    const wanted = term.toLowerCase();
    const tests = columns.filter(c => c.kind === "text").map(c => textTest(c, w => w.includes(wanted)));
    const number = Number(term);
    if (term !== "" && !Number.isNaN(number)) {
      tests.push(...columns.filter(c => c.kind === "index").map(c => i => c.values[i] === number));
    }
    return i => tests.some(t => t(i));
  }

  function build(root) {
    const data = JSON.parse(root.querySelector("script").textContent);
    const columns = columnsOf(data), n = data.rows;
    const state = { column: null, how: null, query: "", order: null, current: -1 };

    const tools = make("div", "tools"), label = make("label", "", "Search "), input = make("input");
    input.type = "search"; input.autocomplete = "off"; input.placeholder = "words, L1.h2, effect>0.5, layer=3";
    input.setAttribute("aria-label", "Search the table");
    const count = make("span", "dim"); count.setAttribute("role", "status");
    label.append(input); label.style.display = "contents"; tools.append(label, count);
    const scroller = make("div", "scroller"), head = make("div", "head"), body = make("div", "body"), win = make("div", "window");
    scroller.tabIndex = 0; scroller.setAttribute("role", "grid"); scroller.setAttribute("aria-label", "Rows; arrow keys move, Enter shows a row whole");
    scroller.setAttribute("aria-rowcount", n + 1);
    head.setAttribute("role", "row");
    const detail = make("div", "detail"); detail.hidden = true; detail.setAttribute("aria-live", "polite");
    body.append(win); scroller.append(head, body); root.append(tools, scroller, detail);

    const widths = [];
    const heads = columns.map(col => {
      const cell = make("div", col.kind === "text" ? "" : "num"), button = make("button", "", col.name.replace(/_/g, " "));
      button.type = "button"; button.title = col.about; cell.setAttribute("role", "columnheader"); cell.append(button); head.append(cell);
      widths.push(`${Math.round(col.width)}px`);
      button.addEventListener("click", () => sortBy(col));
      if (col.low) {
        for (const [text, width] of [...(col.drawn ? [["", 150]] : []), [(col.drawn ? "" : "its ") + c95(col), Math.round(Math.max(col.ends, wide([c95(col)], "600") + 34))]]) {
          const extra = make("div"); extra.setAttribute("role", "columnheader");
          if (text) { const b = make("button", "", text); b.disabled = true; b.tabIndex = -1; extra.append(b); }
          head.append(extra); widths.push(`${width}px`);
        }
      }
      return cell;
    });
    const grid = `${widths.join(" ")} 1fr`;
    head.style.gridTemplateColumns = grid;

    function line() {
      const row = make("div", "line"); row.setAttribute("role", "row"); row.style.gridTemplateColumns = grid;
      const parts = columns.map(col => {
        const cell = make("div", col.kind === "text" ? "" : "num"); cell.setAttribute("role", "gridcell"); row.append(cell);
        if (!col.low) return { cell };
        const iv = make("div", "iv"), zero = make("i", "zero"), span = make("i", "span"), dot = make("i", "dot"), text = make("div", "between");
        zero.style.left = `${col.place(0)}%`; iv.setAttribute("aria-hidden", "true"); text.setAttribute("role", "gridcell");
        iv.append(zero, span, dot);
        if (col.drawn) row.append(iv);
        row.append(text);
        return { cell, iv, span, dot, text };
      });
      return { row, parts };
    }
    function fill({ row, parts }, at) {
      const i = state.order[at];
      row.dataset.at = at; row.id = `${root.id}-row-${at}`; row.setAttribute("aria-rowindex", at + 2);
      row.classList.toggle("here", at === state.current);
      columns.forEach((col, k) => {
        const p = parts[k], said = col.text(i);
        p.cell.textContent = said;
        if (col.kind === "text") p.cell.title = said.length > 30 ? said : "";
        if (!col.low) return;
        const v = col.values[i], lo = col.low[i], hi = col.high[i], known = !Number.isNaN(lo) && !Number.isNaN(hi);
        p.iv.classList.toggle("neg", v < 0);
        p.dot.style.display = Number.isNaN(v) ? "none" : "";
        p.span.style.display = known ? "" : "none";
        if (!Number.isNaN(v)) p.dot.style.left = `${col.place(v)}%`;
        if (known) { p.span.style.left = `${col.place(lo)}%`; p.span.style.width = `${col.place(hi) - col.place(lo)}%`; }
        p.text.textContent = between(lo, hi);
      });
    }
    const pool = [];
    function draw() {
      const top = Math.max(0, Math.floor(scroller.scrollTop / ROW) - SPARE);
      const visible = Math.ceil(scroller.clientHeight / ROW) + 2 * SPARE;
      const last = Math.min(state.order.length, top + visible), wanted = Math.max(0, last - top);
      while (pool.length < wanted) { const l = line(); pool.push(l); win.append(l.row); }
      win.style.transform = `translateY(${top * ROW}px)`;
      pool.forEach((l, k) => { l.row.style.display = k < wanted ? "" : "none"; if (k < wanted) fill(l, top + k); });
    }
    function arrange() {
      let found = new Uint32Array(n), m = 0;
      const tests = state.query.split(/\s+/).filter(Boolean).map(t => testOf(t, columns));
      for (let i = 0; i < n; i++) if (tests.every(t => t(i))) found[m++] = i;
      found = found.subarray(0, m);
      if (state.column) {
        const keys = keysOf(state.column, state.how, n);
        found.sort((a, b) => keys[a] - keys[b] || a - b);
      }
      state.order = found; state.current = -1; scroller.removeAttribute("aria-activedescendant");
      body.style.height = `${m * ROW}px`; scroller.scrollTop = 0; detail.hidden = true;
      count.textContent = m === n ? `${n.toLocaleString("en")} rows` : `${m.toLocaleString("en")} of ${n.toLocaleString("en")} rows`;
      draw();
    }
    const SIGN = { size: " |↓|", down: " ↓", up: " ↑" };
    const SAID = { size: "largest size first", down: "falling", up: "rising" };
    function sortBy(col, how) {
      const cycle = col.kind === "text" ? ["up", "down"] : col.signed ? ["size", "down", "up"] : ["down", "up"];
      const next = how || (state.column === col ? cycle[(cycle.indexOf(state.how) + 1) % cycle.length] : cycle[0]);
      state.column = col; state.how = next;
      columns.forEach((c, k) => {
        const on = c === col, button = heads[k].querySelector("button");
        heads[k].classList.toggle("sorted", on);
        heads[k].setAttribute("aria-sort", on ? (next === "up" ? "ascending" : next === "down" ? "descending" : "other") : "none");
        button.textContent = c.name.replace(/_/g, " ") + (on ? SIGN[next] : "");
        if (on) button.setAttribute("aria-label", `${c.name}, ${SAID[next]}`); else button.removeAttribute("aria-label");
      });
      arrange();
    }
    function go(at) {
      if (!state.order.length) return;
      state.current = Math.max(0, Math.min(state.order.length - 1, at));
      const y = state.current * ROW, room = scroller.clientHeight - head.offsetHeight;
      if (y < scroller.scrollTop) scroller.scrollTop = y;
      if (y + ROW > scroller.scrollTop + room) scroller.scrollTop = y + ROW - room;
      draw();
      scroller.setAttribute("aria-activedescendant", `${root.id}-row-${state.current}`);
    }
    function open(at) {
      const i = state.order[at], list = make("dl", "pairs");
      for (const col of columns) {
        const said = col.text(i);
        if (said === "") continue;
        const row = make("div");
        row.append(make("dt", "", col.name.replace(/_/g, " ")), make("dd", "", said + (col.low ? ` ${between(col.low[i], col.high[i])}` : "")));
        list.append(row);
      }
      detail.replaceChildren(list); detail.hidden = false;
    }
    scroller.addEventListener("scroll", draw, { passive: true });
    win.addEventListener("click", e => {
      const row = e.target.closest(".line");
      if (row) { go(Number(row.dataset.at)); open(state.current); }
    });
    scroller.addEventListener("keydown", e => {
      if (e.target !== scroller) return;
      const page = Math.max(1, Math.floor(scroller.clientHeight / ROW) - 2), at = state.current;
      const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: n }[e.key];
      if (to !== undefined) { go(to); e.preventDefault(); }
      if (e.key === "Enter" && at >= 0) open(at);
      if (e.key === "Escape") detail.hidden = true;
    });
    input.addEventListener("input", () => { state.query = input.value; arrange(); });
    new ResizeObserver(draw).observe(scroller);
    const first = columns.find(c => c.name === data.sort);
    if (first) sortBy(first, first.signed ? "size" : "down"); else arrange();
  }
  document.querySelectorAll("[data-table]").forEach((root, k) => { root.id = root.id || `rows-${k}`; build(root); });
})();
