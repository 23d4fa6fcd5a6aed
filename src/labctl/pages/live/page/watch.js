// The page itself: its events (from a server, or from a recording inside it), its views, and a person's actions.
const $ = (id) => document.getElementById(id);

// For people who prefer less motion: moving parts are redrawn once a second.
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

class Page {
  constructor() {
    this.store = new Store();
    this.views = [];
    this.live = true;
    this.now = 0;
    this.playing = false;
    this.dirty = true;
    this.stale = true;
    this.head = { title: "", into: {}, send: [] };
    this.quiz = new Quiz(this);
    this.routes = new Routes(this);
    this.times = new Times(this);
    this.stretch = 1; // of the seats' heights
    this.drawn = []; // [the newest step's time, when it was drawn in ms since the epoch], for the benchmark
  }

  // -- hearing -----------------------------------------------------------------------------------------------------

  start() {
    const recording = $("recording").textContent;
    this.live = !recording;
    if (recording) this.open(JSON.parse(recording));
    else this.listen();
    controls(this);
    window.addEventListener("resize", () => (this.dirty = this.stale = true));
    requestAnimationFrame((at) => this.frame(at));
    setInterval(() => (this.stale = true), 1000);
  }

  listen() {
    const source = new EventSource("events");
    source.onmessage = (message) => {
      this.alarm("");
      this.take(JSON.parse(message.data));
    };
    source.onerror = () => this.alarm(source.readyState === 2 ? "the page's server has gone: labctl watch again" : "no connection; trying again");
  }

  open({ head, ...recording }) {
    this.setHead(head);
    this.store.open(recording);
    this.take(recording.routes || []);
    $("player").hidden = false;
    document.body.classList.add("recorded");
    this.views.forEach((view) => view.draw());
    this.fit();
    this.times.open(recording.groups || []); // at the first requests; "All" shows the others
    this.seek(Math.min(...this.store.lanes.filter((lane) => lane.steps.length).map((lane) => lane.steps[0].time)));
  }

  take(events) {
    for (const event of events) {
      if (event.k === "head") this.restart(event);
      else if (event.k === "route") this.routes.take(event);
      else if (event.k === "chat") this.setChat(event.address);
      else if (event.k === "trouble") this.trouble = event.words;
      else this.store.take(event);
    }
    while (this.views.length < this.store.lanes.length) {
      const view = new LaneView(this.store, this.views.length, this);
      this.views.push(view);
      const order = (other) => (this.head.models || []).indexOf(other.lane.model);
      const after = this.views.filter((other) => order(other) > order(view)).sort((a, b) => order(a) - order(b))[0];
      $("lanes").insertBefore(view.root, after ? after.root : null);
      this.quiz.lane(view.lane.name);
    }
    this.stale = true;
    if (!CALM.matches) this.dirty = true;
    this.quiz.look();
  }

  /** The server sends everything again to a page that connects or reconnects. */
  restart(head) {
    this.store = new Store();
    this.views = [];
    $("lanes").replaceChildren();
    this.quiz.forget();
    this.routes.restart();
    this.setHead(head);
  }

  setHead(head) {
    this.head = { into: {}, send: [], ...head };
    document.title = `${head.title} – watch`;
    $("title").textContent = head.title;
    $("ask").hidden = !this.head.send.length;
    $("model").replaceChildren(...this.head.send.map((name) => el("option", { textContent: name })));
    if (head.chosen) $("model").value = head.chosen;
    this.setChat(head.chat);
    this.trouble = head.trouble;
  }

  setChat(address) {
    $("chat").hidden = !address;
    if (address) $("chat").href = address;
  }

  alarm(text) {
    this.broken = text;
    this.stale = true;
  }

