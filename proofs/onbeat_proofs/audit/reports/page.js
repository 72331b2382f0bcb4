"use strict";
for (const button of document.querySelectorAll(".filters button")) {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const row of document.querySelectorAll(`tr[data-verdict="${button.dataset.verdict}"]`)) row.hidden = !shown;
  });
}
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
for (const steps of document.querySelectorAll(".timeline .steps")) {
  const mark = steps.querySelector(".violating");
  if (mark) steps.scrollLeft = mark.x.baseVal.value - steps.clientWidth / 2;
}
