// The view of one lane: waiting requests, slots, the strip, the blocks. Texts are set as text, never as HTML.
function el(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Rebuild the children of a box if their content has changed: otherwise the focused one keeps the focus. */
function renew(box, items, make) {
  const content = JSON.stringify(items);
  if (box.content === content) return;
  box.content = content;
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.request : null;
  box.replaceChildren(...items.map(make));
  if (focused) [...box.querySelectorAll("[data-request]")].find((child) => child.dataset.request === focused)?.focus();
}

class LaneView {
  constructor(store, index, page) {
    Object.assign(this, { store, index, page, cells: null, mapped: 0, hovered: null });
    const lane = store.lanes[index];
    this.facts = el("span", { className: "facts" });
    this.held = el("p", { className: "held", hidden: true });
    this.queue = el("ul", { className: "queue" });
    this.waitingTitle = el("div", { className: "caption" });
    this.seated = el("div", { className: "caption" });
    this.seats = el("div", { className: "seats" });
    this.canvas = el("canvas", { className: "strip", tabIndex: 0 });
    this.canvas.setAttribute("role", "img");
    this.sentences = el("ul", { className: "told", hidden: true });
    this.teller = el("button", { className: "teller", type: "button", textContent: "in words", onclick: () => this.tell() });
    this.teller.setAttribute("aria-expanded", "false");
    this.teller.setAttribute("aria-label", `${lane.name}: the steps in words`);
    this.batch = el("span");
    this.kv = el("span");
    this.map = el("canvas");
    this.map.setAttribute("aria-hidden", "true"); // the owners below say it
    this.owners = el("p", { className: "owners" });
    this.mapBox = el("div", { className: "map", hidden: true },
      this.caption = el("div", { className: "caption" }),
      this.map, this.owners);
    this.root = el("article", { className: "lane" },
      el("div", { className: "top" }, el("h2", { textContent: lane.name }), this.facts, this.held),
      el("div", { className: "body" },
        el("div", { className: "waiting" }, this.waitingTitle, this.queue),
        el("div", {}, this.seated, this.seats,
          el("div", { className: "under" }, this.batch, this.kv)),
        el("div", {}, el("div", { className: "caption" }, "steps ", this.teller), this.canvas)),
      this.sentences,
      this.mapBox);
    this.root.dataset.lane = lane.name;
    this.strip = new Strip(this.canvas, store, index);
    this.rows = [];
    this.listen();
  }

  get lane() {
    return this.store.lanes[this.index];
  }

  listen() {
    const { canvas, strip, page } = this;
    const cursor = () => page.placeOf(this.index);
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, edge: strip.edge(cursor()), moved: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag && event.buttons) {
        const by = (drag.x - event.clientX) / strip.width;
        if (Math.abs(drag.x - event.clientX) > 4) drag.moved = true;
        if (drag.moved) page.scroll(this.index, drag.edge + by);
      } else this.hover(event);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.hover(event);
      drag = null;
    });
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.ctrlKey) page.zoom(event.deltaY < 0 ? 1.25 : 0.8);
      else page.scroll(this.index, strip.edge(cursor()) + (event.deltaX || event.deltaY) / strip.width);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      this.explain(cursor() - 1, 0, canvas.getBoundingClientRect());
    });
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const place = this.strip.placeAt(event.clientX - box.left, this.page.placeOf(this.index));
    const seat = Math.floor((event.clientY - box.top) / this.strip.row);
    if (place < this.lane.first || place >= this.lane.end || (this.page.hidden && place >= this.page.placeOf(this.index))) {
      this.leave();
      return;
    }
    this.explain(place, seat, { left: event.clientX + 14, top: event.clientY + 14 });
  }

  tell() {
    this.sentences.hidden = !this.sentences.hidden;
    this.teller.setAttribute("aria-expanded", String(!this.sentences.hidden));
    this.page.stale = true;
  }

  explain(place, seat, where) {
    const step = this.lane.at(place);
    if (!step) return;
    this.hovered = place;
    this.page.dirty = true;
    this.page.tip(this.words(step, place, seat), where);
  }

  leave() {
    this.hovered = null;
    this.page.dirty = true;
    this.page.tip("");
  }

  /** A step, and the mark in it, in words. */
  words(step, place, seat) {
    const store = this.store;
    const time = `${(step.duration * 1e3).toFixed(1)} ms, ${(step.time - store.zero).toFixed(3)} s in; `;
    const lines = [`step ${step.number}: ${time}batch of ${batchOf(step)}`];
    if (step.kv) lines.push(`KV blocks: ${step.kv.used} of ${step.kv.blocks}`);
    for (const { request: index, slot, prefill, tokens, blocks } of membersOf(step)) {
      if (slot !== seat) continue;
      const request = store.requests[index], text = store.pieceOf(index, place);
      lines.push(`request ${request.called}: ${store.title(index)}`);
      lines.push(`${prefill ? "prefill" : "decode"}, ${count(tokens, "token")}${text ? `: “${text}”` : ""}`);
      if (blocks) lines.push(`${blocks} KV blocks`);
      if (request.waited) lines.push(`waited ${count(request.waited, "step")}${request.why ? `: ${request.why}` : ""}`);
      else if (request.at[0] <= place) lines.push("did not wait for a step of this model");
      if (request.endedAt === place) lines.push(`ends here: ${request.end}`);
    }
    if (seat < this.lane.rows && lines.length < 3 + (step.kv ? 1 : 0)) lines.push(`slot ${seat + 1}: empty`);
    const names = (requests) => requests.map((request) => store.name(request)).join(", ");
    if (step.waiting.length) lines.push(`waiting: ${names(step.waiting.slice(0, 8))}${step.waiting.length > 8 ? " …" : ""}`);
    if (step.preempted.length) lines.push(`preempted: ${names(step.preempted)}`);
    return lines.join("\n");
  }

  draw() {
    const row = this.page.rowHeight(this.lane);
    this.strip.resize(row);
    this.strip.future = !this.page.hidden;
    this.strip.draw(this.page.placeOf(this.index), this.hovered);
  }

  update() {
    const page = this.page, lane = this.lane, store = this.store, place = page.placeOf(this.index);
    const now = store.stateAt(this.index, place), row = page.rowHeight(lane);
    const size = now.step ? batchOf(now.step) : 0, number = now.step ? now.step.number : 0;
    if (page.live && lane.over()) now.seated.clear();
    const idle = now.step && !now.seated.size && !now.next?.length;
    // A paused or idle model makes no tokens: the rate of its last steps would be taken for its speed.
    const still = idle || (page.live && store.clock?.paused);
    const rate = lane.rate(place, page.live ? Math.max(store.last, 0) : page.now);
    const bold = (textContent) => el("b", { textContent });
    this.facts.replaceChildren(idle ? "idle; the last batch " : "batch ", bold(size), ` of ${lane.seats} · step `, bold(number));
    if (!still) this.facts.append(" · ", bold(rate < 10 ? rate.toFixed(1) : Math.round(rate)), " tokens/s");
    if (now.kv) this.facts.append(" · KV ", bold(now.kv.used), ` of ${now.kv.blocks} blocks`);
    this.held.hidden = !now.next?.length || page.hidden;
    if (!this.held.hidden) {
      const names = now.next.flatMap((one, i) => [i ? ", " : "", el("span", { className: "name", textContent: store.name(one), title: store.title(one) })]);
      this.held.replaceChildren("Next step (paused): ", ...names);
    }
    this.facts.dataset.batch = size;
    this.facts.dataset.step = number;
    this.waits(now, page.unseen(lane));
    this.sits(now, place, row);
    this.seated.textContent = lane.rows < lane.seats ? `the first ${lane.rows} of ${lane.seats} slots` : "slots";
    this.batch.textContent = `batch (limit: ${lane.seats})`;
    this.batch.style.marginTop = `${GAP + this.strip.batchHigh - 14}px`;
    this.kv.textContent = lane.blocks ? `KV blocks (most seen: ${lane.mostBlocks} of ${lane.blocks})` : "";
    this.kv.hidden = !lane.blocks;
    this.kv.style.marginTop = `${GAP + this.strip.kvHigh - 14}px`;
    this.canvas.setAttribute("aria-label", `${lane.name}: ${lane.end - lane.first} steps, the last with a batch of ${size}`);
    this.blocks(place, now);
    if (!this.sentences.hidden) {
      const sentences = inWords(page, this.index, place);
      if (!sentences.length) sentences.push("No request has had a step yet.");
      renew(this.sentences, sentences, (textContent) => el("li", { textContent }));
    }
  }

  waits(now, unseen) {
    const { store, page } = this, count = now.waiting.length + now.more + unseen.length;
    this.waitingTitle.textContent = count ? `waiting: ${count}` : "no request waits";
    const most = Math.max(6, Math.floor((this.page.rowHeight(this.lane) * this.lane.rows + 60) / 26));
    const chips = now.waiting.slice(0, most).map((request, i) => {
      const { id, label } = store.requests[request];
      return [store.name(request), label, whyOf(now, i), store.color(request).fill, id];
    });
    const unseenChip = (asked) => [asked.called, asked.prompt, "in Triton's queue", store.colorOf(asked.called).fill, asked.name];
    chips.push(...unseen.slice(0, Math.max(0, most - chips.length)).map(unseenChip));
    const rest = count - chips.length;
    const shown = chips.map((chip) => [...chip, page.picked(this.index, chip[0])]);
    renew(this.queue, [...shown, ...(rest > 0 ? [rest] : [])], (chip) =>
      el("li", {}, typeof chip === "number" ? el("small", { textContent: `and ${chip} more` }) : this.chip(...chip)));
  }

  chip(name, label, why, color, id, picked) {
    const title = `${label ? `“${cut(label, 60)}”, ` : ""}id ${id}: ${why}`;
    const chip = el("button", { className: "chip", type: "button", title, onclick: () => this.page.pick(this.index, name) },
      el("b", { textContent: `${name} ` }), el("small", { textContent: `${label ? `${cut(label, 18)} · ` : ""}${why}` }));
    if (color) chip.style.borderLeftColor = color;
    chip.setAttribute("aria-pressed", String(picked));
    chip.dataset.request = id;
    return chip;
  }

  sits(now, place, row) {
    const store = this.store, lane = this.lane;
    while (this.rows.length < lane.rows) {
      const mark = el("i"), name = el("b"), text = el("bdi");
      const button = el("button", { className: "seat", type: "button" }, mark, name, el("span", { className: "text" }, text));
      const entry = { button, mark, name, text, request: null };
      button.onclick = () => entry.request === null || this.page.pick(this.index, store.name(entry.request));
      this.rows.push(entry);
      this.seats.append(button);
    }
    this.rows.forEach((entry, seat) => {
      const request = now.seated.get(seat), here = request !== undefined;
      entry.request = here ? request : null;
      entry.button.style.height = `${row}px`;
      entry.button.style.fontSize = row < 16 ? "9px" : "";
      entry.button.classList.toggle("empty", !here);
      entry.button.setAttribute("aria-pressed", String(here && this.page.picked(this.index, store.name(request))));
      entry.button.setAttribute("aria-label", here ? `slot ${seat + 1}: request ${store.name(request)}` : `slot ${seat + 1}: empty`);
      entry.button.title = here ? store.title(request) : "";
      if (here) entry.button.dataset.request = store.requests[request].id;
      else delete entry.button.dataset.request;
      entry.mark.style.background = here ? store.color(request).fill : "";
      entry.name.textContent = here ? store.name(request) : row < 16 ? "" : "–";
      const text = here ? store.textOf(request, place, 90) || store.requests[request].label : "";
      entry.text.textContent = row < 14 ? "" : text.replace(/\s+/g, " ");
    });
  }

  /** The KV cache: each block with its owner's colour, in its place if the engine logs the block ids. Otherwise cells
   * keep their owner from step to step, as blocks do. */
  blocks(place, { blocks, tables, kv }) {
    const lane = this.lane;
    this.mapBox.hidden = !lane.blocks;
    if (!lane.blocks) return;
    this.caption.textContent = tables.length
      ? "KV blocks, by owner and block id (the engine's block table)"
      : "KV blocks by owner. Block counts are real; positions are illustrative.";
    if (tables.length) {
      const cells = new Int32Array(lane.blocks).fill(-2);
      for (const { owner, ids } of tables) for (const id of ids) cells[id - 1] = owner;
      this.paint(cells, new Map(blocks));
      return;
    }
    const wanted = new Map(blocks);
    if (!wanted.size && kv?.used) wanted.set(-1, kv.used);
    const cells = (this.cells = this.cells?.length === lane.blocks && this.mapped <= place ? this.cells : new Int32Array(lane.blocks).fill(-2));
    this.mapped = place;
    const have = new Map();
    for (let i = cells.length - 1; i >= 0; i--) {
      const owner = cells[i];
      if (owner === -2) continue;
      const left = (wanted.get(owner) || 0) - (have.get(owner) || 0);
      if (left > 0) have.set(owner, (have.get(owner) || 0) + 1);
      else cells[i] = -2;
    }
    let free = 0;
    for (const [owner, count] of wanted) {
      for (let need = count - (have.get(owner) || 0); need > 0 && free < cells.length; free++) {
        if (cells[free] !== -2) continue;
        cells[free] = owner;
        need--;
      }
    }
    this.paint(cells, wanted);
  }

  paint(cells, wanted) {
    const wide = this.map.clientWidth || 300, scale = window.devicePixelRatio || 1;
    const sides = [[32, 22], [64, 16], [wide < 600 ? 300 : 1500, 12], [1500, 8], [Infinity, 4]]; // up to so many cells
    const [, side] = sides.find(([most]) => cells.length <= most);
    const perRow = Math.max(1, Math.floor(wide / side)), high = Math.ceil(cells.length / perRow) * side;
    this.map.width = wide * scale;
    this.map.height = high * scale;
    this.map.style.height = `${high}px`;
    const context = this.map.getContext("2d");
    context.scale(scale, scale);
    cells.forEach((owner, i) => {
      context.fillStyle = owner === -2 ? "#eeebe4" : owner === -1 ? KV : this.store.color(owner).fill;
      context.fillRect((i % perRow) * side, Math.floor(i / perRow) * side, side - 1, side - 1);
    });
    this.owners.replaceChildren(...[...wanted].slice(0, 24).map(([owner, count]) => {
      const swatch = el("i");
      swatch.style.background = owner === -1 ? KV : this.store.color(owner).fill;
      return el("span", {}, swatch, owner === -1 ? `in use ${count}` : `${this.store.name(owner)}: ${count}`);
    }));
  }
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
