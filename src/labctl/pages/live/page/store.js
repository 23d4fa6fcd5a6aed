// The page's data: lanes (one for each instance of a model), their steps, and the requests in them. Nothing here draws.
//
// A step comes as a LaneEvent (labctl.pages.live.events), and is kept as `named` returns it. labctl.pages.live.lines
// defines the state after it (`stateAt`).
const FIELDS = 5; // numbers of each member of a step, see `membersOf`
const KEPT = 120000; // steps of a lane, so that a page that is left open over night stays small
const NONE = [];
const MANY = 16; // seats
const RATE_S = 2; // seconds over which tokens/s are counted

class Lane {
  constructor(model) {
    Object.assign(this, { seats: 1, taken: 1, blocks: 0, mostBlocks: 1, tells: false }, model);
    this.heard = 0; // when its last event came, in ms of this page
    this.first = 0; // the place of steps[0] in the lane's own count
    this.steps = [];
  }

  /** Take note of the slots that are in use. */
  take(occupants) {
    for (const { slot } of occupants) if (slot >= this.taken) this.taken = slot + 1;
    this.seats = Math.max(this.seats, this.taken);
  }

  /** Whether its last batch must be over: the log of a model without ends has executions, and the last was long ago. */
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
      if (this.steps[middle].time <= time) low = middle + 1;
      else high = middle;
    }
    return this.first + low;
  }

  /** Tokens a second in the last seconds before a place. */
  rate(place, now) {
    let tokens = 0, from = now;
    for (let i = place - 1; i >= this.first; i--) {
      const step = this.at(i);
      if (step.time < now - RATE_S) break;
      from = step.time - step.duration;
      for (const member of membersOf(step)) tokens += member.tokens;
    }
    return tokens ? tokens / Math.max(now - from, 0.05) : 0;
  }
}

class Store {
  constructor() {
    this.lanes = [];
    this.requests = []; // as `request` makes them
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
    const state = named(event), lane = this.lanes[state.lane];
    for (const { index, id, label, called } of state.opened) this.request(index, id, label, called, state.lane, state.time);
    for (const { request, why } of state.ended) this.requests[request].end = why;
    lane.now = state;
    lane.heard = performance.now();
    lane.take(seatedOf(state));
    this.last = Math.max(this.last, state.time);
  }

  /** A run that is over, as labctl.pages.live.packing has written it. */
  open({ lanes, requests, texts, sent }) {
    for (const [name, at] of sent || []) this.send(name, at);
    requests.forEach(([lane, id, label, called], index) => this.request(index, id, label, called, lane, 0));
    lanes.forEach((columns, m) => {
      const { name, model, t, d, now, ...changes } = columns;
      this.lanes.push(new Lane({ name, model }));
      const fields = Object.entries(changes).map(([field, rows]) => ({ field, rows, next: 0, value: null }));
      let end = 0;
      for (let place = 0; place < t.length; place++) {
        end += t[place];
        const event = { m, t: end / 1e6, d: d[place] / 1e6 };
        for (const column of fields) {
          if (column.rows[column.next] === place) {
            column.value = column.rows[column.next + 1];
            column.next += 2;
          }
          if (column.value !== null) event[column.field] = column.value;
        }
        event.n += place;
        this.step(event);
      }
      if (now) this.hold(now);
    });
    texts?.forEach(([text, lengths], index) => {
      let cut = text.length - lengths.reduce((sum, length) => sum + length, 0);
      Object.assign(this.requests[index], { text, cuts: lengths.map((length) => (cut += length)) });
    });
  }

  /** Add a request. Once it has waited it has `from`, the place where it first did; once it has ended, `endedAt`. */
  request(index, id, label, called, lane, time) {
    this.requests[index] = {
      id, label, lane,
      called, // A, B, C ... in order of arrival
      time, // when the log first showed it
      at: [], // the places of its steps
      text: "",
      cuts: [], // how long the text was after each step
      waited: 0, // steps
      why: "", // it last waited
      out: [], // the places where it was preempted
      end: "", // why it ended
    };
    this.colorOf(called);
  }

  /** A request's colour by its name, given when it is first sent, waits, or is in a step. */
  colorOf(called) {
    if (!this.colors.has(called)) this.colors.set(called, PALETTE[this.colors.size % PALETTE.length]);
    return this.colors.get(called);
  }

