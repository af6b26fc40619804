// What if: controls in, parameters out. Every number is computed by one Vega dataflow.
"use strict";

(async () => {
  const data = await unpack("explorer");
  const root = document.getElementById("explorer");
  const HOME = "#what-if";
  const groups = new Map(data.groups);
  const SIDES = ["A", "B"];
  const all = (selector) => [...root.querySelectorAll(selector)];

  // -- The dataflow: sizes and words are its signals, formulas and rules its derived ones.

  const words = Object.keys(data.forms[0].words);
  const inputs = [...Object.keys(data.least), ...words];
  const derived = [
    ...data.expressions.map((update, i) => ({ name: `e${i}`, update })),
    ...data.rules.map((rule, i) => ({ name: `broken${i}`, update: rule.broken })),
  ];
  const given = inputs.map((name) => ({ name, value: words.includes(name) ? "" : 0 }));
  for (const [name, value] of Object.entries(data.still)) given.push({ name, value });
  const spec = { signals: [...given, ...derived] };
  const options = {
    mode: "vega",
    renderer: "none",
    ast: true, // Vega's interpreter: the page's policy forbids eval
    actions: false,
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  };
  const { view } = await vegaEmbed(document.createElement("div"), spec, options);

  // -- What is set: a model on each side, and what differs from it.

  const untied = { tied: 1 - (ownFields(data.start).tied ?? 0) };
  let chosen = {
    A: { model: data.start, dtype: "float32", changes: {} },
    B: { model: data.start, dtype: "float32", changes: untied },
  };

  function ownFields(model) {
    const fields = { ...data.defaults, ...data.models[model].fields };
    for (const name of data.switches) fields[name] = Number(fields[name]);
    return fields;
  }

  function change(side, name, value) {
    const { model, changes } = chosen[side];
    if (value === ownFields(model)[name]) delete changes[name];
    else changes[name] = value;
  }

  function exchange(side, word, choice) {
    const own = ownFields(chosen[side].model);
    change(side, word, choice);
    for (const [name, value] of Object.entries(data.free[choice])) {
      change(side, name, own[word] === choice ? own[name] : (own[value] ?? value));
    }
  }

  // -- In the address: #what-if?A=palm-540b&B=palm-540b&B.tied=0

  function written() {
    const settings = new URLSearchParams();
    for (const side of SIDES) {
      const { model, dtype, changes } = chosen[side];
      settings.set(side, model);
      settings.set(`${side}.dtype`, dtype);
      for (const [name, value] of Object.entries(changes)) settings.set(`${side}.${name}`, value);
    }
    return `${HOME}?${settings}`;
  }

  function read(address) {
    if (!address.startsWith(`${HOME}?`)) return false;
    const settings = new URLSearchParams(address.slice(HOME.length + 1));
    for (const side of SIDES) {
      const model = settings.get(side);
      if (!Object.hasOwn(data.models, model)) continue;
      const dtype = settings.get(`${side}.dtype`);
      chosen[side] = { model, dtype: data.dtypes.includes(dtype) ? dtype : "float32", changes: {} };
      for (const [key, value] of settings) {
        const name = key.slice(2);
        if (!key.startsWith(`${side}.`)) continue;
        if (Object.hasOwn(data.least, name)) change(side, name, whole(value));
        if (name === freeWord && Object.hasOwn(data.free, value)) change(side, name, value);
      }
    }
    return true;
  }

  const freeWord = root.querySelector("[data-word]").dataset.word;
  const whole = (text) => (/^\d+$/.test(text) ? Number(text) : NaN);

  // -- The answer of one side.

  function compute({ model, dtype, changes }) {
    const values = { ...ownFields(model), ...changes };
    const wrong = Object.keys(data.least).map((name) => mistake(name, values[name])).filter(Boolean);
    if (wrong.length > 0) return { values, reasons: wrong, broken: [], components: [] };
    for (const name of inputs) view.signal(name, values[name]);
    view.run();
    const broken = data.rules.filter((_, i) => view.signal(`broken${i}`));
    const reasons = broken.map(({ reason }) => reason.replace(/\{(\w+)(:,)?\}/g, (_, name, commas) => shown(name, values, commas)));
    const form = data.forms.find(({ words }) => Object.entries(words).every(([name, word]) => word === values[name]));
    const components = componentsOf(form);
    if (reasons.length > 0) return { values, reasons, broken, components };
    const ofRun = Object.entries(form.runs[dtype]).map(([quantity, [sum, holds]]) => [
      quantity,
      view.signal(holds) ? view.signal(sum) : null,
    ]);
    const [total, active] = [form.total, form.active].map((name) => view.signal(name));
    return { values, reasons, broken, components, total, active, ...Object.fromEntries(ofRun) };
  }

  function mistake(name, value) {
    const isSwitch = data.switches.includes(name);
    const legal = isSwitch ? value === 0 || value === 1 : Number.isSafeInteger(value) && value >= data.least[name];
    if (legal) return null;
    return `${name} needs ${isSwitch ? "0 or 1" : `a whole number from ${data.least[name]} to 2⁵³ − 1`}`;
  }

  function componentsOf(form) {
    return Object.entries(form.components).map(([name, [each, instances, product]]) => ({
      name,
      value: view.signal(product),
      present: view.signal(instances) > 0,
      fields: data.fields[each],
    }));
  }

  function shown(name, values, commas) {
    if (Number.isNaN(values[name])) return "?";
    if (commas) return values[name].toLocaleString("en-US");
    return String(data.switches.includes(name) ? Boolean(values[name]) : values[name]);
  }

  // -- What is seen.

  const exact = (value) => (Number.isSafeInteger(value) ? value.toLocaleString("en-US") : "past 2⁵³");

  function signed(value) {
    const sign = value > 0 ? "+" : value < 0 ? "−" : "";
    return sign + exact(Math.abs(value));
  }

  function short(bytes) {
    const units = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"];
    const power = Math.min(Math.floor(Math.log10(Math.max(bytes, 1)) / 3), 6);
    return `${Number((bytes / 1000 ** power).toPrecision(3))}\u00a0${units[power]}`;
  }

  function element(tag, words, classes = "") {
    const made = document.createElement(tag);
    made.textContent = words;
    made.className = classes;
    return made;
  }

  function showControls(side, { values, components, broken }) {
    const used = new Set(["batch", "length", ...components.filter((c) => c.present).flatMap((c) => c.fields)]);
    for (const rule of broken) rule.broken.match(/\w+/g).forEach((name) => used.add(name));
    const { model, dtype, changes } = chosen[side];
    const of = (kind) => root.querySelector(`[data-side="${side}"][${kind}]`);
    of("data-model").value = model;
    of("data-dtype").value = dtype;
    of("data-word").value = values[freeWord];
    for (const field of all(`[data-side="${side}"][data-field]`)) {
      const name = field.dataset.field;
      if (field.type === "checkbox") field.checked = values[name];
      else if (whole(field.value) !== values[name] && !Number.isNaN(values[name])) field.value = values[name];
      field.classList.toggle("changed", name in changes);
      if (components.length > 0) field.closest("td").classList.toggle("unused", !used.has(name));
    }
    for (const slider of all(`[data-side="${side}"][data-slides]`)) {
      const value = values[slider.dataset.slides];
      if (!Number.isNaN(value)) slider.value = placeOf(value);
      slider.setAttribute("aria-valuetext", exact(value));
    }
  }

  // A slider's places are four to the octave: 4096, 5120, 6144, 7168, 8192. Below 0 it is none.
  const valueAt = (place) => (place < 0 ? 0 : Math.round((4 + (place % 4)) * 2 ** (Math.floor(place / 4) - 2)));
  function placeOf(value) {
    if (value < 1) return -1;
    const octave = Math.floor(Math.log2(value));
    return 4 * octave + Math.floor((4 * value) / 2 ** octave) - 4;
  }

  function showAnswer(side, answer) {
    const place = root.querySelector(`[data-answer="${side}"]`);
    const { model, dtype, changes } = chosen[side];
    const names = Object.keys(changes).map((name) => `${name} = ${shown(name, answer.values)}`);
    place.replaceChildren(element("h3", `${side}: ${[data.models[model].label, ...names].join(", ")}`));
    if (answer.reasons.length > 0) {
      place.append(element("p", "Not possible:", "reason"), list(answer.reasons));
      return;
    }
    const { total, active, parameter_bytes: bytes } = answer;
    place.append(element("p", exact(total), "total"));
    const facts = [`parameters; ${exact(bytes)} bytes in ${dtype}${Number.isSafeInteger(bytes) ? `, ${short(bytes)}` : ""}`];
    if (active !== total) facts.push(`one token uses ${exact(active)}`);
    if (!Number.isSafeInteger(bytes)) facts.push("past 2⁵³ a browser rounds, so no digits are shown");
    place.append(element("p", facts.join("; ")), bar(answer.components, total));
  }

  function list(reasons) {
    const made = document.createElement("ul");
    made.className = "reason";
    made.append(...reasons.map((reason) => element("li", reason)));
    return made;
  }

  function bar(components, total) {
    const sums = new Map();
    for (const { name, value } of components) {
      const group = groups.get(name);
      sums.set(group, (sums.get(group) ?? 0) + value);
    }
    const made = element("div", "", "bar");
    made.setAttribute("aria-hidden", "true"); // the table below says it in numbers
    for (const [title, group] of data.order) {
      if (!sums.get(group)) continue;
      const piece = element("i", "", group);
      piece.style.width = `${(100 * sums.get(group)) / total}%`;
      piece.title = title;
      made.append(piece);
    }
    return made;
  }

  function showTable(answers) {
    const legal = SIDES.map((side) => answers[side].reasons.length === 0);
    const values = SIDES.map((side) => new Map(answers[side].components.map((c) => [c.name, c.value])));
    const rows = [];
    for (const name of groups.keys()) {
      const pair = values.map((of, i) => (legal[i] ? (of.get(name) ?? 0) : null));
      if (pair.some((value) => value > 0)) rows.push(row(nameOf(name), pair));
    }
    const sum = (words, quantity) => {
      const made = row(words, SIDES.map((side) => answers[side][quantity] ?? null));
      for (const cell of made.cells) cell.classList.add("whole");
      rows.push(made);
    };
    sum("all parameters", "total");
    if (SIDES.some((side) => answers[side].active !== answers[side].total)) sum("used by one token", "active");
    for (const [quantity, title] of data.quantities) sum(title, quantity);
    root.querySelector("#explorer-table tbody").replaceChildren(...rows);
  }

  function row(head, [a, b]) {
    const made = document.createElement("tr");
    made.insertCell().append(head);
    const written = (value) => (value === null ? "–" : exact(value));
    const difference = [a, b].every(Number.isSafeInteger) ? signed(b - a) : "–";
    const texts = { A: written(a), B: written(b), "B − A": difference };
    for (const [label, text] of Object.entries(texts)) {
      const cell = made.insertCell();
      cell.className = "number";
      cell.dataset.label = label;
      cell.textContent = text;
    }
    return made;
  }

  function nameOf(component) {
    const made = element("span", "", "name");
    made.append(element("i", "", `swatch ${groups.get(component)}`), element("code", component));
    return made;
  }

  function show() {
    const answers = Object.fromEntries(SIDES.map((side) => [side, compute(chosen[side])]));
    for (const side of SIDES) {
      showControls(side, answers[side]);
      showAnswer(side, answers[side]);
    }
    for (const line of all("[data-row]")) {
      line.hidden = [...line.querySelectorAll("td")].every((cell) => cell.classList.contains("unused"));
    }
    showTable(answers);
    root.querySelector("#explorer-link").href = written();
  }

  // -- What the reader does.

  root.addEventListener("input", ({ target }) => {
    const { side, field, slides, word, model, dtype } = target.dataset;
    if (field) change(side, field, target.type === "checkbox" ? Number(target.checked) : whole(target.value));
    else if (slides) change(side, slides, valueAt(Number(target.value)));
    else if (word) exchange(side, word, target.value);
    else if (model !== undefined) chosen[side] = { ...chosen[side], model: target.value, changes: {} };
    else if (dtype !== undefined) chosen[side].dtype = target.value;
    show();
    history.replaceState(null, "", written());
  });
  root.querySelector("#explorer-copy").addEventListener("click", () => {
    chosen.B = structuredClone(chosen.A);
    show();
    history.replaceState(null, "", written());
  });

  function follow() {
    if (read(location.hash)) document.querySelector(HOME).scrollIntoView();
    show();
  }
  window.addEventListener("hashchange", follow);
  root.hidden = false;
  follow();
})();
