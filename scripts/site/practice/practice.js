// The page: the exercise, the learner's answer, and the worker's verdict. Texts go in as text, never as HTML.
const $ = (id) => document.getElementById(id);
const exercises = JSON.parse($("exercises").textContent);
const texts = new Map(); // what was written for each, while the page is open
let worker = null, hints = 0;

for (const { id, title } of exercises) $("which").append(new Option(id === "arena" ? title : `${id} ${title}`, id));

const made = (tag, textContent) => Object.assign(document.createElement(tag), { textContent });
const chosen = () => exercises[$("which").selectedIndex];

function show() {
  const exercise = chosen();
  hints = 0;
  const task = exercise.task.trim().replace(/([^\n])\n(?=[^\n\s\d-])/g, "$1 "); // a paragraph is one line
  $("task").replaceChildren(...task.split("`").map((part, i) => (i % 2 ? made("code", part) : part)));
  $("file").textContent = exercise.file;
  $("source").value = texts.get(exercise.id) ?? exercise.starter;
  $("hint").disabled = !exercise.hints.length;
  say("");
}

function say(text, columns = [], rows = []) {
  $("said").textContent = text;
  $("found").hidden = !rows.length;
  const row = (cells, tag) => {
    const line = document.createElement("tr");
    line.append(...cells.map((cell) => made(tag, cell)));
    return line;
  };
  $("found").tHead.replaceChildren(...(rows.length ? [row(columns, "th")] : []));
  $("found").tBodies[0].replaceChildren(...rows.map((cells) => row(cells, "td")));
}

function running(on) {
  $("check").disabled = on;
  $("stop").disabled = !on;
}

function stop(why) {
  worker?.terminate();
  worker = null;
  running(false);
  say(why);
}

function answer({ data }) {
  if (data.progress) return say(data.progress);
  running(false);
  if (data.error) return stop(data.error);
  const result = JSON.parse(data.result);
  if (result.rows) return say("Played on six traces.", result.columns, result.rows);
  if (result.foul) return say(result.foul);
  const rows = result.checks.map((check) => [check.ok ? "holds" : "fails", check.name, check.expected, check.measured]);
  say(result.verdict, ["result", "expectation", "expected", "measured"], rows);
}

$("which").onchange = show;
$("source").oninput = () => texts.set(chosen().id, $("source").value);
$("again").onclick = () => {
  texts.delete(chosen().id);
  show();
};
$("hint").onclick = () => {
  const all = chosen().hints;
  say(`Hint ${Math.min(hints + 1, all.length)} of ${all.length}: ${all[Math.min(hints, all.length - 1)]}`);
  hints++;
};
$("stop").onclick = () => stop("Stopped.");
$("form").onsubmit = (event) => {
  event.preventDefault();
  if (!worker) {
    worker = new Worker("worker.js");
    worker.onmessage = answer;
    worker.onerror = (error) => stop(`It did not work: ${error.message}`);
  }
  running(true);
  say("Checking ...");
  worker.postMessage({ id: chosen().id, source: $("source").value });
};
show();
