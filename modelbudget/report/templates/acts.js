// The acts of the story: the slider over models, and the cursor over a training step.
"use strict";

// At once, before a link lands: what is below must not move.
for (const one of document.querySelectorAll(".slide, .step input, .here, .savings input, .switches")) one.hidden = false;

(async () => {
  const SIDE = 10; // distance of two squares in units of the view box, with a gap of 1
  const SVG = "http://www.w3.org/2000/svg";
  const acts = await unpack("acts");

  const grouped = (n) => n.toLocaleString("en-US");
  const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;
  const bytes = (n) => {
    const [unit, size] = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find((one) => n >= one[1]) ?? ["bytes", 1];
    return `${Number((n / size).toPrecision(3))} ${unit}`;
  };

  function made(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    Object.assign(element, attributes);
    element.append(...children);
    return element;
  }

  function drawn(name, attributes) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  // -- From the smallest to the largest model.

  function sizes(section, { stops, groups, pinned, columns, squares }) {
    const [canvas, text] = [section.querySelector(".squares"), section.querySelector(".stop")];
    const [bars, form] = [section.querySelector(".columns"), section.querySelector(".slide")];
    const [button, slider] = [form.querySelector("button"), form.querySelector("input")];
    const high = Math.ceil(squares / columns);
    const cursor = drawn("rect", { class: "cursor", y: 0, width: SIDE, height: 1000 });
    const found = drawn("rect", { class: "found", y: 0, width: SIDE, height: 1000, visibility: "hidden" });
    bars.append(cursor, found);

    // As many squares as there are, in proportion, by the largest remainder.
    function shared(values, total) {
      const exact = values.map((value) => (value * squares) / total);
      const found = exact.map(Math.floor);
      const order = [...exact.keys()].sort((a, b) => exact[b] - found[b] - (exact[a] - found[a]));
      const left = squares - found.reduce((a, b) => a + b);
      for (const i of order.slice(0, left)) found[i] += 1;
      return found;
    }

    function show(i) {
      const [label, total, values] = stops[i];
      let first = 0;
      const paths = shared(values, total).map((n, k) => {
        const cells = Array.from({ length: n }, (_, one) => first + one);
        first += n;
        const d = cells.map((cell) => `M${Math.floor(cell / high) * SIDE} ${(cell % high) * SIDE}h9v9h-9z`).join("");
        return drawn("path", { class: groups[k][1], d });
      });
      canvas.replaceChildren(...paths);
      const parts = [...values.keys()].filter((k) => values[k] > 0).sort((a, b) => values[b] - values[a]).slice(0, 3);
      const shares = parts.map((k) => `${percent(values[k] / total)} ${groups[k][0]}`).join(", ");
      text.replaceChildren(
        made("b", { textContent: label }), " ",
        made("span", { textContent: `${grouped(total)} parameters` }), " ",
        made("span", { textContent: shares }),
      );
      cursor.setAttribute("x", SIDE * i);
      slider.value = i;
      slider.setAttribute("aria-valuetext", `${label}, ${grouped(total)} parameters`);
    }

    const still = matchMedia("(prefers-reduced-motion: reduce)");
    const halts = [...new Set([0, ...pinned, stops.length - 1])].sort((a, b) => a - b);
    const next = () => halts.find((one) => one > Number(slider.value));
    let playing;

    function stop() {
      clearInterval(playing);
      playing = undefined;
      button.textContent = "▶";
      button.ariaLabel = still.matches ? "Next model" : "Play";
    }

    function step() {
      show(next() ?? 0);
      if (next() === undefined) stop();
    }

    button.addEventListener("click", () => {
      if (playing) return stop();
      if (next() === undefined) show(0);
      else step();
      if (still.matches || next() === undefined) return stop();
      playing = setInterval(step, 1000);
      button.textContent = "❚❚";
      button.ariaLabel = "Pause";
    });
    slider.addEventListener("input", () => {
      stop();
      show(Number(slider.value));
    });
    bars.addEventListener("pointerdown", (event) => choose(event));
    bars.addEventListener("pointermove", (event) => event.buttons && choose(event));
    bars.addEventListener("pointermove", (event) => highlight.show(stops[columnAt(event)][0]));
    bars.addEventListener("pointerleave", () => highlight.show());
    document.addEventListener("highlight", ({ detail }) => {
      const i = stops.findIndex(([label]) => label === detail);
      found.setAttribute("visibility", i < 0 ? "hidden" : "visible");
      found.setAttribute("x", SIDE * i);
    });
    function columnAt({ clientX }) {
      const box = bars.getBoundingClientRect();
      return Math.max(0, Math.min(stops.length - 1, Math.floor((stops.length * (clientX - box.left)) / box.width)));
    }
    function choose(event) {
      stop();
      show(columnAt(event));
    }
    stop();
    show(0);
  }

  // -- Live bytes of a training step.

  function step(section, { allocations, groups, phases, component, operation }) {
    const [plot, slider] = [section.querySelector(".plot"), section.querySelector("input")];
    const [cursor, panel] = [section.querySelector(".cursor"), section.querySelector(".here")];
    const MOST = 6;
    const LEAST = 0.001; // share of the live bytes

    function operationAt(share) {
      const [, first, last, left, width] = phases.findLast((phase) => phase[3] <= share) ?? phases[0];
      return Math.min(last, first + Math.floor(((share - left) / width) * (last - first + 1)));
    }

    function placeOf(at) {
      const [, first, last, left, width] = phases.find((phase) => at <= phase[2]);
      return left + (width * (at - first + 0.5)) / (last - first + 1);
    }

    const swatch = (k) => made("i", { className: `swatch ${groups[k][1]}` });
    const amount = (n) => made("span", { textContent: bytes(n), title: `${grouped(n)} bytes` });

    function summed(rows, key) {
      const found = new Map();
      for (const row of rows) found.set(key(row), (found.get(key(row)) ?? 0) + row[2]);
      return [...found].sort((a, b) => b[1] - a[1]);
    }

    function show(at) {
      const live = allocations.filter(([start, end]) => start <= at && at < end);
      const total = live.reduce((sum, row) => sum + row[2], 0);
      const started = allocations.findLast(([start]) => start === at);
      const [phase] = phases.find((one) => at <= one[2]);
      const by = summed(live, (row) => row[3]).sort((a, b) => a[0] - b[0]).filter((one) => one[1] > LEAST * total);
      const changing = live.filter((row) => !["parameters", "optimizer states"].includes(groups[row[3]][0]));
      const tensors = summed(changing, (row) => row.slice(3).join(" ")).slice(0, MOST);
      panel.replaceChildren(
        made("h3", { textContent: `Operation ${grouped(at + 1)}, ${phase}${started ? `: ${operation[started[5]]}` : ""}` }),
        made("p", {}, made("b", { textContent: bytes(total), title: `${grouped(total)} bytes` }), " live"),
        made("ul", { className: "live" }, ...by.map(([k, n]) => made("li", {}, swatch(k), `${groups[k][0]} `, amount(n)))),
        made("p", { className: "tensors" }, "Largest tensors: ", ...tensors.flatMap(([key, n], i) => {
          const [k, of, by] = key.split(" ").map(Number);
          const text = made("span", { className: "tensor" }, swatch(k), `${component[of]} `, made("code", { textContent: operation[by] }), " ", amount(n));
          if (i < tensors.length - 1) text.append(";");
          return [text, " "];
        })),
      );
      const x = `${100 * placeOf(at)}%`;
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      section.classList.add("pointed");
      slider.value = at;
      slider.setAttribute("aria-valuetext", `operation ${at + 1}, ${phase}, ${bytes(total)}`);
    }

    plot.addEventListener("pointermove", ({ clientX }) => {
      const box = plot.getBoundingClientRect();
      show(operationAt(Math.max(0, Math.min(0.9999, (clientX - box.left) / box.width))));
    });
    slider.addEventListener("input", () => show(Number(slider.value)));
    for (const peak of section.querySelectorAll("[data-at]")) {
      peak.tabIndex = 0;
      for (const event of ["pointerenter", "focus"]) peak.addEventListener(event, () => show(Number(peak.dataset.at)));
    }
    show(Number(slider.value));
    section.classList.remove("pointed");
  }

  // -- Changes of a training step, combined.

  function savings(section, { all, measured, peaks }) {
    const switches = [...section.querySelectorAll("input")];
    const row = section.querySelector(".all");
    const [value, saved, bar] = row.querySelectorAll("td");

    function show() {
      const chosen = [...switches.keys()].filter((i) => switches[i].checked);
      const key = chosen.join(" ");
      const [text, exact, share, width, device] = peaks[key] ?? ["no formula", "", "", 0, ""];
      const whose = measured.includes(key) ? "measured" : "predicted";
      row.querySelector("b").textContent = chosen.length === switches.length ? all : `${chosen.length} of ${switches.length} changes`;
      value.replaceChildren(made("span", { textContent: text, title: exact && `${exact} bytes` }));
      saved.textContent = share;
      bar.querySelector("rect").setAttribute("width", `${width}%`);
      bar.querySelector("small").textContent = device && `${whose}; ${device}`;
    }
    for (const one of switches) one.addEventListener("change", show);
    show();
  }

  const ENTRIES = { sizes, step, "what-to-do": savings };
  for (const [name, data] of Object.entries(acts)) ENTRIES[name]?.(document.getElementById(name), data);
})();
