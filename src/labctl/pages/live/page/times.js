// The requests of a recording over time: a row each, in order of arrival, and all groups on one axis of seconds.
const TIMES = { label: 170, row: 17, axis: 20, most: 24, first: 12 }; // pixels; rows that fit; requests seen at first
const WAIT_COLOR = "#a11d1d";

class Times {
  constructor(page) {
    Object.assign(this, { page, phases: [], from: 0, span: 1, whole: 1 });
  }

  /** `groups` of requests: [title, when the first one arrived, their ids, the lanes of their phase]; without any, those of each lane. */
  open(groups) {
    const { store } = this.page;
    if (!groups.length) groups = store.lanes.map((lane, index) => {
      const own = store.requests.filter((request) => request.lane === index);
      const [first] = lane.steps;
      return [lane.name, first ? first.time - first.duration : 0, own.map(({ id }) => id), [index]];
    });
    this.phases = groups.map((group) => this.phase(...group)).filter(({ rows }) => rows.length);
    $("times").hidden = !this.phases.length;
    if (!this.phases.length) return;
    this.whole = Math.max(1e-6, ...this.phases.map(({ rows }) => Math.max(...rows.map(({ end }) => end)))) * 1.02;
    this.span = Math.min(this.whole, Math.max(...this.phases.map(({ rows }) => burst(rows))) * 1.1);
    $("times-charts").replaceChildren(...this.phases.map(({ box }) => box));
  }

