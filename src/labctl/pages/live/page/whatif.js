// Another policy's lane under the real one: what it is called, where the two first part, and why.
class WhatIf {
  constructor(page) {
    Object.assign(this, { page, lane: "", policy: "", partings: [], words: "", shown: true });
    $("whatif").onclick = () => this.toggle();
  }

  restart([lane, policy, real] = ["", "", ""]) {
    Object.assign(this, { lane, policy, real, partings: [], words: "" });
    $("whatif").hidden = !lane;
    $("whatif").textContent = `What if: ${policy}`;
    this.apart();
    $("whatif").title = `The same requests under ${policy}, as far as their answers have ended. Press to hide or show.`;
  }

  toggle() {
    this.shown = !this.shown;
    $("whatif").setAttribute("aria-pressed", String(this.shown));
    for (const view of this.page.views) if (this.is(view.lane)) view.root.hidden = !this.shown;
    this.apart();
  }

  /** Two strips stand under one another: what lies between them, the map of KV blocks, is left out. */
  apart() {
    document.body.classList.toggle("comparing", this.shown && Boolean(this.lane));
    this.page.dirty = this.page.stale = true;
  }

  /** Scroll both strips to where they part. */
  go() {
    for (const [index, { lane, strip }] of this.page.views.entries()) {
      const place = this.place(lane, this.partings.at(-1));
      if (place >= 0) this.page.scroll(index, place + (0.8 * strip.wide) / strip.width);
    }
  }

  take(event) {
    this.words = event.words;
    if (event.at?.length) this.partings.push(event);
  }

  is(lane) {
    return Boolean(this.lane) && lane.model === this.lane;
  }

  /** The place in a lane at which it parts from the other; -1 where it does not, or has forgotten it. */
  place(lane, { at }) {
    if (![this.lane, this.real].includes(lane.model)) return -1;
    const [really, instead] = at, number = this.is(lane) ? instead : really;
    let low = lane.first, high = lane.end;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.at(middle).number < number) low = middle + 1;
      else high = middle;
    }
    return lane.at(low)?.number === number ? low : -1;
  }

  /** A line on a strip before each step at which the two lanes part. */
  mark(strip, cursor) {
    strip.context.fillStyle = "#a11d1d";
    for (const parting of this.shown ? this.partings : []) {
      const place = this.place(strip.lane, parting);
      if (place >= 0) strip.context.fillRect(strip.xOf(place, cursor) - 1.5, 0, 3, strip.high - 12);
    }
  }

  /** The lines above the strip: the newest parting in words, a row for each request. Redrawn when it has changed. */
  show(view) {
    const newest = this.partings.at(-1);
    if (view.worded === this.words) return;
    view.worded = this.words;
    const at = newest && (newest.at[1] || newest.at[0]);
    const heading = newest?.words === this.words
      ? el("button", {
        type: "button", textContent: `First difference: step ${at}`, title: "Show it in both strips", onclick: () => this.go(),
      })
      : el("p", { textContent: this.words });
    view.parted.dataset.step = at || "";
    const row = (cells, tag) => el("tr", {}, ...cells.map((textContent) => el(tag, { textContent })));
    view.parted.replaceChildren(heading);
    if (newest) {
      const titles = row(["request", "really", "what if"], "th");
      view.parted.append(el("table", {}, titles, ...newest.why.map((cells) => row(cells, "td"))));
    }
  }
}
