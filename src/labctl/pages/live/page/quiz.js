// Guessing which requests are in the next batch. The answer is the batch that the server makes.
class Quiz {
  constructor(page) {
    Object.assign(this, { page, on: false, picks: new Set(), right: 0, asked: 0, from: null });
  }

  get index() {
    return Math.max(0, $("quizzed").selectedIndex);
  }

  lane(name) {
    $("quizzed").append(el("option", { textContent: name }));
  }

  forget() {
    $("quizzed").replaceChildren();
    this.picks.clear();
    this.from = null;
  }

  toggle() {
    this.on = !this.on;
    this.picks.clear();
    this.from = null;
    $("guess").setAttribute("aria-pressed", String(this.on));
    $("verdict").textContent = "";
    if (this.on && this.page.live && this.page.store.clock && !this.page.store.clock.paused) this.page.send("clock", { do: "pause" });
    if (this.on && this.page.live) this.choose();
    if (this.on && !this.page.live) {
      play(this.page, false);
      if (this.page.now >= this.page.store.last) this.page.seek(0);
    }
    this.page.dirty = this.page.stale = true;
  }

  /** Choose the lane with the most requests, so that there is something to guess about. */
  choose() {
    const { page } = this, here = page.store.lanes.map((lane, i) => page.requestsIn(i));
    if (here.length) $("quizzed").selectedIndex = here.indexOf(Math.max(...here));
  }

  pick(index, name) {
    if (!this.on || index !== this.index || this.from !== null) return;
    if (!this.picks.delete(name)) this.picks.add(name);
  }

  has(index, name) {
    return this.on && index === this.index && this.picks.has(name);
  }

  async reveal() {
    const page = this.page, lane = page.store.lanes[this.index];
    if (!lane || this.from !== null) return;
    this.from = page.live ? lane.end : page.placeOf(this.index);
    if (page.live) {
      const done = await page.send("clock", { do: "step", steps: 1, model: lane.model });
      if (!done) this.from = null;
      else setTimeout(() => this.nothing(), 1500);
    } else page.hop(1, this.index);
    this.look();
  }

  /** The step did not come: there was nothing to compute. */
  nothing() {
    if (this.from === null) return;
    this.from = null;
    $("verdict").textContent = "no step: no request needed one";
  }

  /** Whether the step that was guessed has come. */
  look() {
    const lane = this.page.store.lanes[this.index];
    if (this.from === null || !lane || lane.end <= this.from) return;
    const names = membersOf(lane.at(this.from)).map(({ request }) => this.page.store.name(request));
    const right = names.length === this.picks.size && names.every((name) => this.picks.has(name));
    this.asked++;
    this.right += right;
    const joined = names.join(", ");
    $("verdict").textContent = right ? `Right: ${joined}` : `It was ${joined}; you said ${[...this.picks].join(", ") || "none"}`;
    this.picks.clear();
    this.from = null;
    this.page.stale = true;
  }

  show() {
    $("quiz").hidden = !this.on;
    if (!this.on) return;
    const empty = () => this.page.live && this.page.store.lanes[this.index] && !this.page.requestsIn(this.index);
    if (this.from === null && empty()) this.choose();
    const lane = this.page.store.lanes[this.index];
    const over = !lane || (!this.page.live && this.page.placeOf(this.index) >= lane.end);
    const none = this.from === null && empty();
    $("question").textContent = over ? "No more steps."
      : none ? `${lane.name} has no requests to guess about: send it a few.`
      : "Which requests are in the next batch? Click them, in the slots and among the waiting ones.";
    $("reveal").disabled = over || Boolean(none) || this.from !== null;
    $("score").textContent = `${this.right} right of ${this.asked}`;
  }
}
