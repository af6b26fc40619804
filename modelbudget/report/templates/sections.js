// Opens the section that a link leads to.
"use strict";

{
  // On a narrow screen the cells of a row stand below each other, each with the head of its column.
  for (const table of document.querySelectorAll(":is(.components, .captioned, .fits) table")) {
    const heads = [...(table.tHead?.rows[0]?.cells ?? [])].map((cell) => cell.textContent);
    for (const cell of table.querySelectorAll("td.number")) cell.dataset.label = heads[cell.cellIndex];
  }

  const placeOf = (hash) => document.getElementById(decodeURIComponent(hash.slice(1).split("?")[0]));

  // A term shows its definition where it stands: that of the glossary, to which it links.
  for (const term of document.querySelectorAll("a.term")) {
    term.dataset.definition = `${term.textContent}: ${placeOf(term.hash).querySelector("dd").textContent}`;
  }

  async function land() {
    const target = location.hash.length > 1 ? placeOf(location.hash) : null;
    if (target === null) return;
    for (let one = target.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
    const own = target.querySelector(":scope > .fold:first-child");
    if (own) own.open = true;
    target.scrollIntoView({ behavior: "instant" });
    await charts.settle(target);
    target.scrollIntoView({ behavior: "instant" });
  }

  window.addEventListener("hashchange", land);
  window.addEventListener("load", land);
  document.addEventListener("click", ({ target }) => {
    const link = target.closest?.("a[href^='#']");
    if (link && link.hash === location.hash) land();
    const summary = target.closest?.("section > .fold > summary");
    if (summary && !summary.parentElement.open) history.replaceState(null, "", `#${summary.closest("section").id}`);
  });
}