  step(event) {
    const step = named(event), lane = this.lanes[step.lane], place = lane.end;
    for (const { index, id, label, called } of step.opened) this.request(index, id, label, called, step.lane, step.time);
    if (event.z) lane.seats = event.z;
    if (step.kv) Object.assign(lane, { blocks: step.kv.blocks, mostBlocks: Math.max(lane.mostBlocks, step.kv.used) });
    lane.steps.push(step);
    lane.now = null;
    lane.heard = performance.now();
    lane.tells ||= Boolean(step.ended.length || step.seats); // when a request ends
    const texts = event.x; // of each member, which its request keeps
    for (const [request, text] of event.b || NONE) this.requests[request].text = text;
    lane.take(membersOf(step));
    lane.take(seatedOf(step));
    membersOf(step).forEach((member, row) => {
      const request = this.requests[member.request];
      request.at.push(place);
      if (texts) request.text += texts[row];
      request.cuts.push(request.text.length);
    });
    step.waiting.forEach((index, i) => {
      const request = this.requests[index];
      if (!request.at.length) request.from ??= place;
      request.waited++;
      request.why = whyOf(step, i);
    });
    for (const index of step.preempted) this.requests[index].out.push(place);
    for (const { request, why } of step.ended) Object.assign(this.requests[request], { end: why, endedAt: place });
    if (this.zero === null) this.zero = step.time - step.duration;
    this.last = Math.max(this.last, step.time);
    if (lane.steps.length > KEPT) this.forget(lane, KEPT / 4);
  }

  /** Drop the first steps of a lane, and the texts of requests that ended in them. */
  forget(lane, count) {
    lane.steps.splice(0, count);
    lane.first += count;
    for (const request of this.requests) {
      if (this.lanes[request.lane] !== lane || !(request.endedAt < lane.first)) continue;
      Object.assign(request, { at: [], text: "", cuts: [] });
    }
  }

  /** A request's colour. A name has one colour in all lanes, because in an ensemble it is one request. */
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
    const seated = new Map(), ended = new Set((step?.ended || NONE).map(({ request }) => request));
    const members = step ? membersOf(step) : NONE;
    const stay = now || newest?.seats ? seatedOf(newest) : members.filter(({ request }) => !ended.has(request));
    for (const { request, slot } of stay) seated.set(slot, request);
    const blocks = new Map(); // of the KV cache, by owner
    for (const member of members) {
      const gone = ended.has(member.request) || (now && this.requests[member.request].end);
      if (member.blocks && !gone) blocks.set(member.request, member.blocks);
    }
    return {
      step, seated, blocks,
      tables: (step?.tables || NONE).filter(({ owner }) => blocks.has(owner)),
      next: now?.next,
      waiting: newest?.waiting || NONE,
      why: newest?.why || "",
      more: newest?.more || 0,
      // A step's own count is that of its beginning.
      kv: newest?.kv && { used: seated.size ? newest.kv.used : 0, blocks: newest.kv.blocks },
    };
  }

  /** The request of this page's server as the log knows it; -1 before any step has shown it. */
  shown(ask) {
    return this.requests.findLastIndex((request) => request && request.id === ask.name && request.time >= ask.at);
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

// The only lines that know how an event is packed: of 100,000 steps, objects with names would be most of the file.

/** A step, or how a lane stands between two, by name. Members and seats stay packed, because a page keeps all steps. */
function named(event) {
  return {
    lane: event.m,
    number: event.n,
    time: event.t, // its end, in seconds of the log's clock
    duration: event.d,
    members: event.r || NONE, // see `membersOf`
    seats: event.s, // see `seatedOf`
    waiting: event.w || NONE,
    why: event.y || "", // they wait: for all, or of each
    more: event.more || 0, // others that wait
    preempted: event.v || NONE,
    ended: event.e?.map(([request, why]) => ({ request, why })) || NONE,
    opened: event.q?.map(([index, id, label, called]) => ({ index, id, label, called })) || NONE, // new requests
    kv: event.kv && { used: event.kv[0], blocks: event.kv[1] },
    tables: event.kb?.map(([owner, ids]) => ({ owner, ids })) || NONE,
    next: event.next, // requests of the step that waits for the clock
  };
}

/** The requests that a step computed, in the order of its batch. */
function membersOf({ members: packed }) {
  const members = [];
  for (let k = 0; k < packed.length; k += FIELDS) {
    members.push({
      request: packed[k],
      slot: packed[k + 1],
      prefill: packed[k + 2] === 1,
      tokens: packed[k + 3],
      blocks: packed[k + 4],
    });
  }
  return members;
}

/** How many requests a step computed. */
function batchOf(step) {
  return step.members.length / FIELDS;
}

/** Why the request at a place of the queue waits. */
function whyOf({ why }, place) {
  return Array.isArray(why) ? why[place] : why;
}

/** A step's member for one request; undefined if the request was not in it. */
function memberOf(step, request) {
  return membersOf(step).find((member) => member.request === request);
}

/** Which requests hold a slot after a step, or between two, if the event says so. */
function seatedOf({ seats = NONE }) {
  const seated = [];
  for (let k = 0; k < seats.length; k += 2) seated.push({ request: seats[k], slot: seats[k + 1] });
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