  async send(what, body) {
    $("trouble").textContent = "";
    try {
      const answer = await fetch(what, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
      const result = await answer.json();
      if (!answer.ok) throw new Error(result.detail || answer.statusText);
      return result;
    } catch (error) {
      $("trouble").textContent = error.message;
      return null;
    }
  }

  // -- where we are ------------------------------------------------------------------------------------------------

  placeOf(index) {
    const lane = this.store.lanes[index];
    return this.live ? lane.end : lane.placeAt(this.now);
  }

  get hidden() {
    return this.quiz.on;
  }

  seek(time) {
    this.now = Math.min(Math.max(time, (this.store.zero ?? 0) - 1e-6), this.store.last);
    this.dirty = this.stale = true;
  }

  /** To the end of the next step of any lane (or of one), or of the one before. */
  hop(by, only = null) {
    const lanes = this.store.lanes.filter((lane, i) => only === null || i === only);
    const times = lanes.map((lane) => {
      const place = lane.placeAt(this.now) + (by > 0 ? 0 : -2);
      return lane.at(place)?.time ?? (by > 0 ? Infinity : -Infinity);
    });
    const time = by > 0 ? Math.min(...times) : Math.max(...times);
    if (Number.isFinite(time)) this.seek(time);
    else if (by < 0) this.seek(0);
  }

  scroll(index, edge) {
    const strip = this.views[index].strip, lane = this.store.lanes[index];
    strip.right = Math.min(Math.max(edge, lane.first + 2), lane.end + 2);
    if (this.live && strip.right >= lane.end) strip.right = null;
    $("follow").setAttribute("aria-pressed", String(this.views.every((view) => view.strip.right === null)));
    this.dirty = true;
  }

  zoom(by) {
    for (const { strip, lane } of this.views) {
      const least = Math.min(1, (strip.wide || 600) / Math.max(1, lane.end - lane.first));
      strip.width = Math.min(48, Math.max(least, strip.width * by));
    }
    this.times.zoom(by);
    this.dirty = true;
  }

  /** The whole of every lane, as far as it fits. */
  fit() {
    for (const { strip, lane } of this.views) strip.width = Math.min(14, (strip.wide || 600) / Math.max(1, lane.end - lane.first));
    this.times.fit();
    this.follow();
  }

  follow() {
    for (const { strip } of this.views) strip.right = null;
    $("follow").setAttribute("aria-pressed", "true");
    this.dirty = true;
  }

  /** A seat is as tall as the window allows: what is free below the lanes, all of them share. */
  rowHeight(lane) {
    return Math.min(Math.max(MOST_ROW, leastRow(lane)), Math.floor(this.stretch * leastRow(lane)));
  }

  /** How much taller than they must be the lanes can be without reaching below the window. */
  fill() {
    const box = $("lanes").getBoundingClientRect();
    const high = (stretch) => {
      this.stretch = stretch;
      return this.views.reduce((sum, { lane, strip }) => sum + strip.heightOf(lane, this.rowHeight(lane)), 0);
    };
    const below = Math.min(innerHeight / 2, $("routes").offsetHeight); // the router's decisions stay in view
    const before = this.stretch, room = innerHeight - (box.top + scrollY) - (box.height - high(before)) - 4 - below;
    let stretch = MOST_ROW / 9;
    while (stretch > 1 && high(stretch) > room) stretch -= 0.02;
    stretch = Math.max(1, stretch);
    // Taller lanes may bring a scroll bar, which changes the height of the rest: prefer small lanes to a flicker.
    this.stretch = stretch === this.former ? Math.min(stretch, before) : stretch;
    if (this.stretch !== before) this.stale = true;
    if (stretch === before || this.stretch !== before) this.former = stretch === before ? null : before;
  }

  // -- requests ----------------------------------------------------------------------------------------------------

  /** The requests that this page's server has sent and no step of the lane has shown: they wait in Triton. */
  unseen(lane) {
    if (!this.live) return [];
    const waits = (ask) => ask.state === "sent" && !ask.text && (this.head.into[ask.model] || ask.model) === lane.model;
    return [...this.store.asked.values()].filter((ask) => waits(ask) && this.store.shown(ask) < 0);
  }

  /** How many requests a lane has, in its seats and waiting. */
  requestsIn(index) {
    const lane = this.store.lanes[index], now = this.store.stateAt(index, this.placeOf(index));
    const seated = this.live && lane.over() ? [] : now.seated.values();
    return new Set([...seated, ...now.waiting, ...(now.next || [])]).size + this.unseen(lane).length;
  }

  pick(index, name) {
    this.quiz.pick(index, name);
    this.stale = true;
  }

  picked(index, name) {
    return this.quiz.has(index, name);
  }

  // -- showing -----------------------------------------------------------------------------------------------------

  frame(at) {
    if (this.playing) {
      this.seek(this.now + ((at - this.before) / 1e3) * Number($("speed").value));
      if (this.now >= this.store.last) play(this, false);
    }
    this.before = at;
    if (this.stale && (!this.updated || at - this.updated > (CALM.matches ? 1000 : 90))) {
      this.updated = at;
      this.stale = false;
      this.views.forEach((view) => view.update());
      this.panels();
      this.fill();
      this.dirty = true;
    }
    if (this.dirty) {
      this.dirty = false;
      this.views.forEach((view) => view.draw());
      this.times.draw();
      if (this.store.last !== this.drawn.at(-1)?.[0]) this.drawn.push([this.store.last, performance.timeOrigin + performance.now()]);
      if (this.drawn.length > 5000) this.drawn.splice(0, 2500);
    }
    requestAnimationFrame((next) => this.frame(next));
  }

  panels() {
    const clock = this.store.clock, state = $("state");
    const note = [this.live ? "" : "a recording", this.head.note].filter(Boolean).join("; ");
    const words = this.live && clock ? clockWords(clock, this.left()) : note;
    state.textContent = this.broken || this.trouble || words;
    showInvitation(this);
    state.title = this.left() < Infinity ? this.head.limit : "";
    state.classList.toggle("alarm", Boolean(this.broken || this.trouble) || this.left() < 60);
    $("clock").hidden = !clock;
    if (clock) showClock(this, clock);
    if (!this.live) {
      const span = this.store.last - this.store.zero;
      $("seek").value = String(span ? ((this.now - this.store.zero) / span) * 1000 : 0);
      $("time").textContent = `${(this.now - this.store.zero).toFixed(2)} of ${span.toFixed(2)} s`;
    }
    showAsked(this);
    showCounters(this);
    this.routes.show();
    this.quiz.show();
  }

  /** Seconds until a pause ends by itself, before one of Triton's own limits strikes. */
  left() {
    const { clock } = this.store;
    return clock?.paused && clock.until ? Math.max(0, clock.until - Date.now() / 1e3) : Infinity;
  }

  tip(text, where) {
    const tip = $("tip");
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(where.left, innerWidth - box.width - 8))}px`;
    tip.style.top = `${Math.max(4, where.top + box.height > innerHeight - 8 ? where.top - box.height - 28 : where.top)}px`;
  }
}

const MOST_ROW = 44; // pixels

function leastRow(lane) {
  return lane.rows <= 8 ? 24 : lane.rows <= 16 ? 18 : lane.rows <= 32 ? 13 : 9;
}

const page = new Page();
window.watching = page; // for the tests and the benchmark
page.start();
