// A config.json to fields of a decoder, by the data of configs/huggingface/ that Python uses too.

function configReader({ config: shared, defaults }) {
  const matches = (key, patterns) => patterns.some((text) => new RegExp(`^(?:${text})$`).test(key));
  const json = (value) => JSON.stringify(value) ?? "null";
  const same = (x, y) => json(x) === json(y);

  function classOf(config) {
    const known = (name) => shared.known_as[name] ?? name;
    const holds = ({ keys }) => Object.entries(keys).every(([key, value]) => same(config[key], value));
    const where = shared.known_where.find(holds);
    const type = where?.known_as ?? known(config.model_type);
    const named = known(config.architectures?.[0] ?? null);
    const wanted = where?.classes.includes(named) ? null : named;
    return Object.keys(shared.classes).find((name) => shared.classes[name].model_type === type && [null, name].includes(wanted));
  }

  function noClass(config) {
    const wanted = config.architectures?.[0] ?? null;
    const named = `model_type = ${json(config.model_type)}, architectures = ${json(config.architectures)}`;
    const family = shared.other_families[shared.known_as[wanted] ?? wanted];
    return new Error(`${named}: ${family ? `${wanted} is of family ${family}, and the page has decoders` : "no decoder that is known here"}; the command line reads more`);
  }

  // The language model of a larger one: its config, class and a note; null if none is known here.
  function textPart(config) {
    const isPart = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
    const pick = (from, keep) => Object.fromEntries(Object.entries(from).filter(([key]) => keep(key)));
    const [nested] = shared.text_parts.filter((key) => isPart(config[key]));
    const others = Object.keys(config).filter((key) => isPart(config[key]) && matches(key, [shared.part]) && ![...shared.text_parts, ...shared.of_whole].includes(key));
    if (!nested && others.length === 0) return null;
    const own = { model_type: `${config.model_type}_text` };
    const whole = pick(config, (key) => shared.of_whole.includes(key));
    const hasType = shared.dtype_keys.some((key) => key in whole);
    const text = nested
      ? { ...own, ...pick(config[nested], (key) => !(hasType && shared.dtype_keys.includes(key))), ...whole }
      : { ...pick(config, (key) => !others.includes(key)), ...own };
    delete text.architectures;
    const kind = classOf(text);
    if (!kind) return null;
    // Another model_type has other defaults.
    const { defaults: ownDefaults, meanings, aliases } = shared.classes[kind];
    const present = Object.keys(text).map((key) => aliases[key] ?? key);
    const gaps = Object.entries(ownDefaults).some(([key, value]) => typeof meanings[key] === "string" && value !== null && value !== "auto" && !present.includes(key));
    if (gaps && text.model_type in shared.known_as) return null;
    const left = others.length > 0 ? `; left out: ${others.join(", ")} and what connects them` : "";
    return { text, kind, note: `${config.architectures?.[0] ?? config.model_type}: only its language model, ${kind}, is read${left}` };
  }

  function given(one, config, mistakes) {
    const found = {};
    for (const [spelling, key] of [...Object.keys(one.defaults).map((key) => [key, key]), ...Object.entries(one.aliases)]) {
      const value = spelling.split(".").reduce((place, part) => place?.[part], config);
      if (value === undefined) continue;
      if (key in found && !same(found[key], value)) mistakes.push(`${key} = ${json(found[key])} and ${spelling} = ${json(value)} contradict each other`);
      found[key] = value;
    }
    return found;
  }

  function fieldsOf(meaning, key, value, mistakes) {
    if (meaning === null) return {};
    if (typeof meaning === "string") {
      if (value === null || value === "auto") return {};
      if (!Number.isSafeInteger(value)) mistakes.push(`${key} = ${json(value)}: must be a whole number`);
      else if (value < 0) mistakes.push(`${key} = ${json(value)}: must not be negative`);
      return { [meaning]: value };
    }
    const fits = meaning.find(([one]) => same(one, value));
    if (fits) return fits[1];
    mistakes.push(`${key} = ${json(value)}: not supported (allowed: ${meaning.map(([one]) => json(one)).join(", ")})`);
    return {};
  }

  // The shortest pattern that, repeated, gives these words.
  function shortest(words) {
    const repeats = (period) => words.every((word, i) => word === words[i % period]);
    return words.slice(0, words.findIndex((_, i) => repeats(i + 1)) + 1);
  }

  // What a file calls a field, if other than the page.
  function keyOf(one, field) {
    const key = Object.keys(one.meanings).find((name) => one.meanings[name] === field && name !== field);
    return key ? ` (${field} is ${key})` : "";
  }

  // What a function gives for each layer; for none if no model is as deep.
  const ofLayers = ({ num_hidden_layers: n }, of) => Array.from({ length: n <= shared.most_layers ? n : 0 }, (_, layer) => of(layer));

  // Whether an expression of keys and a layer's number holds, for each layer.
  const layersWhere = (holds, values) => ofLayers(values, (layer) => Boolean(FUNCTIONS[holds]({ ...values, layer })));

  // 1 for each layer with RoPE and 0 for the others; nothing if all of them have it.
  function rotatedLayers(one, values) {
    if (!one.rope_layers.length) return [];
    const layers = ofLayers(values, (i) => Number((i + 1) % values.no_rope_layer_interval !== 0));
    return values.no_rope_layers?.length ? values.no_rope_layers.slice(0, layers.length) : layers;
  }

  // The shortest pattern of mixers, unless all are attention, and the window if any.
  function mixersOf(one, values, mistakes) {
    if (!one.mixers) return {};
    const known = { ...shared.layer_types, ...one.layer_types };
    const { sliding_window: hasWindows = 1 } = values;
    const types = [...(values.layer_types ?? [])];
    const rotated = rotatedLayers(one, values);
    const numbered = Object.entries(one.attention_at).find(([key]) => Array.isArray(values[key]));
    let words = hasWindows ? one.mixers.split(" ").slice(0, values.num_hidden_layers || undefined) : ["attention"];
    if (types.length > 0) {
      for (const type of types) if (!(type in known)) mistakes.push(`layer_types: ${json(type)}: not supported (allowed: ${Object.keys(known).join(", ")})`);
      if (Object.keys(one.layer_mlps).length > 0) {
        const repeated = shortest(types);
        return { mixers: repeated.map((type) => known[type]).join(" "), mlps: repeated.map((type) => one.layer_mlps[type]).join(" "), n_layer: types.length };
      }
      if (types.some((type, i) => rotated[i] === 0 && known[type] !== "attention")) mistakes.push("no_rope_layers: 0 in a layer without full_attention: not supported");
      words = types.map((type, i) => (rotated[i] === 0 && known[type] === "attention" ? "nope_attention" : known[type]));
    } else if (numbered) words = ofLayers(values, (i) => (values[numbered[0]].includes(i + one.attention_counts_from) ? known.full_attention : numbered[1]));
    else if (one.attention_where !== undefined && hasWindows) words = layersWhere(one.attention_where, values).map((holds) => (holds ? known.full_attention : one.mixers));
    else if (rotated.length > 0) words = rotated.map((hasRope) => one.rope_layers[hasRope]);
    words = shortest(words);
    if (types.length > 0 && !hasWindows) words = words.map((word) => (word === "nope_attention" ? "attention" : word)); // then full attention has RoPE
    if (words.every((word) => word === "attention")) return {};
    const hidden = words.includes("sliding_attention") ? fieldsOf("window", "sliding_window", values.sliding_window ?? null, mistakes) : {};
    if (hidden.window === 1) mistakes.push("sliding_window = 1: not supported (allowed: 2 or more)");
    return { mixers: words.join(" "), ...hidden };
  }

  // The pattern of feed-forward parts, or how many layers come before those with experts.
  function layersWithExperts(one, values) {
    if (one.experts_where === undefined) return {};
    const hasExperts = layersWhere(one.experts_where, values);
    const nDense = [...hasExperts, true].indexOf(true);
    if (hasExperts.slice(nDense).every(Boolean)) return { mlps: "moe", n_dense_layer: nDense };
    return { mlps: shortest(hasExperts.map((has) => (has ? "moe" : "mlp"))).join(" ") };
  }

  function denseLayers(one, values, mistakes) {
    if (!("mlp_layer_types" in values)) return {};
    const types = values.mlp_layer_types;
    if (types === null) return "first_k_dense_replace" in one.defaults ? {} : { n_dense_layer: one.dense_layers };
    const n = types.filter((type) => type === "dense").length;
    if (types.slice(0, n).some((type) => type !== "dense")) mistakes.push(`mlp_layer_types = ${json(types)}: not supported (allowed: dense, then sparse)`);
    return { n_dense_layer: n };
  }

  function computed(one, values, mistakes) {
    const names = { head_dim: null, ...values };
    for (const [text, holds] of one.requires) if (!FUNCTIONS[holds](names)) mistakes.push(`not supported: the page needs ${text}`);
    return Object.fromEntries(Object.entries(one.computed).map(([field, text]) => [field, FUNCTIONS[text](names)]));
  }

  // Sizes of parts that no layer has, and options of attention without any.
  function withoutAbsent(one, fields) {
    if (!one.mixers) return fields;
    const present = [...(fields.mixers ?? "attention").split(" "), ...(fields.mlps ?? "mlp").split(" ")];
    const absent = new Set(Object.values(shared.sizes_of_parts).flat());
    present.flatMap((name) => shared.sizes_of_parts[name] ?? []).forEach((size) => absent.delete(size));
    if (!shared.attend.some((name) => present.includes(name))) shared.of_attention.forEach((name) => absent.add(name));
    return Object.fromEntries(Object.entries(fields).filter(([name]) => !absent.has(name)));
  }

  // Fields that nobody set (`missing`), from others.
  function derived(fields, missing) {
    const all = { ...defaults, ...fields };
    for (const [name, update, others] of missing) all[name] = FUNCTIONS[update](Object.fromEntries(others.map((other) => [other, all[other] ?? 0])));
    return Object.fromEntries(missing.map(([name]) => [name, all[name]]));
  }

  // Files that do not describe their model, and what changes memory or compute and is not used.
  function warnings(one, config) {
    const given = [config, config.attn_config].flatMap((part) => Object.entries(part ?? {}));
    const values = { ...one.defaults, ...config };
    const wrong = shared.misdescribed.filter(({ configs }) => configs.some((file) => Object.entries(file).every(([key, value]) => same(values[key], value))));
    const unused = shared.not_used.flatMap(({ keys, unless, unless_of_class: unlessOfClass, note }) => {
      const ofClass = (key) => unlessOfClass && (key in one.defaults || matches(key, one.ignored));
      const found = given.filter(([key, value]) => matches(key, [keys]) && !ofClass(key) && !unless.some((other) => same(other, value)));
      return found.length > 0 ? [`${found.map(([key, value]) => `${key} = ${json(value)}`).join(", ")}: not used: ${note}`] : [];
    });
    const weights = config.quantization_config ? ["quantization_config: not used: the page counts weights in the dtype; modelbudget config.json counts them as they are stored"] : [];
    return [...wrong.map(({ note }) => note), ...unused, ...weights];
  }

  // Sizes that a file leaves to its class, if it has no vocabulary, hidden size or depth.
  function leftToClass(kind, own) {
    const one = shared.classes[kind];
    const missing = Object.entries(one.defaults).filter(([key]) => typeof one.meanings[key] === "string" && !(key in own));
    if (!missing.some(([key]) => shared.basic_sizes.includes(one.meanings[key]))) return [];
    const sizes = missing.filter(([, value]) => value !== null && value !== "auto").sort();
    const number = sizes.length === 1 ? "1 size is" : `${sizes.length} sizes are`;
    return [`${number} not in the file, so that ${kind}'s defaults are used: ${sizes.map(([key, value]) => `${key} = ${value}`).join(", ")}`];
  }

  function translated(config, mistakes, notes) {
    let kind = classOf(config);
    const part = kind ? null : textPart(config);
    if (!kind && !part) throw noClass(config);
    if (part) {
      ({ kind, text: config } = part);
      notes.push(part.note);
    }
    const one = shared.classes[kind];
    const known = new Set([...Object.keys(one.defaults), ...Object.keys(one.aliases), "architectures", "model_type"]);
    const unknown = Object.keys(config).filter((key) => !known.has(key) && !matches(key, [...shared.ignored, ...one.ignored, ...shared.not_used.map(({ keys }) => keys)]));
    if (unknown.length > 0) notes.push(`Keys that the page does not know and does not use: ${unknown.join(", ")}.`);
    notes.push(...warnings(one, config));
    const own = given(one, config, mistakes);
    const values = { ...one.defaults, ...own };
    let fields = { ...one.fixed };
    for (const [key, value] of Object.entries(values)) Object.assign(fields, fieldsOf(one.meanings[key], key, value, mistakes));
    Object.assign(fields, mixersOf(one, values, mistakes), layersWithExperts(one, values), denseLayers(one, values, mistakes));
    if (mistakes.length === 0) Object.assign(fields, computed(one, values, mistakes));
    fields = withoutAbsent(one, fields);
    const follow = shared.derived.filter(([name]) => !(name in fields));
    if (mistakes.length === 0) fields = { ...fields, ...derived(fields, follow) };
    for (const [name, value] of Object.entries(fields)) {
      if (typeof value === "number" && !Number.isSafeInteger(value)) mistakes.push(`${name} = ${Number(value.toPrecision(6))} is not a whole number; choose sizes that divide${keyOf(one, name)}`);
      if (typeof value === "boolean") fields[name] = Number(value);
    }
    notes.push(...leftToClass(kind, own));
    const length = Math.min(fields.n_ctx ?? defaults.n_ctx, defaults.length);
    const dtype = shared.dtypes[config.dtype ?? config.torch_dtype];
    return { kind, fields: { ...fields, length }, follow, run: dtype ? { dtype } : {} };
  }

  // The class, its fields and run settings; and what could not be read, in one line each.
  return (text) => {
    const [mistakes, notes] = [[], []];
    try {
      // Python writes numbers that JSON does not have; no size is one of them.
      const config = JSON.parse(text.replace(/(?<![\w"])-?(Infinity|NaN)(?![\w"])/g, "null"));
      if (config === null || typeof config !== "object" || Array.isArray(config)) throw new Error("must be keys with values");
      return { ...translated(config, mistakes, notes), mistakes, notes };
    } catch (error) {
      return { mistakes: [`config.json: ${error.message}`], notes };
    }
  };
}
