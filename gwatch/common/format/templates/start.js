// Opens each run when it is first shown.

setTheme(dark.matches ? "dark" : "light");
async function open(root) {
  if (root.dataset.open || !$(root, ".time")) return;
  root.dataset.open = "1";
  const state = $(root, ".state");
  if (typeof DecompressionStream === "undefined") {
    state.textContent = "This browser is too old to draw the timeline; the tables below are complete.";
    return;
  }
  const meta = JSON.parse($(root, ".meta").textContent);
  const data = await unpack(meta, $(root, ".blob").textContent);
  views.push(new Panel(root, meta, data));
  root.dataset.ready = "1";
}
for (const pill of document.querySelectorAll(".pills button")) {
  pill.addEventListener("click", () => {
    for (const other of pill.parentElement.children) {
      const chosen = other === pill, run = document.getElementById("run-" + other.dataset.run);
      other.setAttribute("aria-selected", String(chosen));
      run.hidden = !chosen;
      if (chosen) open(run);
    }
    for (const view of views) view.draw();
  });
}
for (const root of document.querySelectorAll(".run:not([hidden])")) open(root);
