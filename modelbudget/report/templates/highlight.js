// Marks one model in every chart and table: the one pointed at, or else the one that is chosen.
"use strict";

const highlight = (() => {
  const form = document.querySelector("#highlight");
  const input = form.querySelector("input");
  const list = form.querySelector("#models");
  const models = [...new Set(form.dataset.models.split("|"))].sort((a, b) => b.length - a.length);
  const ENDS = [", ", ": ", " ("]; // what follows the name of a model in a label
  const ROWS = ".models th[scope=row]";
  const known = new Map();
  const charts = new WeakMap(); // drawing → model → its marks
  let chosen, shown;

  function modelOf(label) {
    if (!known.has(label)) known.set(label, models.find((one) => label === one || ENDS.some((end) => label.startsWith(one + end))));
    return known.get(label);
  }

  // Vega keeps the mark of each element, and its row of the data.
  const ofMark = (element) => {
    const label = element.__data__?.datum?.label;
    return label && modelOf(label);
  };
  const ofRow = (element) => modelOf(element.firstChild.textContent.trim());

  function marksIn(drawing) {
    if (!charts.has(drawing)) charts.set(drawing, Map.groupBy(drawing.querySelectorAll("path, text"), ofMark));
    return charts.get(drawing);
  }

  function mark(drawing, model) {
    drawing.querySelectorAll(".found").forEach((one) => one.classList.remove("found"));
    const found = (model && marksIn(drawing).get(model)) ?? [];
    drawing.classList.toggle("marked", found.length > 0);
    found.forEach((one) => one.classList.add("found"));
  }

  function show(model) {
    if (model === shown) return;
    shown = model;
    document.querySelectorAll(".chart svg").forEach((one) => mark(one, model));
    document.querySelectorAll(ROWS).forEach((one) => one.classList.toggle("found", Boolean(model) && ofRow(one) === model));
    document.dispatchEvent(new CustomEvent("highlight", { detail: model }));
  }

  function choose(text) {
    chosen = models.find((one) => one.toLowerCase() === text.trim().toLowerCase());
    show(chosen);
  }

  document.addEventListener("pointerover", ({ target }) => {
    const row = target.closest(ROWS);
    show((row ? ofRow(row) : ofMark(target)) ?? chosen);
  });
  input.addEventListener("input", () => choose(input.value));
  input.addEventListener("focus", () => {
    list.append(...models.toSorted((a, b) => a.localeCompare(b, "en", { numeric: true })).map((one) => new Option(one)));
  }, { once: true });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;

  return {
    show: (model) => show(model ?? chosen),
    // A chart that was drawn just now.
    drawn: (drawing) => mark(drawing, shown),
  };
})();
