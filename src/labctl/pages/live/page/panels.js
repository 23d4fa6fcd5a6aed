// What stands beside the lanes: the clock's state, this page's requests, Triton's counters.
const SLOWNESS = [1, 2, 5, 10, 30, 100];

function clockWords(clock, left) {
  if (!clock) return "";
  if (left < 60) return `paused, goes on by itself in ${Math.ceil(left)} s`;
  if (left < 120) return `paused, for up to ${Math.floor(left)} s`;
  if (left < Infinity) return `paused, for up to ${Math.floor(left / 60)} min`;
  return clock.paused ? "paused" : clock.slow > 1 ? "in slow motion" : "running";
}

function showClock(page, clock) {
  $("pause").textContent = clock.paused ? "Run" : "Pause";
  $("pause").setAttribute("aria-pressed", String(clock.paused));
  const slow = SLOWNESS.reduce((best, factor, i) => (factor <= (clock.slow || 1) ? i : best), 0);
  if (document.activeElement !== $("slow")) $("slow").value = String(slow);
  $("slowness").textContent = slow ? `${SLOWNESS[slow]} times slower` : "full speed";
}

/** What to do on a page before its first request. */
function showInvitation(page) {
  const { store, views } = page;
  const busy = views.some((view, i) => page.requestsIn(i));
  const invite = $("invite");
  invite.hidden = !page.live || busy || page.trouble || store.asked.size > 0;
  if (invite.hidden) return;
  const example = page.head.note ? "" : ", such as labctl's own test of the models";
  const marked = store.lanes.some((lane) => lane.steps.length);
  const marks = marked ? ` The marks below are of requests that are done${example}.` : "";
  const how = !page.head.title
    ? "Connecting to the server."
    : page.head.send.length
    ? "Nothing runs now. Send a request (Ctrl+Enter in the prompt). Or press Pause, send a few, and press Step."
    : "Nothing runs now. Requests that reach this server are shown as they arrive.";
  if (invite.textContent !== how + marks) invite.textContent = how + marks;
}

/** The state of a request of this page. The log shows more than its client does, because an answer may come whole. */
function askState(page, ask) {
  const index = page.store.shown(ask), request = page.store.requests[index];
  const computed = request && !request.end;
  if (ask.state === "cancelled" && computed) return "cancelled, but the model goes on: Triton did not pass it on";
  if (ask.state !== "sent") return ask.state;
  const lane = request && page.store.lanes[request.lane], newest = lane && (lane.now || lane.at(lane.end - 1));
  if (computed && newest?.waiting.includes(index)) return request.out.length ? "preempted, waiting" : "waiting";
  if (ask.text) return "streaming";
  return computed && request.at.length ? "running (answer comes whole)" : "waiting";
}

/** An entry for each request, made once and then updated, so that its button does not move away under a finger. */
function showAsked(page) {
  const box = $("asked"), store = page.store;
  const newest = [...store.asked.values()].slice(-24).reverse();
  const wanted = new Set(newest.map((ask) => ask.n));
  for (const entry of [...box.children]) if (!wanted.has(entry.dataset.request)) entry.remove();
  newest.forEach((ask, i) => {
    let entry = [...box.children].find((other) => other.dataset.request === ask.n);
    if (!entry) {
      const cancel = el("button", { textContent: "Cancel", type: "button", onclick: () => page.send("cancel", { n: ask.n }) });
      cancel.setAttribute("aria-label", `Cancel request ${ask.called}`);
      entry = el("div", { className: "request" },
        el("div", { className: "head" }, el("b", { textContent: ask.called, title: `id ${ask.name}` }), el("span", { textContent: ask.model }), cancel), el("small"), el("p"));
      entry.dataset.request = ask.n;
      box.insertBefore(entry, box.children[i] || null);
    }
    const [head, state] = entry.children, cancel = head.lastChild;
    const over = ask.state !== "sent";
    state.textContent = `${askState(page, ask)}${ask.first ? `, first response after ${seconds(ask.first)}` : ""}`;
    entry.dataset.state = ask.state;
    cancel.hidden = over;
    const text = ask.error || `${ask.prompt}${ask.text || ""}`;
    if (entry.lastChild.textContent !== text) {
      entry.lastChild.textContent = text;
      entry.lastChild.scrollTop = 1e6;
    }
    entry.style.borderLeftColor = store.colorOf(ask.called).fill;
  });
}

function showCounters(page) {
  $("counters").hidden = !page.store.counters.length;
  $("counted").replaceChildren(...page.store.counters.map((row) => {
    const table = el("table", {}, el("caption", { textContent: row.model }),
      el("tr", {}, el("td"), el("th", { textContent: "Triton" }), el("th", { textContent: "the model" })),
      ...row.facts.map(([what, triton, really]) =>
        el("tr", {}, el("th", { textContent: what }), el("td", { textContent: triton }), el("td", { textContent: really }))));
    return el("div", {}, table, ...row.notes.map((note) => el("p", { textContent: note })));
  }));
}

function seconds(s) {
  return s < 1 ? `${(s * 1e3).toFixed(0)} ms` : `${s.toFixed(2)} s`;
}
