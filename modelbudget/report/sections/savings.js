// Draws the changes of act 5 for the model that a reader chooses, as `savings.py` does for the first.
"use strict";

story.entries["what-to-do"] = (section, { models, devices }) => {
  const { bytes, grouped, percent, made, drawn } = story;
  const [title, finding, table, whose] = ["h2 a", ".finding", "table", ".whose"].map((one) => section.querySelector(one));
  const select = section.querySelector("select");
  const first = { title: title.textContent, finding: [...finding.childNodes], rows: [...table.rows], whose: [...whose.childNodes] };
  const sum = (parts) => parts.reduce((all, part) => all + part[2], 0);
  const lines = (most) => devices.map(([, n]) => drawn("line", { x1: `${(100 * n) / most}%`, x2: `${(100 * n) / most}%`, y1: 0, y2: "100%" }));
  const cell = (...children) => made("td", {}, ...children);
  const number = (...children) => made("td", { className: "number" }, ...children);

  function saved(share) {
    if (share === 0) return "";
    return `${share > 0 ? "−" : "+"}${percent(Math.abs(share))}`;
  }

  function row([label, address, parts], whole, most) {
    const peak = sum(parts);
    const text = made(address ? "a" : "span", { textContent: bytes(peak), title: `${grouped(peak)} bytes`, ...(address && { href: address }) });
    let x = 0;
    const pieces = parts.map(([group, swatch, n]) => {
      const place = { class: swatch, x: `${x}%`, width: `${(100 * n) / most}%`, height: "100%" };
      x += (100 * n) / most;
      return drawn("rect", place, drawn("title", {}, `${group}: ${grouped(n)} bytes`));
    });
    return made("tr", {}, made("th", { scope: "row", textContent: label }), number(text), number(saved(1 - peak / whole)), cell(drawn("svg", { "aria-hidden": true }, ...pieces, ...lines(most))));
  }

  function names(most) {
    const texts = devices.map(([name, n]) => drawn("text", { x: `${(100 * n) / most}%`, y: 12, "text-anchor": n > most / 2 ? "end" : "start" }, most > 4 * n && n !== devices.at(-1)[1] ? "" : `${name}, ${bytes(n)}`));
    return made("tr", { className: "devices" }, cell(), cell(), cell(), cell(drawn("svg", { "aria-hidden": true }, ...texts)));
  }

  function show(model) {
    title.textContent = model.title;
    finding.replaceChildren(...[model.finding].flat());
    whose.replaceChildren(...[model.whose].flat());
    const most = model.bars && Math.max(devices.at(-1)[1], ...model.bars.map(([, , parts]) => sum(parts)));
    table.tBodies[0].replaceChildren(...(model.rows ?? [...model.bars.map((bar) => row(bar, sum(model.bars[0][2]), most)), names(most)]));
  }

  select.addEventListener("change", () => show(select.selectedIndex === 0 ? first : models[select.selectedIndex - 1]));
};