  /** In an ensemble each model has its own steps of a request: those of the one with the most are shown. */
  phase(title, zero, ids, lanes) {
    const { store } = this.page, wanted = new Set(ids);
    const own = store.requests.filter((request) => lanes.includes(request.lane) && wanted.has(request.id) && request.at.length);
    const stepsOf = (lane) => store.lanes[lane]?.steps.length ?? -1;
    const index = own.reduce((best, { lane }) => (stepsOf(lane) > stepsOf(best) ? lane : best), -1);
    const rows = own.filter(({ lane }) => lane === index).map((request) => this.row(store.lanes[index], request, zero));
    rows.sort((a, b) => a.arrived - b.arrived);
    const canvas = el("canvas", { tabIndex: 0 });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${title}: ${rows.slice(0, TIMES.most).map((row) => this.words(row)).join("; ")}`);
    const box = el("figure", {}, el("figcaption", { textContent: title }), el("div", { className: "scroll" }, canvas));
    const phase = { title, zero, rows, canvas, box };
    canvas.onpointermove = (event) => this.hover(phase, event);
    canvas.onpointerleave = () => this.page.tip("");
    canvas.onclick = (event) => this.page.seek(zero + this.timeAt(phase, event));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.deltaX && !event.shiftKey) return; // the page, or the rows, go on
      event.preventDefault();
      if (event.ctrlKey) this.zoom(event.deltaY < 0 ? 1.25 : 0.8);
      else this.move(((event.deltaX || event.deltaY) / this.wide) * this.span);
    }, { passive: false });
    return phase;
  }

  /** One request in seconds since the group's first arrival: when it came, its steps, and when it waited. */
  row(lane, request, zero) {
    const index = this.page.store.requests.indexOf(request);
    const steps = request.at.filter((place) => place >= lane.first).map((place) => {
      const step = lane.at(place);
      return { place, began: step.time - step.duration - zero, end: step.time - zero, prefill: memberOf(step, index).prefill };
    });
    const sent = this.page.store.arrived(request.id, steps[0].end + zero);
    const firstWait = lane.at(request.from);
    const queued = firstWait ? firstWait.time - firstWait.duration - zero : steps[0].began;
    const arrived = Math.min(steps[0].began, sent === undefined ? queued : sent - zero);
    const waits = [[arrived, steps[0].began]];
    for (const out of request.out) {
      const after = steps.find(({ place }) => place >= out), before = steps.findLast(({ place }) => place < out);
      if (after && before) waits.push([before.end, after.began]);
    }
    return { request, steps, arrived, waits, end: steps.at(-1).end, color: this.page.store.colorOf(request.called) };
  }

  words({ request, arrived, waits, steps, end }) {
    const waited = waits.reduce((sum, [from, to]) => sum + to - from, 0);
    return `request ${request.called} came at ${seconds(arrived)}, waited ${seconds(waited)}, had its first token at ${seconds(steps[0].end)} and its last at ${seconds(end)}`;
  }

  get wide() {
    return Math.max(50, (this.phases[0]?.canvas.clientWidth || 600) - TIMES.label - 8);
  }

  x(time) {
    return TIMES.label + ((time - this.from) / this.span) * this.wide;
  }

  timeAt(phase, event) {
    return this.from + ((event.clientX - phase.canvas.getBoundingClientRect().left - TIMES.label) / this.wide) * this.span;
  }

  zoom(by) {
    this.span = Math.min(this.whole, Math.max(this.whole / 5000, this.span / by));
    this.move(0);
  }

  move(by) {
    this.from = Math.min(Math.max(0, this.from + by), Math.max(0, this.whole - this.span));
    this.page.dirty = true;
  }

  fit() {
    Object.assign(this, { from: 0, span: this.whole });
  }

  hover(phase, event) {
    const row = phase.rows[Math.floor((event.clientY - phase.canvas.getBoundingClientRect().top) / TIMES.row)];
    const { store } = this.page;
    const text = row ? `${this.words(row)}\n${store.title(store.requests.indexOf(row.request))}` : "";
    this.page.tip(text, { left: event.clientX + 14, top: event.clientY + 14 });
  }

  draw() {
    if ($("times").hidden) return;
    for (const phase of this.phases) this.chart(phase);
  }

  chart({ canvas, rows, zero }) {
    const scale = window.devicePixelRatio || 1, wide = canvas.clientWidth, high = rows.length * TIMES.row + TIMES.axis;
    canvas.width = Math.max(1, wide * scale);
    canvas.height = high * scale;
    canvas.style.height = `${high}px`;
    const context = canvas.getContext("2d"), right = TIMES.label + this.wide;
    context.scale(scale, scale);
    context.font = "11px system-ui, sans-serif";
    this.ticks(context, high, right);
    rows.forEach((row, number) => {
      const y = number * TIMES.row;
      context.fillStyle = INK;
      context.textAlign = "left";
      context.fillText(cut(`${row.request.called}  ${row.request.label || ""}`.replace(/\s+/g, " "), 28), 2, y + 12);
      context.save();
      context.beginPath();
      context.rect(TIMES.label, y, this.wide, TIMES.row);
      context.clip();
      this.bars(context, row, y);
      this.outside(context, row, y, right);
      context.restore();
    });
    const now = this.page.now - zero;
    if (now >= this.from && now <= this.from + this.span) {
      context.fillStyle = INK;
      context.fillRect(this.x(now) - 0.5, 0, 1, high - TIMES.axis);
    }
  }

  /** Waiting is a red line with its seconds; a hollow bar is a prefill, and a full one a token. */
  bars(context, { waits, steps, color, request }, y) {
    const middle = y + TIMES.row / 2;
    for (const [from, to] of waits) {
      const left = this.x(from), long = this.x(to) - left;
      context.fillStyle = WAIT_COLOR;
      context.fillRect(left, middle - 1, Math.max(1, long), 2);
      context.fillRect(left, middle - 4, 1.5, 8);
      const words = `waits ${seconds(to - from)}`, wide = context.measureText(words).width;
      if (long < wide + 10) continue;
      context.fillStyle = "#fff";
      context.fillRect(left + 4, middle - 6, wide + 4, 12);
      context.fillStyle = WAIT_COLOR;
      context.fillText(words, left + 6, middle + 4);
    }
    for (const { began, end, prefill } of steps) {
      const left = this.x(began), long = Math.max(0.5, this.x(end) - left);
      context.fillStyle = color.fill;
      if (!prefill) context.fillRect(left, y + 4, Math.max(0.5, long - (long > 3 ? 1 : 0)), TIMES.row - 8);
      else {
        context.fillRect(left, y + 2, long, TIMES.row - 4);
        context.fillStyle = "#fff";
        if (long > 3) context.fillRect(left + 1.5, y + 3.5, long - 3, TIMES.row - 7);
      }
    }
    const first = this.x(steps[0].began), last = this.x(steps.at(-1).end), name = request.called;
    context.fillStyle = INK;
    if (last > TIMES.label) context.fillText(name, Math.max(last + 3, first + 3), y + 12);
  }

  /** Say of a row without a mark when its request was there. */
  outside(context, { arrived, end }, y, right) {
    context.fillStyle = "#5f6673";
    context.textAlign = "right";
    if (arrived > this.from + this.span) context.fillText(`later, from ${seconds(arrived)}`, right - 4, y + 12);
    context.textAlign = "left";
    if (end < this.from) context.fillText(`earlier, until ${seconds(end)}`, TIMES.label + 4, y + 12);
  }

  ticks(context, high, right) {
    const every = niceStep(this.span / 8);
    context.textAlign = "center";
    for (let time = Math.ceil(this.from / every) * every; time <= this.from + this.span; time += every) {
      const x = this.x(time);
      context.fillStyle = GRID;
      context.fillRect(x, 0, 1, high - TIMES.axis);
      context.fillStyle = "#5f6673";
      if (x < right - 20) context.fillText(seconds(time), Math.max(x, TIMES.label + 8), high - 6);
    }
  }
}

/** When the first burst is over: each of its requests arrives before all earlier ones have ended. */
function burst(rows) {
  let end = rows[0].end;
  for (const row of rows.slice(1, TIMES.first)) {
    if (row.arrived > end) break;
    end = Math.max(end, row.end);
  }
  return end;
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least);
}
