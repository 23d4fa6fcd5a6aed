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
    $("whatif").title = `The same requests under ${policy}. Press to hide or show.`;
  }

  toggle() {
    this.shown = !this.shown;
    $("whatif").setAttribute("aria-pressed", String(this.shown));
    for (const view of this.page.views) if (this.is(view.lane)) view.root.hidden = !this.shown;
    this.page.dirty = this.page.stale = true;
  }

  take(event) {
    this.words = event.words;
    if (event.at?.length) this.partings.push(event);
  }

  is(lane) {
    return Boolean(this.lane) && lane.model === this.lane;
  }

  /** A line on a strip before each step at which the two lanes part. */
  mark(strip, cursor) {
    const { context, lane } = strip;
    if (!this.shown || ![this.lane, this.real].includes(lane.model)) return;
    context.fillStyle = "#a11d1d";
    for (const { at } of this.partings) {
      const number = at[this.is(lane) ? 1 : 0];
      let low = lane.first, high = lane.end;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (lane.at(middle).n < number) low = middle + 1;
        else high = middle;
      }
      if (lane.at(low)?.n === number) context.fillRect(strip.xOf(low, cursor) - 1.5, 0, 3, strip.high - 12);
    }
  }

  /** What stands above the strip: the newest parting in words, a row for each request. */
  show(view) {
    const newest = this.partings.at(-1);
    const at = newest && (newest.at[1] || newest.at[0]);
    const title = newest && this.words === newest.words ? `First difference: step ${at}` : this.words;
    view.parted.dataset.step = at || "";
    const row = (cells, tag) => el("tr", {}, ...cells.map((textContent) => el(tag, { textContent })));
    view.parted.replaceChildren(el("p", { textContent: title }), ...(newest ? [el("table", {},
      row(["request", "really", "what if"], "th"), ...newest.why.map((cells) => row(cells, "td")))] : []));
  }
}
