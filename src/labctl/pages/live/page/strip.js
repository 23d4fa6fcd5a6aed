// The strip of steps of one lane: a column for each step, a row for each seat; below it batch size and KV blocks.
const GRID = "#e6e3dc", FAINT = "#b9b5ab", INK = "#1d2433", BAR = "#7b8594", KV = "#a2557f";
const GAP = 8;

function chartHeight(least, row) {
  return Math.round((least * Math.max(24, row)) / 24);
}

class Strip {
  constructor(canvas, store, index) {
    Object.assign(this, { canvas, store, index, width: 14, right: null, future: true, row: 24 });
    this.context = canvas.getContext("2d");
  }

  get lane() {
    return this.store.lanes[this.index];
  }

  /** The heights of the two charts below the seats: they grow with a seat's. */
  get batchHigh() {
    return chartHeight(34, this.row);
  }

  get kvHigh() {
    return chartHeight(28, this.row);
  }

  /** How high all of it is, with seats of that height. */
  heightOf(lane, row) {
    return row * lane.rows + GAP + chartHeight(34, row) + (lane.blocks ? GAP + chartHeight(28, row) : 0) + 14;
  }

  /** Fit the canvas to its place and to the seats. */
  resize(row) {
    const scale = window.devicePixelRatio || 1, lane = this.lane;
    const wide = this.canvas.clientWidth;
    this.row = row;
    const high = this.heightOf(lane, row);
    if (this.wide === wide && this.high === high && this.scale === scale) return;
    Object.assign(this, { wide, high, scale });
    this.canvas.width = Math.max(1, Math.round(wide * scale));
    this.canvas.height = Math.round(high * scale);
    this.canvas.style.height = `${high}px`;
  }

  /** The place at the right edge. Without scrolling it is the cursor's, or the end if all steps fit. */
  edge(cursor) {
    const lane = this.lane, whole = this.future && (lane.end - lane.first) * this.width <= this.wide + 1;
    return this.right ?? (whole ? lane.end : Math.max(cursor, lane.first + 1));
  }

  placeAt(x, cursor) {
    return Math.floor(this.edge(cursor) - (this.wide - x) / this.width);
  }

  xOf(place, cursor) {
    return this.wide - (this.edge(cursor) - place) * this.width;
  }

  draw(cursor, shown) {
    const { context, lane, row, width } = this;
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.clearRect(0, 0, this.wide, this.high);
    this.lines();
    const from = Math.max(lane.first, this.placeAt(0, cursor));
    const to = Math.min(this.future ? lane.end : cursor, lane.end, Math.ceil(this.edge(cursor)));
    if (width >= 3) this.marks(from, to, cursor);
    else this.runs(from, to, cursor);
    if (this.future && cursor < to) { // what has not happened yet, in a replay
      const x = this.xOf(cursor, cursor);
      context.fillStyle = "rgba(251,250,247,.72)";
      context.fillRect(x, 0, this.wide - x, this.high);
      context.fillStyle = INK;
      context.fillRect(x - 0.75, 0, 1.5, this.high - 12);
    }
    if (shown !== null && shown >= from && shown < to) {
      context.strokeStyle = INK;
      context.lineWidth = 1.5;
      context.strokeRect(this.xOf(shown, cursor) - 0.5, 0.5, Math.max(width, 2) + 1, row * lane.rows);
    }
    this.numbers(from, to, cursor);
  }

  lines() {
    const { context, lane, row } = this;
    context.fillStyle = GRID;
    for (let seat = 0; seat < lane.rows; seat++) context.fillRect(0, seat * row + row / 2 - 0.5, this.wide, 1);
    const low = row * lane.rows + GAP + this.batchHigh;
    context.fillRect(0, low, this.wide, 1);
    if (lane.blocks) context.fillRect(0, low + GAP + this.kvHigh, this.wide, 1);
  }

