// A file of the learner's machine goes into the text field; a page with news loads anew, unless somebody types.
"use strict";
for (const input of document.querySelectorAll("input[data-into]")) {
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (file && file.size <= 400000) document.getElementById(input.dataset.into).value = await file.text();
    else if (file) input.setCustomValidity("The file is too large.");
  });
}
let typed = false, before = document.body.dataset.watch;
document.addEventListener("input", (event) => { typed ||= event.target.matches("textarea, [type=checkbox]"); });
document.addEventListener("change", (event) => { typed ||= event.target.matches("[type=file]"); });
async function look() {
  try {
    const answer = await fetch("/state");
    if (answer.ok) {
      const { state } = await answer.json();
      if (state !== before && !typed) location.reload();
      else if (state !== before) {
        const told = document.getElementById("verdict");
        if (told) {
          const page = new DOMParser().parseFromString(await (await fetch(location.pathname)).text(), "text/html");
          told.replaceWith(document.adoptNode(page.getElementById("verdict")));
          for (const button of document.querySelectorAll("button.main")) button.disabled = page.querySelector("button.main").disabled;
        } else if (location.pathname === "/guess") location.reload();
      }
      before = state;
    }
  } catch { /* the hub is away: look again */ }
  setTimeout(look, 1500);
}
if ("watch" in document.body.dataset) look();
