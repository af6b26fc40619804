// Opens the section that a link leads to, and marks the current section in the contents.
"use strict";

{
  // On a narrow screen the cells of a row stand below each other, each with the head of its column.
  const narrow = matchMedia("(max-width: 40rem)");
  function label() {
    if (!narrow.matches) return;
    narrow.removeEventListener("change", label);
    for (const table of document.querySelectorAll(":is(.components, .captioned, .fits) table")) {
      const heads = [...(table.tHead?.rows[0]?.cells ?? [])].map((cell) => cell.textContent);
      for (const cell of table.querySelectorAll("td.number")) cell.dataset.label ??= heads[cell.cellIndex];
    }
    document.documentElement.classList.add("labelled");
  }
  narrow.addEventListener("change", label);
  label();

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

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [placeOf(link.hash), link]));
  const sections = [...links.keys()];
  const inside = new Set(); // what is at a third of the window: a section, perhaps of the appendix
  let current;

  // Only the contents scroll: the page must not.
  function follow(link) {
    const nav = link.closest("nav");
    const [inner, outer] = [link.getBoundingClientRect(), nav.getBoundingClientRect()];
    if (inner.top < outer.top || inner.bottom > outer.bottom) nav.scrollTop += inner.top - outer.top - outer.height / 2;
  }

  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) inside[isIntersecting ? "add" : "delete"](target);
    const last = sections.findLast((one) => inside.has(one)) ?? current; // between two, what was there
    if (last === current) return;
    links.get(current)?.removeAttribute("aria-current");
    links.get(last).setAttribute("aria-current", "true");
    follow(links.get(last));
    current = last;
  }, { rootMargin: "-33% 0px -67%" });
  sections.forEach((section) => observer.observe(section));
}
