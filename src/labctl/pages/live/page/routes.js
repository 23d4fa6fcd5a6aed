// A router's decisions: for each request its candidates with their scores, the chosen one, and what that server found.
const ROUTES = 200; // that are kept while the page is open; of these the newest are shown
const SHOWN = 40;

class Routes {
  constructor(page) {
    Object.assign(this, { page, all: [], drawn: "" });
    $("routed").onclick = () => this.tell();
  }

  restart() {
    this.all = [];
    this.drawn = "";
  }

  take(event) {
    this.all.push(event);
    if (this.page.live && this.all.length > ROUTES) this.all.splice(0, this.all.length - ROUTES);
  }

  tell() {
    const sentences = $("routes-told");
    sentences.hidden = !sentences.hidden;
    $("routed").setAttribute("aria-expanded", String(!sentences.hidden));
  }

  /** The decisions until now, the newest first; redrawn when they have changed. */
  show() {
    const past = this.page.live ? this.all : this.all.filter((route) => route.t <= this.page.now);
    $("routes").hidden = !this.all.length;
    const state = `${past.length} ${past.at(-1)?.t} ${this.all.length}`;
    if (state === this.drawn) return;
    this.drawn = state;
    const newest = past.slice(-SHOWN).reverse(), names = newest[0]?.servers.map((server) => server.name) || [];
    $("routes-sum").textContent = past.at(-1)?.sum || "No decision yet.";
    $("routes-told").replaceChildren(...newest.map((route) => el("li", { textContent: route.words })));
    const head = ["request", "prompt", ...names.map((name) => `server ${name}`), "found"];
    const titles = el("tr", {}, ...head.map((textContent) => el("th", { scope: "col", textContent })));
    $("routes-table").replaceChildren(titles, ...newest.map((route) => this.row(route, names)));
  }

  row(route, names) {
    const mark = el("i");
    mark.style.background = this.page.store.colorOf(route.called).fill;
    const cells = names.map((name) => {
      const server = route.servers.find((candidate) => candidate.name === name), chosen = name === route.chosen;
      if (!server) return el("td", { textContent: "–" });
      const load = `${server.cached} cached; ${server.requests} there, ${server.tokens} left`;
      const score = el("b", { textContent: `${chosen ? "✓ " : ""}${server.score}` });
      return el("td", { className: chosen ? "chosen" : "" }, score, el("small", { textContent: load }));
    });
    const expected = route.servers.find((candidate) => candidate.name === route.chosen).cached;
    return el("tr", { title: `id ${route.request}: ${route.words}` },
      el("th", { scope: "row" }, mark, route.called), el("td", { textContent: route.prompt }), ...cells,
      el("td", { className: route.found < expected ? "less" : "" }, el("b", { textContent: route.found })));
  }
}
