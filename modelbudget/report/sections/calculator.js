// The calculator: controls in, numbers out. Every number is a node of the graph of formulas.

(async () => {
  const root = document.getElementById("calculator");
  root.hidden = false; // at once: what is below must not move
  await story.near(root); // a page that opens elsewhere does not wait for it
  const pause = () => new Promise((done) => setTimeout(done)); // no task that blocks a phone
  const data = await unpack("calculator");
  await pause();
  const nodes = new Uint8Array(await unpacked("nodes").arrayBuffer());
  await pause();

  // Budgets as packing.py writes them.
  const { rows: budgets, components: lists } = data.budgets;
  const budgetNodes = budgets.map(([index, total, ...nodes]) => [total, ...nodes.map((node, i) => [lists[index][i], node])]);
  const forms = rowsOf(data.forms);
  await pause();
  const HOME = "#what-if";
  const groups = new Map(data.groups);
  const choices = new Map(data.choices); // of categorical run settings
  const choice = (name, text) => choices.get(name)?.find((one) => String(one) === text);
  const [DEVICES] = data.meshes; // of data parallelism
  const KERNEL = "attention_kernel";
  const STATES = "states"; // bytes of parameters, gradients and optimizer
  const ALONE = Object.fromEntries(data.of_several.map(([name, , value]) => [name, value]));
  const PASTED = "config.json";
  const WITH = "with."; // before names of what is compared with, in an address
  const translate = configReader(data);
  const all = (selector) => [...root.querySelectorAll(selector)];
  const asked = Object.fromEntries(all("select[name]").map((select) => [select.name, select]));
  const modelSelect = root.querySelector("[data-model]");
  const LINK = root.querySelector("#calculator-link").textContent;

  const evaluate = evaluator(data.graph, nodes);
  await pause();
  const broken = (values) => FUNCTIONS[data.rules.mistakes](values).map((reason, i) => ({ fields: data.rules.fields[i], reason })).filter(({ reason }) => reason);

  // All settings of a run. One device has nothing to share; a choice may bring other settings.
  function settingsOf(values) {
    const found = { ...data.constants, ...values };
    for (const [name, devices, alone] of data.of_several) if (values[devices] === 1) found[name] = alone;
    for (const [name, brought] of Object.entries(data.brought)) Object.assign(found, brought[found[name]]);
    return found;
  }
  const isAlone = (name, values) => data.of_several.some(([one, devices]) => one === name && values[devices] === 1);
  const devicesOf = (values) => data.meshes.map((name) => values[name]).reduce((a, b) => a * b);

  // -- The state: a model, its changed fields and settings, and its default kernel.

  // NaN for a size without a default, which a file may lack.
  const defaults = { ...Object.fromEntries(Object.keys(data.minimum).map((name) => [name, NaN])), ...data.defaults };
  const stateOf = (model, changes) => ({ model, changes, kernel: data.run[KERNEL] });
  let chosen = stateOf(data.start, { length: data.start_length });
  let kept = null; // the state with which the chosen one is compared

  // The kernel, until a reader sets it: the first one with which torch runs the model on a GPU.
  function settleKernel(state) {
    const values = valuesOf(state);
    if (KERNEL in state.changes || Object.keys(data.minimum).some((name) => mistake(name, values[name]))) return;
    const runs = ([kernel, mistakes]) => {
      const settings = settingsOf(valuesOf({ ...state, kernel }));
      return !broken(settings).some(({ fields }) => fields.includes(KERNEL)) && !FUNCTIONS[mistakes](settings).some(Boolean);
    };
    [state.kernel] = data.kernels.find(runs) ?? data.kernels.at(-1);
  }

  let isRefused = false; // what is pasted is no model, so that there is no answer

  function ownFields(model) {
    return { ...defaults, ...data.models[model].fields };
  }

  // All values of a state. A field that follows others does so until it is changed itself.
  function valuesOf({ model, kernel, changes }) {
    const values = { ...ownFields(model), ...data.run, [KERNEL]: kernel, ...changes };
    const moved = new Set(Object.keys(changes));
    for (const [name, update, others] of data.models[model].follow) {
      if (name in changes || !others.some((other) => moved.has(other))) continue;
      values[name] = FUNCTIONS[update](values);
      moved.add(name);
    }
    return values;
  }

  // A setting stays the reader's; a field that has its value without him is not changed.
  function change(name, value) {
    const { [name]: _, ...changes } = chosen.changes;
    if (choices.has(name) || value !== valuesOf({ ...chosen, changes })[name]) changes[name] = value;
    chosen.changes = changes;
  }

  // -- The state in the address: #what-if?model=palm-540b&tied=0&device=H100
  // A pasted file is its class and the fields that it sets: file=LlamaForCausalLM&file.n_layer=32
  // What it is compared with is written in the same way: with.model=gpt-2-124m

  function written() {
    const settings = new URLSearchParams({ model: chosen.model });
    if ([chosen, kept].some((state) => state?.model === PASTED)) {
      const { fields, follow } = data.models[PASTED];
      const follows = new Set(follow.map(([name]) => name));
      settings.set("file", data.kinds[PASTED]);
      for (const [name, value] of Object.entries(fields)) {
        if (!follows.has(name) && (derivedFields.has(name) || value !== data.defaults[name])) settings.set(`file.${name}`, value);
      }
    }
    write(settings, chosen, "");
    if (kept) write(settings, kept, WITH);
    for (const [name, { value }] of Object.entries(asked)) settings.set(name, value);
    return `${HOME}?${settings}`;
  }

  function write(settings, state, prefix) {
    const values = valuesOf(state);
    settings.set(`${prefix}model`, state.model);
    for (const name of new Set([...choices.keys(), ...Object.keys(state.changes)])) {
      if (!isAlone(name, values) && !(name in data.minimum && mistake(name, values[name]))) settings.set(`${prefix}${name}`, values[name]);
    }
  }

  function read(address) {
    if (!address.startsWith(`${HOME}?`)) return false;
    isRefused = false;
    const settings = new URLSearchParams(address.slice(HOME.length + 1));
    readFile(settings);
    for (const [name, select] of Object.entries(asked)) if (hasOption(select, settings.get(name))) select.value = settings.get(name);
    kept = stateIn(settings, WITH);
    chosen = stateIn(settings, "") ?? chosen;
    for (const [name, value] of Object.entries(chosen.changes)) change(name, value); // drops what is none
    return true;
  }

  function stateIn(settings, prefix) {
    const model = settings.get(`${prefix}model`);
    if (!Object.hasOwn(data.models, model)) return null;
    const changes = {};
    for (const [key, value] of settings) {
      const name = key.slice(prefix.length);
      if (prefix + name !== key) continue;
      if (Object.hasOwn(data.minimum, name)) changes[name] = numberIn(value);
      if (choice(name, value) !== undefined) changes[name] = choice(name, value);
    }
    return stateOf(model, changes);
  }

  // The model of a pasted file. What it leaves to others follows them.
  function readFile(settings) {
    const kind = settings.get("file");
    if (!Object.hasOwn(data.config.classes, kind)) return;
    const fields = {};
    for (const [key, value] of settings) {
      const name = key.replace(/^file\./, "");
      if (name === key) continue;
      if (Object.hasOwn(data.minimum, name)) fields[name] = numberIn(value);
      else if (typeof data.defaults[name] === "string") fields[name] = value;
    }
    const follow = data.config.derived.filter(([name]) => !(name in fields));
    for (const [name, update] of follow) fields[name] = FUNCTIONS[update]({ ...defaults, ...fields });
    addFile(kind, fields, follow);
  }

  function addFile(kind, fields, follow) {
    data.models[PASTED] = { label: `config.json (${kind})`, fields, follow };
    data.kinds[PASTED] = kind;
    if (!hasOption(modelSelect, PASTED)) modelSelect.prepend(new Option("your config.json", PASTED));
  }

  const derivedFields = new Set(data.config.derived.map(([name]) => name));
  const hasOption = (select, wanted) => [...select.options].some(({ value }) => value === wanted);
  const numberIn = (text) => (/^\d+$/.test(text) ? Number(text) : NaN);

  // -- The result of a state: what is wrong, or functions that compute a quantity when it is shown.

  const IMPOSSIBLE = { broken: [], components: () => [], active() {}, whole() {}, parts() {}, ofClass() {} };

  function compute(state) {
    const { model, changes } = state;
    const values = valuesOf(state);
    const mistakes = mistakesOf(model, values, changes);
    if (mistakes.length > 0) return { ...IMPOSSIBLE, values, reasons: mistakes };
    const settings = settingsOf(values);
    const rules = broken(settings);
    const reasons = rules.map(({ reason }) => reason);
    const form = forms.find(({ categories }) => Object.entries(categories).every(([name, value]) => value === values[name]));
    if (!form) {
      const named = Object.keys(forms[0].categories).map((name) => `${name}: ${values[name]}`);
      reasons.push(`the page has no formulas for ${named.join(", ")}; modelbudget config.json predicts parameters, caches, FLOPs and peaks`);
      return { ...IMPOSSIBLE, values, reasons, broken: rules };
    }
    const value = evaluate(settings);
    const components = () => Object.entries(form.components).map(([name, [instances, product, fields]]) => (
      { name, value: value(product), present: value(instances) > 0, fields }
    ));
    if (reasons.length > 0) return { ...IMPOSSIBLE, values, reasons, broken: rules, components };
    const kind = data.kinds[model];
    const classRuns = data.only[kind]?.every((holds) => FUNCTIONS[holds](settings)) ? form.classes[kind] : undefined;
    // The nodes of a quantity and of its components. One device does the inference, however many train.
    const budget = (runs, quantity) => {
      if (quantity === "parameters") return [form.total, ...Object.entries(form.components).map(([name, [, product]]) => [name, product])];
      const run = runs?.names.indexOf(keyOf(data.of_inference.includes(quantity) ? { ...settings, ...ALONE } : settings));
      const [places, holds] = runs?.columns[quantity] ?? [[]];
      return Number.isInteger(places[run]) && value(holds[run]) ? budgetNodes[places[run]] : undefined;
    };
    const whole = (runs) => (quantity) => {
      const nodes = budget(runs, quantity);
      return nodes && value(nodes[0]);
    };
    return {
      values, reasons, components, broken: rules,
      whole: whole(form.runs), // of our modules; undefined without a formula
      ofClass: whole(classRuns),
      parts: (quantity) => budget(form.runs, quantity)?.slice(1).map(([name, node]) => [name, value(node)]),
      active: () => value(form.active),
    };
  }

  const keyOf = (settings) => [...choices.keys()].map((name) => settings[name]).join(" ");

  // What is wrong with sizes, but for those that follow a wrong one.
  function mistakesOf(model, values, changes) {
    const found = new Map(Object.keys(data.minimum).map((name) => [name, mistake(name, values[name])]));
    const follow = data.models[model].follow.filter(([name]) => !(name in changes));
    const wrong = new Set([...found.keys()].filter((name) => found.get(name)));
    for (const [name, , others] of follow) if (others.some((other) => wrong.has(other))) found.delete(name);
    return [...found.values()].filter(Boolean);
  }

  function mistake(name, value) {
    const isSwitch = data.switches.includes(name);
    const legal = isSwitch ? value === 0 || value === 1 : Number.isSafeInteger(value) && value >= data.minimum[name];
    if (legal) return null;
    if (Number.isFinite(value) && !Number.isInteger(value)) return `${name} = ${Number(value.toPrecision(6))} is not a whole number; choose sizes that divide, or set ${name}`;
    return `${name} needs ${isSwitch ? "0 or 1" : `a whole number from ${data.minimum[name]} to 2⁵³ − 1`}`;
  }

  function shown(name, values) {
    if (Number.isNaN(values[name])) return "?";
    return String(data.switches.includes(name) ? Boolean(values[name]) : values[name]);
  }

  // -- Output.

  const { bytes: short } = story;
  const exact = (value) => (Number.isNaN(value) ? "?" : Number.isSafeInteger(value) ? story.grouped(value) : "over 2⁵³");

  const element = (tag, textContent, className = "", others = {}) => story.made(tag, { textContent, className, ...others });

  function showControls({ values, components, broken }) {
    const parts = components();
    const used = new Set([...choices.keys(), ...data.of_run, ...parts.filter((part) => part.present).flatMap((part) => part.fields)]);
    for (const rule of broken) rule.fields.forEach((name) => used.add(name));
    for (const [name] of data.of_several) if (isAlone(name, values)) used.delete(name);
    modelSelect.value = chosen.model;
    for (const control of all("[data-field]")) {
      const { type, dataset: { field: name } } = control;
      const value = values[name];
      if (type === "checkbox") control.checked = value;
      else if (type !== "number" || !Object.is(numberIn(control.value), value)) control.value = Number.isNaN(value) ? "" : value;
      control.classList.toggle("changed", name in chosen.changes && !choices.has(name));
      if (parts.length > 0) control.closest("tr")?.classList.toggle("unused", !used.has(name));
    }
  }

  function titleOf({ model, changes }, { values }) {
    const names = Object.keys(changes).filter((name) => !choices.has(name)).map((name) => `${name} = ${shown(name, values)}`);
    return [data.models[model].label, ...names].join(", ");
  }

  function showAnswer(answer) {
    const place = root.querySelector("#calculator-answer");
    place.replaceChildren(element("h3", titleOf(chosen, answer)));
    if (answer.reasons.length > 0) {
      const reasons = answer.reasons.map((reason) => element("li", reason));
      place.append(element("p", "Not possible:", "reason"), story.made("ul", { className: "reason" }, ...reasons));
    } else place.append(element("p", exact(answer.whole("parameters")), "total"));
  }

  // A bar as long as `whole`, and what is drawn over it. Its parts: value, class and title.
  function bar(attributes, parts, whole, ...others) {
    let x = 0;
    const pieces = parts.map(([value, group, title]) => {
      const width = (100 * value) / whole;
      const piece = story.drawn("rect", { class: group, x: `${x}%`, width: `${width}%`, height: "100%" }, story.drawn("title", {}, title));
      x += width;
      return piece;
    });
    return story.drawn("svg", attributes, ...pieces, ...others);
  }

  function showTable(answer, other) {
    const answers = other ? [answer, other] : [answer];
    const rows = [];
    const add = (head, values, className = "") => {
      const numbers = values.map((value) => (value === undefined ? "no formula" : exact(value)));
      if (other) numbers.push(values.every(Number.isSafeInteger) ? exact(values[0] - values[1]).replace("-", "−") : "–");
      const cells = numbers.map((text, i) => element("td", text, `number ${className}`, { dataset: { label: COLUMNS[i] } }));
      rows.push(story.made("tr", {}, story.made("td", { className }, head), ...cells));
    };
    if (answers.every(({ reasons }) => reasons.length === 0)) {
      const ofComponents = answers.map(({ parts }) => new Map(parts(asked.by.value)));
      for (const name of groups.keys()) if (ofComponents.some((of) => of.get(name) > 0)) add(nameOf(name), ofComponents.map((of) => of.get(name) ?? 0));
      const whole = (title, of) => add(title, answers.map(of), "whole");
      whole("all parameters", ({ whole }) => whole("parameters"));
      if (answers.some(({ active, whole }) => active() !== whole("parameters"))) whole("active parameters per token", ({ active }) => active());
      for (const [quantity, title] of data.quantities) whole(title, ({ whole }) => whole(quantity));
    }
    const table = root.querySelector("#calculator-table");
    table.classList.toggle("alone", !other);
    table.querySelector("tbody").replaceChildren(...rows);
    root.querySelector("#calculator-kept").textContent = other ? titleOf(kept, other) : "";
    root.querySelector("#calculator-compare").checked = Boolean(other);
  }

  const COLUMNS = ["number", "compared with", "difference"];
  const nameOf = (component) =>
    story.made("code", { className: `name swatch ${groups.get(component)}` }, component);

  function show() {
    settleKernel(chosen);
    for (const part of all("#calculator-answer, #calculator-table, #fit-answer, #calculator-link")) part.hidden = isRefused;
    const answer = compute(chosen);
    showControls(answer);
    showAnswer(answer);
    showTable(answer, kept && compute(kept));
    showFit(answer);
    if (isRefused) for (const part of all("#calculator-answer, #calculator-table tbody, #fit-answer")) part.replaceChildren();
    const link = root.querySelector("#calculator-link");
    [link.href, link.textContent] = [written(), LINK];
    root.dispatchEvent(new Event("answered"));
  }

  // With the address, which is a link to what is shown.
  function showAndKeep() {
    show();
    history.replaceState(null, "", isRefused ? HOME : written());
  }

  // -- Whether the model fits a device, and what helps most.

  const CHANGES = [
    ["twice the devices", ({ [DEVICES]: n }) => ({ [DEVICES]: 2 * n })],
    ["half the batch", ({ batch }) => (batch > 1 ? { batch: Math.floor(batch / 2) } : null)],
    ["half the length", ({ length }) => (length > 1 ? { length: Math.floor(length / 2) } : null)],
    ["bfloat16", ({ dtype }) => (dtype === "float32" ? { dtype: "bfloat16" } : null)],
    ["FlashAttention", ({ dtype, attention_kernel: kernel }) => (dtype !== "float32" && kernel === "math" ? { attention_kernel: "flash" } : null)],
    ["full activation checkpointing", ({ recompute }) => (recompute === "none" ? { recompute: "full" } : null)],
    ["one KV head for four heads (GQA)", ({ n_head: heads, n_kv_head: kv }) => (kv === heads && heads % 4 === 0 ? { n_kv_head: heads / 4 } : null)],
  ];

  // What is live from step to step, or from token to token.
  const KEPT = {
    peak_training_bytes: [["parameters", "parameter_bytes"], ["optimizer states", "optimizer_bytes"]],
    peak_inference_bytes: [["parameters", "parameter_bytes"], ["KV cache", "cache_bytes"]],
  };
  const withChange = (state, changed) => ({ ...state, changes: { ...state.changes, ...changed } });
  const ofChoices = ({ changes }) => Object.fromEntries(Object.entries(changes).filter(([name]) => choices.has(name)));

  const MOST_DEVICES = 2 ** 19;
  const SHARED = [1, 2, 4, 8, 16]; // devices that share a layer, or that have a stage each
  const N_LAYOUTS = 3;
  const WORTH = 0.01; // the smallest share of the need that is offered as a saving

  // Why a quantity has no formula: the single changes with which it has one.
  function lacking(state, quantity) {
    const values = valuesOf(state);
    const changes = [...choices].flatMap(([name, all]) => all.map((value) => [name, value]));
    for (const name of data.meshes) if (values[name] > 1) changes.push([name, 1]);
    const enough = changes
      .filter(([name, value]) => value !== values[name] && !isAlone(name, values))
      .filter(([name, value]) => compute(withChange(state, { [name]: value })).whole(quantity) !== undefined)
      .map(([name, value]) => `${name}: ${value}`);
    const command = `modelbudget ${state.model} predicts or measures it`;
    return enough.length === 0 ? command : `it has one with ${enough.join(" or with ")}; ${command}`;
  }

  // The changes that save most, first those with which the model fits.
  function showSavings(place, state, quantity, ours, most, room) {
    const savings = CHANGES.map(([title, of]) => [title, of(valuesOf(state))])
      .filter(([, changed]) => changed)
      .map(([title, changed]) => {
        const answer = compute(withChange(state, changed));
        const need = answer.whole(quantity) ?? ours;
        const makesItFit = most > room && Math.max(need, answer.ofClass(quantity) ?? need) <= room;
        return { title, saved: ours - need, makesItFit };
      })
      .filter(({ saved }) => saved > WORTH * ours)
      .sort((a, b) => b.makesItFit - a.makesItFit || b.saved - a.saved);
    const items = savings.slice(0, 3).map(({ title, saved, makesItFit }) => element("li", `${title}: ${short(saved)} less (${exact(saved)} bytes)${makesItFit ? ", and it fits" : ""}`));
    if (items.length > 0) place.append(element("p", "What helps most, each alone, with our modules:"), story.made("ol", {}, ...items));
  }

  // Settings of a layout: FSDP2 of data-parallel devices; stages, of which it knows no shards, are replicated.
  function layout(values, data_parallel, tensor_parallel, pipeline_parallel, recompute) {
    const zero = data_parallel === 1 ? ALONE.zero : pipeline_parallel > 1 ? 0 : 3;
    const sequence_parallel = Number(tensor_parallel > 1 && values.tensor_parallel > 1 && values.sequence_parallel);
    return { [DEVICES]: data_parallel, tensor_parallel, sequence_parallel, pipeline_parallel, recompute, zero };
  }

  // What the device of a layout needs that needs most; undefined without a formula.
  function needOf(state, changed) {
    const ranks = changed.pipeline_parallel > 1 ? ["first", "last"] : [valuesOf(state).pipeline_rank];
    const peaks = ranks.flatMap((pipeline_rank) => {
      const { whole, ofClass } = compute(withChange(state, { ...changed, pipeline_rank }));
      return [whole("peak_training_bytes"), ofClass("peak_training_bytes") ?? 0];
    });
    return peaks.includes(undefined) ? undefined : Math.max(...peaks);
  }

  // The layouts of the fewest devices that train the model: data × tensor × pipeline × checkpointing.
  function smallestLayouts(state, room) {
    const values = valuesOf(state);
    const states = compute(withChange(state, layout(values, 1, 1, 1, "full"))).whole(STATES) ?? 0;
    const found = [];
    let hasFormula = false;
    for (let n = 1; n <= MOST_DEVICES && found.length < N_LAYOUTS; n *= 2) {
      if (states / n > room) continue;
      const ofSize = [];
      for (const pipeline of SHARED) {
        for (const tensor of SHARED) {
          if (pipeline * tensor > n) continue;
          for (const recompute of new Set([values.recompute, "full"])) {
            const changed = layout(values, n / pipeline / tensor, tensor, pipeline, recompute);
            const need = needOf(state, changed);
            hasFormula ||= need !== undefined;
            if (!(need <= room)) continue;
            ofSize.push({ n, changed, need });
            break; // without checkpointing, if that is enough
          }
        }
      }
      found.push(...ofSize.sort((a, b) => a.need - b.need));
    }
    return { hasFormula, smallest: found.slice(0, N_LAYOUTS) };
  }

  function showLayouts(place, state, room) {
    const { hasFormula, smallest } = smallestLayouts(state, room);
    if (smallest.length === 0) {
      const why = hasFormula ? `No layout of up to ${exact(MOST_DEVICES)} devices fits: what each gathers, and the activations of its own batch, are too large.` : "The page has no formula for several devices that share this model; the command line measures them.";
      place.append(element("p", why));
      return;
    }
    const lines = smallest.map(({ n, changed, need }) => {
      const { [DEVICES]: data_parallel, tensor_parallel, pipeline_parallel, recompute, zero } = changed;
      const ways = [[data_parallel, zero ? `data-parallel (zero: ${zero})` : "data-parallel"], [tensor_parallel, "tensor-parallel"], [pipeline_parallel, "stages"]].filter(([size]) => size > 1);
      const parts = [ways.map(([size, name]) => `${exact(size)} ${name}`).join(" × "), recompute === "full" ? "full checkpointing" : ""];
      const onclick = () => {
        for (const [name, value] of Object.entries(changed)) change(name, value);
        showAndKeep();
      };
      const button = element("button", `${exact(n)} device${n > 1 ? "s" : ""}: ${parts.filter(Boolean).join(", ")}`, "", { type: "button", onclick });
      return story.made("li", {}, button, ` ${short(need)} each`);
    });
    place.append(element("p", "The fewest devices that train it, each with a batch of its own:"), story.made("ul", {}, ...lines));
  }

  // What the device holds at the peak, in the colours of the acts, and its memory as a line.
  function showBar(place, whole, quantity, most, room, name) {
    const peak = whole(quantity);
    const isTraining = quantity === "peak_training_bytes";
    const parts = KEPT[quantity].map(([title, of]) => [title, whole(of) ?? 0]);
    const rest = peak - parts.reduce((sum, [, value]) => sum + value, 0);
    parts.push([isTraining ? "activations" : "temporary", Math.max(rest, 0)]);
    const titles = { activations: "activations, gradients and temporary tensors at the peak" };
    const pieces = parts.map(([title, value]) => [value, data.memory[title], `${titles[title] ?? title}: ${exact(value)} bytes`]);
    const length = Math.max(most, room);
    const x = `${(100 * room) / length}%`;
    const line = story.drawn("line", { x1: x, x2: x, y1: "-15%", y2: "115%" });
    const drawing = bar({ role: "img", "aria-label": `${short(peak)} of ${short(room)} (${name})` }, pieces, length, line);
    const legend = story.made("ul", { className: "legend" }, ...parts.map(([title, value]) => story.made("li", { className: `swatch ${data.memory[title]}` }, `${titles[title] ?? title} ${short(value)}`)));
    place.append(story.made("div", { id: "fit-bar" }, drawing, legend));
  }

  function showFit({ reasons, values: together }) {
    const place = root.querySelector("#fit-answer");
    const quantity = asked.for.value;
    const [name, room] = data.devices[asked.device.selectedIndex];
    const n = devicesOf(together);
    const ofReplica = n / together[DEVICES];
    root.querySelector("#fit-replica").textContent = ofReplica > 1 ? `× ${exact(ofReplica)} ` : "";
    place.replaceChildren(...reasons.slice(0, 1).map((reason) => element("p", reason, "reason")));
    if (reasons.length > 0) return;
    // One device does the inference, however many train.
    const isTraining = quantity === "peak_training_bytes";
    const state = isTraining ? chosen : withChange(chosen, Object.fromEntries(data.meshes.map((name) => [name, 1])));
    const { whole, ofClass } = compute(state);
    const ours = whole(quantity);
    const among = n === 1 ? "" : isTraining ? ` on each of ${exact(n)} devices` : " on one device";
    if (ours === undefined) {
      place.append(element("p", `The page has no formula for the peak with these settings together; ${lacking(state, quantity)}.`));
      return;
    }
    const theirs = ofClass(quantity);
    const kind = data.kinds[chosen.model];
    const ends = [ours, theirs ?? ours];
    const most = Math.max(...ends);
    const range = theirs === undefined ? `${short(ours)} with our fused modules` : `${short(ours)} with our fused modules, ${short(theirs)} as ${kind} of transformers computes it`;
    const [reserve, worst] = data.margins;
    const isTight = most <= room && most > (room - reserve) / worst;
    const verdict = isTight ? "Tight" : most <= room ? "Fits" : Math.min(...ends) > room ? "Does not fit" : "Fits only with fused modules";
    const without = isTight ? `, not enough for ${short(reserve)} of reserve and the worst published reading, ${worst} × the prediction` : "";
    const margin = most <= room ? `${short(room - most)} to spare${without}` : `${short(most - room)} too much`;
    const title = `${ends.map(exact).join(" to ")} bytes`;
    place.append(element("p", `${verdict}: ${range}, of ${short(room)} (${name})${among}: ${margin}.`, most <= room ? "fits" : "reason", { title }));
    showBar(place, whole, quantity, most, room, name);
    if (theirs === undefined && kind) place.append(element("p", `The run settings of ${kind} in transformers are not known for this model; it may need more.`));
    if (most > room && isTraining) showLayouts(place, state, room);
    showSavings(place, state, quantity, ours, most, room);
  }

  // -- A config.json, pasted or dropped.

  const configText = root.querySelector("#config-text");
  const configAnswer = root.querySelector("#config-answer");
  function readConfig() {
    const file = configText.value.trim() ? translate(configText.value) : null;
    isRefused = file !== null && file.mistakes.length > 0;
    if (kept?.model === PASTED) kept = null; // its file is gone
    configAnswer.replaceChildren(...[...(file?.mistakes ?? []), ...(file?.notes ?? [])].map((line, i) => element("p", line, i < file.mistakes.length ? "reason" : "")));
    if (file !== null && !isRefused) {
      addFile(file.kind, file.fields, file.follow);
      chosen = stateOf(PASTED, { ...ofChoices(chosen), ...file.run });
    } else if (chosen.model === PASTED) chosen = stateOf(data.start, ofChoices(chosen));
    showAndKeep();
  }
  configText.addEventListener("input", readConfig);
  root.addEventListener("dragover", (event) => event.preventDefault());
  root.addEventListener("drop", async (event) => {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (!file) return;
    configText.value = await file.text();
    readConfig();
  });

  // -- Input.

  function valueIn({ type, value, checked, dataset: { field } }) {
    if (choices.has(field)) return choice(field, value);
    return type === "checkbox" ? Number(checked) : numberIn(value);
  }

  root.addEventListener("input", ({ target }) => {
    if (target === configText) return;
    if (isRefused) configAnswer.replaceChildren();
    isRefused = false;
    const { field } = target.dataset;
    if (target.id === "calculator-compare") kept = target.checked ? structuredClone(chosen) : null;
    else if (field) change(field, valueIn(target));
    else if (target === modelSelect) chosen = stateOf(target.value, ofChoices(chosen));
    showAndKeep();
  });
  root.querySelector("#calculator-link").addEventListener("click", async ({ target }) => {
    try {
      await navigator.clipboard.writeText(target.href);
      target.textContent = "Link copied";
    } catch {
      target.textContent = "The address of this page is the link";
    }
  });

  function follow() {
    if (read(location.hash)) {
      document.querySelector(HOME).scrollIntoView();
      root.querySelector(".fields").open = true;
    }
    show();
  }
  window.addEventListener("hashchange", follow);
  await pause();
  root.removeAttribute("aria-busy");
  follow();
})();
