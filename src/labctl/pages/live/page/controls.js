// Buttons and keys.
function controls(page) {
  const clock = (what) => page.send("clock", what);
  $("pause").onclick = () => clock({ do: page.store.clock?.paused ? "run" : "pause" });
  $("step").onclick = () => clock({ do: "step", steps: 1 });
  $("ten").onclick = () => clock({ do: "step", steps: 10 });
  $("slow").onchange = () => clock({ do: "slow", factor: SLOWNESS[$("slow").value] });
  $("play").onclick = () => play(page, !page.playing);
  $("back").onclick = () => page.hop(-1);
  $("forth").onclick = () => page.hop(1);
  $("seek").oninput = () => page.seek(page.store.zero + ($("seek").value / 1000) * (page.store.last - page.store.zero));
  $("in").onclick = () => page.zoom(1.4);
  $("out").onclick = () => page.zoom(1 / 1.4);
  $("fit").onclick = () => page.fit();
  $("follow").onclick = () => page.follow();
  $("guess").onclick = () => page.quiz.toggle();
  $("reveal").onclick = () => page.quiz.reveal();
  $("ask").onsubmit = (event) => {
    event.preventDefault();
    ask(page, 1);
  };
  $("eight").onclick = () => ask(page, 8);
  $("prompt").onkeydown = (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    ask(page, 1);
  };
  document.addEventListener("keydown", (event) => key(page, event));
}

function ask(page, count) {
  return page.send("send", { model: $("model").value, prompt: $("prompt").value, tokens: Number($("tokens").value), count });
}

function play(page, on) {
  if (on && page.now >= page.store.last) page.seek(page.store.zero);
  page.playing = on;
  page.before = performance.now();
  $("play").textContent = on ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", String(on));
}

function key(page, event) {
  if (event.key === "Escape" && page.quiz.on) page.quiz.toggle();
  const typing = event.target.closest("input, textarea, select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const pressed = event.target.closest("button, summary, a");
  const click = (id) => ($(id).closest("[hidden]") ? null : $(id).click());
  const move = (by) => page.views.forEach((view, i) => page.scroll(i, view.strip.edge(page.placeOf(i)) + by));
  const acts = {
    " ": () => !pressed && click(page.live ? "pause" : "play"),
    ".": () => click(page.live ? "step" : "forth"),
    ",": () => click("back"),
    "+": () => page.zoom(1.4),
    "=": () => page.zoom(1.4),
    "-": () => page.zoom(1 / 1.4),
    ArrowLeft: () => move(-5),
    ArrowRight: () => move(5),
    End: () => page.follow(),
    f: () => page.follow(),
    0: () => page.fit(),
    g: () => page.quiz.toggle(),
  };
  const act = acts[event.key];
  if (!act || (event.key === " " && pressed)) return;
  event.preventDefault();
  act();
}
