// What is known: lanes (a model's instance each), their steps, and the requests in them. Nothing here draws.
//
// A step, as it comes, is a LaneEvent (labctl.pages.live.events). How things stand after it (`stateAt`) is what
// labctl.pages.live.lines defines.
const FIELDS = 5; // numbers of each member in `r` of a step, see `membersOf`
const KEPT = 120000; // steps of a lane; a page that is left open over night stays small
const MANY = 16; // seats
const RATE_S = 2; // seconds over which tokens/s are counted

class Lane {
  constructor(model) {
    Object.assign(this, { seats: 1, taken: 1, blocks: 0, mostBlocks: 1, tells: false }, model);
    this.heard = 0; // of its last event, in ms of this page
    this.first = 0; // the place of steps[0] in the lane's own count
    this.steps = [];
  }

  /** Take note of the slots that are in use. */
  take(occupants) {
    for (const { slot } of occupants) if (slot >= this.taken) this.taken = slot + 1;
    this.seats = Math.max(this.seats, this.taken);
  }

  /** Whether its last batch must be over although the log does not say so: the log has executions, the last long ago. */
  over() {
    return !this.tells && !this.now?.next?.length && performance.now() - this.heard > RATE_S * 1e3;
  }

  /** How many seats are drawn: if there are many, only as many as were ever taken. */
  get rows() {
    return this.seats <= MANY ? this.seats : Math.min(this.seats, Math.ceil(this.taken / 8) * 8);
  }

  get end() {
    return this.first + this.steps.length;
  }

  at(place) {
    return this.steps[place - this.first];
  }

  /** How many steps had ended at a time; the place after the last of them. */
  placeAt(time) {
    let low = 0, high = this.steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle].t <= time) low = middle + 1;
      else high = middle;
    }
    return this.first + low;
  }

  /** Tokens a second in the last seconds before a place. */
  rate(place, now) {
    let tokens = 0, from = now;
    for (let i = place - 1; i >= this.first; i--) {
      const step = this.at(i);
      if (step.t < now - RATE_S) break;
      from = step.t - step.d;
      for (const member of membersOf(step)) tokens += member.tokens;
    }
    return tokens ? tokens / Math.max(now - from, 0.05) : 0;
  }
}

class Store {
  constructor() {
    this.lanes = [];
    // {id, label, called: A, B, C ... in order of arrival, lane, t: first seen, from: the place where it first waited, at: places of its steps, text, cuts: how
    // long the text was after each, waited, out: places where it was preempted, why, end}
    this.requests = [];
    this.asked = new Map(); // what this page's server has sent: number -> {model, prompt, state, text, ...}
    this.colors = new Map();
    this.sent = new Map(); // when requests were sent, by name: this page's requests, or a recording's
    this.counters = [];
    this.clock = null;
    this.zero = null;
    this.last = 0;
  }

  take(event) {
    if (event.k === "model") this.lanes.push(new Lane(event));
    else if (event.k === "ask") this.ask(event);
    else if (event.k === "counters") this.counters = event.rows;
    else if (event.k === "clock") this.clock = event;
    else if (event.k === "state") this.hold(event);
    else this.step(event);
  }

  ask(event) {
    this.asked.set(event.n, { ...this.asked.get(event.n), ...event });
    if (event.called) this.colorOf(event.called);
    if (event.name && event.at) this.send(event.name, event.at);
  }

  send(name, at) {
    if (!this.sent.get(name)?.push(at)) this.sent.set(name, [at]);
  }

  /** When the request of that name with its first step at a time was sent; undefined if unknown. */
  arrived(name, by) {
    return this.sent.get(name)?.findLast((at) => at <= by);
  }

  /** The waiting requests, if the server reports them between two steps. */
  hold(event) {
    for (const [index, id, label, called] of event.q || []) this.request(index, id, label, called, event.m, event.t);
    for (const [index, why] of event.e || []) this.requests[index].end = why;
    this.lanes[event.m].now = event;
    this.lanes[event.m].heard = performance.now();
    this.lanes[event.m].take(seatedOf(event));
    this.last = Math.max(this.last, event.t);
  }

  /** A run that is over, as labctl.pages.live.packing has written it. */
  open({ lanes, requests, texts, sent }) {
    for (const [name, at] of sent || []) this.send(name, at);
    requests.forEach(([lane, id, label, called], index) => this.request(index, id, label, called, lane, 0));
    lanes.forEach((columns, m) => {
      const { name, model, t, d, now, ...changes } = columns;
      this.lanes.push(new Lane({ name, model }));
      const held = Object.entries(changes).map(([field, rows]) => ({ field, rows, next: 0, value: null }));
      let end = 0;
      for (let place = 0; place < t.length; place++) {
        const step = { m, t: (end += t[place]) / 1e6, d: d[place] / 1e6 };
        for (const one of held) {
          if (one.rows[one.next] === place) {
            one.value = one.rows[one.next + 1];
            one.next += 2;
          }
          if (one.value !== null) step[one.field] = one.value;
        }
        step.n += place;
        this.step(step);
      }
      if (now) this.hold(now);
    });
    texts?.forEach(([text, lengths], index) => {
      let cut = text.length - lengths.reduce((sum, length) => sum + length, 0);
      Object.assign(this.requests[index], { text, cuts: lengths.map((length) => (cut += length)) });
    });
  }

  request(index, id, label, called, lane, t) {
    this.requests[index] = { id, label, called, lane, t, at: [], text: "", cuts: [], waited: 0, out: [], why: "", end: "" };
    this.colorOf(called);
  }

  /** A request's colour by its name, from when it is first heard of: sent, waiting or in a step. */
  colorOf(called) {
    if (!this.colors.has(called)) this.colors.set(called, PALETTE[this.colors.size % PALETTE.length]);
    return this.colors.get(called);
  }