  marks(from, to, cursor) {
    const { context, lane, row, width, store } = this;
    const pad = width > 6 ? 1 : 0.25, wide = Math.max(1, width - 2 * pad);
    const tall = Math.max(3, row * 0.74), low = Math.max(2, row * 0.42);
    const base = row * lane.rows + GAP + this.batchHigh, top = Math.max(1, lane.rows);
    for (let place = from; place < to; place++) {
      const step = lane.at(place), x = this.xOf(place, cursor) + pad;
      for (const { request, slot, prefill } of membersOf(step)) {
        const color = store.color(request);
        const high = prefill ? tall : low, y = slot * row + (row - high) / 2;
        context.fillStyle = color.fill;
        context.fillRect(x, y, wide, high);
        if (prefill) { // tall, with a hollow middle
          context.fillStyle = "#fff";
          context.fillRect(x + wide * 0.28, y + high * 0.2, Math.max(1, wide * 0.44), high * 0.6);
        } else if (color.line !== color.fill && width >= 5) {
          context.strokeStyle = color.line;
          context.lineWidth = 1;
          context.strokeRect(x + 0.5, y + 0.5, wide - 1, high - 1);
        }
      }
      this.endings(step, place, x, wide);
      context.fillStyle = BAR;
      const batch = (batchOf(step) / top) * this.batchHigh;
      context.fillRect(x, base - batch, wide, batch);
      if (step.kv?.used) {
        context.fillStyle = KV;
        const used = Math.max(1, (step.kv.used / lane.mostBlocks) * this.kvHigh);
        context.fillRect(x, base + GAP + this.kvHigh - used, wide, used);
      }
    }
  }

  /** A bar where a request ended, a cross where one was preempted. */
  endings(step, place, x, wide) {
    const { context, row } = this;
    for (const { request } of step.ended) {
      const member = memberOf(step, request);
      if (!member) continue;
      context.fillStyle = INK;
      context.fillRect(x + wide - 2, member.slot * row + row * 0.12, 2, row * 0.76);
    }
    for (const request of step.preempted) {
      const seat = this.seatBefore(request, place);
      if (seat < 0) continue;
      const y = seat * row + row / 2, r = Math.min(4, row / 3, wide);
      context.strokeStyle = "#a11d1d";
      context.lineWidth = 1.8;
      context.beginPath();
      context.moveTo(x - r, y - r); context.lineTo(x + r, y + r);
      context.moveTo(x - r, y + r); context.lineTo(x + r, y - r);
      context.stroke();
    }
  }

  seatBefore(request, place) {
    const before = this.store.stepsBefore(request, place);
    const step = this.lane.at(this.store.requests[request].at[before - 1]);
    return (step && memberOf(step, request))?.slot ?? -1;
  }

  /** From far away: for each column of pixels one step, and neighbours of the same request as one rectangle. */
  runs(from, to, cursor) {
    const { context, lane, row, width, store } = this;
    const open = new Array(lane.rows).fill(-1), began = new Array(lane.rows).fill(0);
    const high = Math.max(2, row * 0.5), base = row * lane.rows + GAP + this.batchHigh;
    const left = Math.max(0, Math.floor(this.xOf(from, cursor))), right = Math.min(this.wide, this.xOf(to, cursor));
    const flush = (seat, x) => {
      if (open[seat] < 0) return;
      context.fillStyle = store.color(open[seat]).fill;
      context.fillRect(began[seat], seat * row + (row - high) / 2, x - began[seat], high);
      open[seat] = -1;
    };
    const here = new Array(lane.rows).fill(-1);
    for (let x = left; x < right; x++) {
      const step = lane.at(Math.min(to - 1, Math.max(from, this.placeAt(x + 0.5, cursor))));
      here.fill(-1);
      for (const { request, slot } of membersOf(step)) here[slot] = request;
      for (let seat = 0; seat < lane.rows; seat++) {
        if (here[seat] === open[seat]) continue;
        flush(seat, x);
        open[seat] = here[seat];
        began[seat] = x;
      }
      context.fillStyle = BAR;
      const batch = (batchOf(step) / lane.rows) * this.batchHigh;
      context.fillRect(x, base - batch, 1, batch);
      if (step.kv?.used) {
        context.fillStyle = KV;
        const used = Math.max(1, (step.kv.used / lane.mostBlocks) * this.kvHigh);
        context.fillRect(x, base + GAP + this.kvHigh - used, 1, used);
      }
    }
    for (let seat = 0; seat < lane.rows; seat++) flush(seat, right);
  }

  numbers(from, to, cursor) {
    const { context, width, lane } = this;
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4].find((n) => n * width >= 56) || 1e5;
    context.fillStyle = "#5f6673";
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    for (let place = from; place < to; place++) {
      const { number } = lane.at(place);
      if (number % every) { // jump to just before the next
        const skip = every - (number % every) - 1;
        if (skip > 1) place += skip - 1;
        continue;
      }
      const half = context.measureText(number).width / 2;
      context.fillText(number, Math.min(this.xOf(place, cursor) + width / 2, this.wide - half), this.high - 2);
    }
  }
}
