// What stands beside the lanes: the clock's state, this page's requests, Triton's counters.
const SLOWNESS = [1, 2, 5, 10, 30, 100];

function clockWords(clock, left) {
  if (!clock) return "";
  if (left < 60) return `paused, goes on by itself in ${Math.ceil(left)} s`;
  if (left < 120) return `paused, for up to ${Math.floor(left)} s`;
  if (left < Infinity) return `paused, for up to ${Math.floor(left / 60)} min`;
  return clock.paused ? "paused" : clock.slow > 1 ? `slow motion, ${clock.slow} times` : "running";
}

function showClock(page, clock) {
  $("pause").textContent = clock.paused ? "Run" : "Pause";
  $("pause").setAttribute("aria-pressed", String(clock.paused));
  const slow = SLOWNESS.reduce((best, factor, i) => (factor <= (clock.slow || 1) ? i : best), 0);
  if (document.activeElement !== $("slow")) $("slow").value = String(slow);
  $("slowness").textContent = slow ? `${SLOWNESS[slow]} times slower` : "full speed";
}

/** One entry a request; made once, then kept up to date, so that a button does not move away under a finger. */
function showAsked(page) {
  const box = $("asked"), store = page.store;
  const newest = [...store.asked.values()].slice(-24).reverse();
  const wanted = new Set(newest.map((ask) => ask.n));
  for (const entry of [...box.children]) if (!wanted.has(entry.dataset.request)) entry.remove();
  newest.forEach((ask, i) => {
    let entry = [...box.children].find((other) => other.dataset.request === ask.n);
    if (!entry) {
      const cancel = el("button", { textContent: "Cancel", type: "button", onclick: () => page.send("cancel", { n: ask.n }) });
      cancel.setAttribute("aria-label", `Cancel request ${ask.name}`);
      entry = el("div", { className: "request" },
        el("div", { className: "head" }, el("b", { textContent: ask.name }), el("span"), cancel), el("p"));
      entry.dataset.request = ask.n;
      box.insertBefore(entry, box.children[i] || null);
    }
    const [, state, cancel] = entry.firstChild.children;
    const over = ask.state !== "sent";
    state.textContent = `${ask.model}: ${over ? ask.state : ask.text ? "growing" : "waits"}${ask.first ? `, first token after ${seconds(ask.first)}` : ""}`;
    entry.dataset.state = ask.state;
    cancel.hidden = over;
    const text = ask.error || `${ask.prompt}${ask.text || ""}`;
    if (entry.lastChild.textContent !== text) {
      entry.lastChild.textContent = text;
      entry.lastChild.scrollTop = 1e6;
    }
    const index = store.shown(ask);
    if (index >= 0) entry.style.borderLeftColor = store.color(index).fill;
  });
}

function showCounters(page) {
  $("counters").hidden = !page.store.counters.length;
  $("counted").replaceChildren(...page.store.counters.map((row) => {
    const table = el("table", {}, el("caption", { textContent: row.model }),
      el("tr", {}, el("th"), el("th", { textContent: "Triton" }), el("th", { textContent: "the model" })),
      ...row.facts.map(([what, triton, really]) =>
        el("tr", {}, el("th", { textContent: what }), el("td", { textContent: triton }), el("td", { textContent: really }))));
    return el("div", {}, table, ...row.notes.map((note) => el("p", { textContent: note })));
  }));
}

function seconds(s) {
  return s < 1 ? `${(s * 1e3).toFixed(0)} ms` : `${s.toFixed(2)} s`;
}