  step(step) {
    const lane = this.lanes[step.m];
    for (const [index, id, label, called] of step.q || []) this.request(index, id, label, called, step.m, step.t);
    if (step.z) lane.seats = step.z;
    if (step.kv) Object.assign(lane, { blocks: step.kv[1], mostBlocks: Math.max(lane.mostBlocks, step.kv[0]) });
    const place = lane.end, { x: texts } = step;
    delete step.x; // a request has its text
    lane.steps.push(step);
    lane.now = null;
    lane.heard = performance.now();
    lane.tells ||= Boolean(step.e || step.s); // when a request ends
    for (const [index, text] of step.b || []) this.requests[index].text = text;
    lane.take(membersOf(step));
    lane.take(seatedOf(step));
    membersOf(step).forEach((member, row) => {
      const request = this.requests[member.request];
      request.at.push(place);
      if (texts) request.text += texts[row];
      request.cuts.push(request.text.length);
    });
    (step.w || []).forEach((index, i) => {
      const request = this.requests[index];
      if (!request.at.length) request.from ??= place;
      request.waited++;
      request.why = Array.isArray(step.y) ? step.y[i] : step.y || "";
    });
    for (const index of step.v || []) this.requests[index].out.push(place);
    for (const [index, why] of step.e || []) Object.assign(this.requests[index], { end: why, endedAt: place });
    if (this.zero === null) this.zero = step.t - step.d;
    this.last = Math.max(this.last, step.t);
    if (lane.steps.length > KEPT) {
      lane.steps.splice(0, KEPT / 4);
      lane.first += KEPT / 4;
      for (const request of this.requests) if (request.endedAt < lane.first && this.lanes[request.lane] === lane) Object.assign(request, { at: [], text: "", cuts: [] });
    }
  }

  /** The same for a name in every lane: in an ensemble it is one request. */
  color(request) {
    return this.colors.get(this.requests[request].called);
  }

  /** How many of a request's steps were before a place. */
  stepsBefore(index, before) {
    const { at } = this.requests[index];
    let low = 0, high = at.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (at[middle] < before) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The end of a request's text as it stood before a place of its lane. */
  textOf(index, before, most = 240) {
    const { text, cuts } = this.requests[index], cut = cuts[this.stepsBefore(index, before) - 1] || 0;
    return text.slice(Math.max(0, cut - most), cut);
  }

  /** The text that a request got in one step. */
  pieceOf(index, place) {
    const { text, cuts } = this.requests[index], before = this.stepsBefore(index, place);
    return text.slice(before ? cuts[before - 1] : 0, cuts[before]);
  }

  /** How things stood in a lane before a place; at its end, as they stand now. */
  stateAt(index, place) {
    const lane = this.lanes[index], step = place > lane.first ? lane.at(place - 1) : null;
    const now = place === lane.end ? lane.now : null, newest = now || step;
    const seated = new Map(), ended = new Set((step?.e || []).map(([request]) => request));
    const members = step ? membersOf(step) : [];
    const stay = now || newest?.s ? seatedOf(newest) : members.filter(({ request }) => !ended.has(request));
    for (const { request, slot } of stay) seated.set(slot, request);
    const blocks = new Map(); // of the KV cache, by owner
    for (const member of members) {
      const gone = ended.has(member.request) || (now && this.requests[member.request].end);
      if (member.blocks && !gone) blocks.set(member.request, member.blocks);
    }
    return {
      step, seated, blocks, tables: (step?.kb || []).filter(([owner]) => blocks.has(owner)), next: now?.next, waiting: newest?.w || [], why: newest?.y || "", more: newest?.more || 0,
      kv: newest?.kv && [seated.size ? newest.kv[0] : 0, newest.kv[1]], // a step's own count is that of its beginning
    };
  }

  /** The request of this page's server as the log knows it; -1 before any step has shown it. */
  shown(ask) {
    return this.requests.findLastIndex((request) => request && request.id === ask.name && request.t >= ask.at);
  }

  name(index) {
    const request = this.requests[index];
    return request ? request.called : "?";
  }

  /** What a request's name stands for: the first words of its prompt, and its id. */
  title(index) {
    const { id, label } = this.requests[index];
    return `${label ? `“${cut(label, 60)}”, ` : ""}id ${id}`;
  }
}

// The only lines that know how a step is packed: of 100,000 steps, objects with names would be most of the file.

/** The requests that a step computed, in the order of its batch. */
function membersOf({ r }) {
  const members = [];
  for (let k = 0; k < r.length; k += FIELDS) members.push({ request: r[k], slot: r[k + 1], prefill: r[k + 2] === 1, tokens: r[k + 3], blocks: r[k + 4] });
  return members;
}

/** How many requests a step computed. */
function batchOf(step) {
  return step.r.length / FIELDS;
}

/** What a step computed for one request; undefined where that was not in it. */
function memberOf(step, request) {
  return membersOf(step).find((member) => member.request === request);
}

/** Which requests hold a slot after a step, or between two, where the event says so. */
function seatedOf({ s = [] }) {
  const seated = [];
  for (let i = 0; i < s.length; i += 2) seated.push({ request: s[i], slot: s[i + 1] });
  return seated;
}

// Okabe and Ito's colours, which colour-blind people can distinguish too; a second round is lighter, with an outline.
const BASE = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C7A00", "#5B6470"];
const PALETTE = [
  ...BASE.map((color) => ({ fill: color, line: color })),
  ...BASE.map((color) => ({ fill: mixed(color, 0.55), line: color })),
];

function mixed(color, white) {
  const parts = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  return `rgb(${parts.map((part) => Math.round(part + (255 - part) * white)).join(",")})`;
}
