// The cursor over a training step, alone and on one of several devices.

story.entries.step = (section, { allocations: columns, groups, phases, shared }) => {
  const { grouped, bytes, made } = story;
  const [slider, panel] = [section.querySelector("input"), section.querySelector(".here")];
  let start = 0;
  const allocations = rowsOf(columns).map((row) => ({ ...row, start: (start += row.start), end: start + row.live }));
  const colours = new Map(groups);
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

  const amount = (n) => made("span", { textContent: bytes(n), title: `${grouped(n)} bytes` });

  const sum = (rows) => rows.reduce((all, row) => all + row.bytes, 0);

  function show(at) {
    const live = allocations.filter(({ start, end }) => start <= at && at < end);
    const total = sum(live);
    const started = allocations.findLast(({ start }) => start === at);
    const [phase] = phases.find((one) => at <= one[2]);
    const by = groups.map(([group]) => [group, sum(live.filter((row) => row.group === group))]).filter(([, n]) => n > LEAST * total);
    const changing = live.filter(({ group }) => !["parameters", "optimizer states"].includes(group));
    const byTensor = Map.groupBy(changing, ({ group, component, operation }) => `${group} ${component} ${operation}`);
    const tensors = [...byTensor.values()].map((of) => [of[0], sum(of)]).sort((a, b) => b[1] - a[1]).slice(0, MOST);
    panel.replaceChildren(
      made("h3", { textContent: `Operation ${grouped(at + 1)}, ${phase}${started ? `: ${started.operation}` : ""}` }),
      made("p", {}, made("b", { textContent: bytes(total), title: `${grouped(total)} bytes` }), ` live; ${bytes(shared[Math.min(shared.length - 1, Math.floor(shared.length * placeOf(at)))])} on one of several devices`),
      made("ul", { className: "live" }, ...by.map(([group, n]) => made("li", { className: `swatch ${colours.get(group)}` }, `${group} `, amount(n)))),
      made("p", { className: "tensors" }, "Largest tensors: ", ...tensors.flatMap(([{ group, component, operation }, n], i) => {
        const text = made("span", { className: `tensor swatch ${colours.get(group)}` }, `${component} `, made("code", { textContent: operation }), " ", amount(n));
        if (i < tensors.length - 1) text.append(";");
        return [text, " "];
      })),
    );
    const x = `${100 * placeOf(at)}%`;
    for (const cursor of section.querySelectorAll(".cursor")) story.set(cursor, { x1: x, x2: x });
    section.classList.add("pointed");
    slider.value = at;
    slider.setAttribute("aria-valuetext", `operation ${at + 1}, ${phase}, ${bytes(total)}`);
  }

  for (const plot of section.querySelectorAll(".plot")) plot.addEventListener("pointermove", ({ clientX }) => {
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
};
