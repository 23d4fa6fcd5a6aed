// A lane's timeline in words, for people who do not see the strip: a sentence for each of its newest requests.
const TOLD = 12; // requests
const NAMED = 3; // of the requests that another one waited for

/** A sentence for each request that the lane had before a place, the newest first. */
function inWords(page, index, before) {
  const { store } = page, lane = store.lanes[index], found = [];
  for (const { name: id, called } of page.unseen(lane)) {
    found.push(sentence(store, lane, { id, called, at: [], out: [], why: "in Triton's queue" }, before));
  }
  for (let i = store.requests.length - 1; i >= 0 && found.length < TOLD; i--) {
    const request = store.requests[i];
    if (request?.lane !== index) continue;
    const came = Math.min(request.from ?? Infinity, request.at[0] ?? Infinity);
    if (came >= before) continue;
    found.push(sentence(store, lane, request, before));
  }
  return found;
}

function sentence(store, lane, request, before) {
  const steps = request.at.filter((place) => place < before), begun = steps.length ? steps[0] : before;
  const parts = [`request ${request.called} ${waitOf(store, lane, request, begun, steps.length > 0)}`];
  if (steps.length) {
    const index = store.requests.indexOf(request), last = steps.at(-1);
    const member = (place) => memberOf(lane.at(place), index);
    const kept = steps.filter((place) => place >= lane.first);
    const made = kept.reduce((sum, place) => sum + member(place).tokens, 0);
    const numbers = [lane.at(kept[0]).number, lane.at(last).number];
    const where = kept.length > 1 ? `steps ${numbers[0]} to ${numbers[1]}` : `step ${numbers[1]}`;
    parts.push(`${made ? `${count(made, "token")} in ` : ""}${where}, slot ${member(last).slot + 1}`);
  }
  const out = request.out.filter((place) => place < before).length;
  if (out) parts.push(`preempted ${count(out, "time")}`);
  if (request.endedAt < before) parts.push(`ended: ${request.end}`);
  return parts.join("; ");
}

/** "waited 374 tokens for request 1": what the others got between its arrival, as far as that is known, and its first step. */
function waitOf(store, lane, request, begun, over) {
  const came = store.arrived(request.id, begun > lane.first && begun < lane.end ? lane.at(begun).time : Infinity);
  const from = Math.max(lane.first, Math.min(request.from ?? begun, came === undefined ? begun : lane.placeAt(came)));
  const others = new Set();
  let tokens = 0;
  for (let place = from; place < begun; place++) {
    for (const member of membersOf(lane.at(place))) {
      others.add(store.name(member.request));
      tokens += member.tokens;
    }
  }
  const why = request.why ? ` (${request.why})` : "";
  if (!others.size) return over ? "did not wait" : `waits${why}`;
  const names = [...others], more = names.length - NAMED;
  const listed = more > 0 ? `${names.slice(0, NAMED).join(", ")} and ${more} more` : names.join(" and ");
  return `${over ? "waited" : "has waited"} ${tokens ? count(tokens, "token") : count(begun - from, "step")} for request${names.length > 1 ? "s" : ""} ${listed}${why}`;
}

function count(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}
