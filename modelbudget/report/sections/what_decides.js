// The slider over all models draws one of them in act 1, as `model_stack.py` does.

story.entries["what-decides"] = (section, { models, first }, acts) => {
  const verbs = new Map(acts["what-they-do"].verbs.map(([group, ...rest]) => [group, rest]));
  const { grouped, made, drawn } = story;
  const [WIDE, HIGH, GAP, WIDEST] = [100, 400, 0.2, 3];
  const figure = document.querySelector("#what-they-do figure:last-child");
  const [slider, text] = [section.querySelector("input"), section.querySelector(".stop")];
  const dots = section.querySelectorAll(".scatter :is(circle, rect)");

  function bands(total, rows) {
    let top = 0;
    return rows.flatMap(([n, ...row]) => {
      const whole = row.reduce((sum, [, , value]) => sum + value, 0);
      const height = (HIGH * whole) / total;
      const gap = Math.min((GAP * height) / n, WIDEST);
      let x = 0;
      const lines = row.map(([name, group, value, share]) => {
        const width = (WIDE * value) / whole;
        const title = `${name}: ${grouped(value)} parameters${n > 1 ? ` in ${n} layers` : ""}, ${share}; ${group} ${verbs.get(group)[1]}`;
        const line = { class: verbs.get(group)[0], d: `M${x + width / 2} ${top}v${height}`, "stroke-width": width };
        if (n > 1) line["stroke-dasharray"] = `${height / n - gap} ${gap}`;
        x += width;
        return drawn("path", line, drawn("title", {}, title));
      });
      top += height;
      return lines;
    });
  }

  function show(i) {
    const [label, total, nLayer, words, rows] = models[i];
    figure.querySelector("figcaption").replaceChildren(made("b", { textContent: label }), " ", made("span", { textContent: `${grouped(total)} parameters, ${nLayer} layers` }));
    const drawing = figure.querySelector("svg");
    drawing.replaceChildren(...bands(total, rows));
    drawing.ariaLabel = `${label}: ${words}`;
    figure.querySelector(".parts").textContent = words;
    text.replaceChildren(made("b", { textContent: label }), " ", made("span", { textContent: words }));
    dots.forEach((dot, k) => dot.classList.toggle("chosen", k === i));
    slider.value = i;
    slider.setAttribute("aria-valuetext", `${label}, ${grouped(total)} parameters`);
  }

  slider.addEventListener("input", () => show(Number(slider.value)));
  dots.forEach((dot, i) => {
    dot.addEventListener("click", () => show(i));
    dot.addEventListener("pointerenter", () => highlight.show(models[i][0]));
    dot.addEventListener("pointerleave", () => highlight.show());
  });
  document.addEventListener("highlight", ({ detail }) => dots.forEach((dot, k) => dot.classList.toggle("found", models[k][0] === detail)));
  dots[first].classList.add("chosen");
};
