// The full table of each sweep: filter, sort, save as CSV. Built when a reader opens it.
"use strict";

{
  const MORE = 100; // rows drawn at once
  const SAME = "=";
  const blueprint = document.getElementById("all-numbers");
  const tables = new Map();
  let all;
  const tableOf = (name) => {
    all ??= unpack("tables");
    if (!tables.has(name)) tables.set(name, all.then((found) => whole(found[name])));
    return tables.get(name);
  };

  // -- The table of the file. Numbers stay text, since some have more digits than a double.

  function whole({ points, order, of, rows, columns, numbers, components, peaks, kinds }) {
    const formulas = new Map(kinds.flatMap((kind) => kind.points.map((point) => [point, kind.formulas])));
    const found = of.map((place, i) => {
      const row = Object.fromEntries(columns.map((name) => [name, rows[name][i]]));
      if (row.predicted === SAME) row.predicted = String(BigInt(row.each) * BigInt(row.instances));
      if (row.measured === SAME) row.measured = row.predicted;
      for (const name of order) row[name] = points[name][place];
      return row;
    });
    const axes = order.filter((name) => name !== "point" && name !== "label");
    return { rows: found, columns: [...order, ...columns], axes, numbers, components, peaks, formulas };
  }

  // Text that a spreadsheet would run as a formula gets an apostrophe, as in the files.
  const safe = (text) => (/^[=+\-@＝＋－＠\t\r\n]/.test(text) ? `'${text}` : text);
  const quoted = (text) => `"${safe(text).replaceAll('"', '""')}"`;
  const written = (value, isNumber) => (value === null ? "" : isNumber ? String(value) : quoted(String(value)));
  const csv = (rows, columns, numbers) => {
    const lines = rows.map((row) => columns.map((name) => written(row[name], numbers.includes(name))));
    return [columns.map(quoted), ...lines].map((line) => `${line.join(",")}\n`).join("");
  };

  function save(text, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  // -- The selection: one quantity, with each component, one component, or their total.

  const big = (text) => (text === null ? null : BigInt(text));
  const SIDES = ["predicted", "measured", "difference"];
  const NUMBERS = [...SIDES, "reference"];

  function totals(rows, isPeak) {
    return [...Map.groupBy(rows, (row) => row.point).values()].map((parts) => {
      const one = { ...parts[0], component: isPeak ? "largest" : "all" };
      for (const side of SIDES) one[side] = total(parts.map((row) => big(row[side])), isPeak);
      if (isPeak && one.difference !== null) one.difference = (one.measured ?? 0n) - (one.predicted ?? 0n);
      one.agrees = parts.every((row) => row.agrees !== null) ? parts.every((row) => row.agrees) : null;
      one.reference = isPeak ? total(parts.map((row) => big(row.reference)), isPeak) : big(one.class_total);
      one.reference_agrees = parts.every((row) => row.reference_agrees !== null) ? parts.every((row) => row.reference_agrees) : null;
      return one;
    });
  }

  function total(values, isPeak) {
    const there = values.filter((value) => value !== null);
    if (there.length === 0) return null;
    return there.reduce((a, b) => (isPeak ? (a > b ? a : b) : a + b));
  }

  function inOrder(rows, components) {
    const rank = new Map(components.map((name, i) => [name, i]));
    return rows.toSorted((a, b) => Number(a.point) - Number(b.point) || rank.get(a.component) - rank.get(b.component));
  }

  const asNumbers = (rows) =>
    rows.map((row) => ({ ...row, ...Object.fromEntries(NUMBERS.map((side) => [side, big(row[side])])) }));

  const VERDICTS = ["agrees", "reference_agrees"];
  const text = (agrees) => (agrees === null ? "–" : agrees ? "yes" : "no");
  const differs = (row) => VERDICTS.some((name) => row[name] === false);
  const verdict = (row) => (differs(row) ? "no" : text(row.agrees));

  function selected({ rows, components, peaks }, { quantity, component, shown, wanted }) {
    const of = rows.filter((row) => row.quantity === quantity && (["", "*"].includes(component) || row.component === component));
    const found = component === "" ? totals(of, peaks.includes(quantity)) : asNumbers(inOrder(of, components));
    const phrases = wanted.toLowerCase().split(",").map((phrase) => phrase.trim());
    return found.filter((row) => {
      if (shown !== "" && verdict(row) !== shown) return false;
      const text = `${row.label} ${row.component} ${row.method} ${row.measured}`.toLowerCase();
      return phrases.every((phrase) => text.includes(phrase));
    });
  }

  function sorted(rows, { column, order }) {
    if (order === "none") return rows;
    const sign = order === "ascending" ? 1 : -1;
    return rows.toSorted(({ [column]: x }, { [column]: y }) => {
      if (x === null || y === null) return (x === null) - (y === null); // missing values last
      return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : Number(x > y) - Number(x < y));
    });
  }

  // -- Output.

  const grouped = (value) => (value === null ? "–" : value.toLocaleString("en-US").replace("-", "−"));
  const plain = (value) => (value === null ? "–" : String(value));
  const isNumber = (name, row) => NUMBERS.includes(name) || typeof row[name] === "number";
  const named = (row, axes) => axes.length === 0 || axes.some((name) => row[name] === null);

  function show(details, table) {
    const part = (selector) => details.querySelector(selector);
    const form = part("form");
    const state = { column: "point", order: "none", drawn: MORE };
    let rows, columns, prediction;
    const fill = (select, options) => select.append(...options.map(([value, text]) => new Option(text, value)));
    const measured = [...new Set(table.rows.map((row) => row.quantity))].filter((name) => name !== null).sort();
    const first = measured.includes("parameters") ? ["parameters"] : [];
    fill(form.quantity, [...new Set([...first, ...measured])].map((name) => [name, name]));
    fill(form.component, [["", "total"], ["*", "each"], ...table.components.map((name) => [name, name])]);

    function cells(row, columns) {
      return columns.map((name) => {
        const made = document.createElement(name === "point" ? "th" : "td");
        if (name === "point") {
          made.scope = "row";
          made.title = row.label;
          made.append(named(row, table.axes) ? row.label : Number(row.point));
        } else if (name === "formula") made.innerHTML = table.formulas.get(row.point)?.[row.quantity]?.[row.component] ?? "–";
        else if (VERDICTS.includes(name)) made.textContent = text(row[name]);
        else made.textContent = isNumber(name, row) ? grouped(row[name]) : plain(row[name]);
        if (isNumber(name, row)) made.className = "number";
        if (differs(row)) made.classList.add("red");
        return made;
      });
    }

    function line(row, columns) {
      const made = document.createElement("tr");
      made.append(...cells(row, columns));
      return made;
    }

    function heads(columns) {
      return columns.map((name) => {
        const made = document.createElement("th");
        const button = document.createElement("button");
        made.scope = "col";
        made.classList.toggle("number", rows.length > 0 && isNumber(name, rows[0]));
        made.ariaSort = name === state.column ? state.order : "none";
        button.type = "button";
        button.textContent = { predicted: prediction, reference: "class", reference_agrees: "class agrees" }[name] ?? name;
        button.addEventListener("click", () => {
          const next = { none: "ascending", ascending: "descending", descending: "none" };
          state.order = next[made.ariaSort];
          state.column = name;
          draw();
          part(`thead th:nth-child(${columns.indexOf(name) + 1}) button`).focus();
        });
        made.append(button);
        return made;
      });
    }

    function draw() {
      const selection = Object.fromEntries(new FormData(form));
      const parts = selection.component === "" ? [] : ["component", "formula"];
      rows = sorted(selected(table, selection), state);
      const ofClass = rows.some((row) => row.reference !== null) ? ["reference", "reference_agrees"] : [];
      columns = ["point", ...table.axes, ...parts, ...SIDES, "agrees", ...ofClass, "method"];
      prediction = rows.some((row) => row.prediction === "simulated") ? "simulated" : "predicted";
      const seen = rows.slice(0, state.drawn);
      part("caption").textContent = `${selection.quantity}, ${prediction} and measured`;
      part("thead tr").replaceChildren(...heads(columns));
      part("tbody").replaceChildren(...seen.map((row) => line(row, columns)));
      part("output").textContent = `${grouped(rows.length)} ${rows.length === 1 ? "row" : "rows"}`;
      part("[data-more]").hidden = seen.length === rows.length;
      part("[data-more]").textContent = `${Math.min(MORE, rows.length - seen.length)} more`;
    }

    form.addEventListener("input", () => {
      state.drawn = MORE;
      draw();
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    part("[data-more]").addEventListener("click", () => {
      state.drawn += MORE;
      draw();
    });
    part("[data-save]").addEventListener("click", () => {
      save(csv(rows, ["point", "label", ...columns.slice(1).filter((name) => name !== "formula"), "quantity"], table.numbers), `${details.dataset.numbers}-${form.quantity.value}.csv`);
    });
    part(".scroll").ariaLabel = `All numbers of ${details.dataset.title}`;
    draw();
  }

  for (const details of document.querySelectorAll("[data-numbers]")) {
    details.hidden = false;
    const build = async () => {
      const table = await tableOf(details.dataset.numbers);
      details.append(blueprint.content.cloneNode(true));
      show(details, table);
    };
    details.addEventListener("toggle", build, { once: true });
  }
  for (const button of document.querySelectorAll("[data-table]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const { rows, columns, numbers } = await tableOf(button.dataset.table);
      save(csv(rows, columns, numbers), `${button.dataset.table}.csv`);
    });
  }
}
