// Draws each chart at the width of its place, when it comes near the window or the page is idle.
"use strict";

(async () => {
  const { specs, datasets } = await unpack("charts");
  const NARROW = 560; // pixels: below this width, panels and legend entries are stacked

  function fitted(spec, width, excess) {
    const { columns, gap, margin, datasets: used } = spec.usermeta;
    const copy = structuredClone(spec);
    if (width < NARROW) stackLegends(copy);
    copy.datasets = Object.fromEntries(used.map((name) => [name, datasets[name]]));
    const inRow = copy.concat ? Math.min(columns, width < NARROW ? 1 : columns) : 1;
    const inner = Math.floor((width - 1 - excess + gap) / inRow) - gap - margin;
    if (copy.concat) {
      copy.columns = inRow;
      for (const panel of copy.concat) panel.width = inner;
    } else {
      if (copy.mark?.type === "rect") copy.height *= inner / copy.width; // squares stay squares
      copy.width = inner;
    }
    return copy;
  }

  function stackLegends(node) {
    if (node?.legend?.columns) node.legend.columns = 1;
    if (node && typeof node === "object") Object.values(node).forEach(stackLegends);
  }

  async function draw(place) {
    const width = place.clientWidth;
    if (place.drawnAt === width || width === 0) return;
    place.drawnAt = width;
    const options = {
      mode: "vega-lite",
      renderer: "svg",
      ast: true, // no eval: the page's policy forbids it
      actions: false,
      defaultStyle: false,
      tooltip: { disableDefaultStyle: true },
    };
    let excess = 0;
    for (let attempt = 0; attempt < 2; attempt += 1) {
      const result = await vegaEmbed(place, fitted(specs[place.dataset.chart], width, excess), options);
      const overflow = place.querySelector("svg").getBoundingClientRect().width - width;
      place.finalize?.();
      place.finalize = () => result.finalize();
      if (overflow <= 0) return;
      excess += Math.ceil(overflow) + 2;
    }
  }

  const places = [...document.querySelectorAll("[data-chart]")];

  const near = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => draw(target)),
    { rootMargin: "300px" },
  );
  places.forEach((place) => near.observe(place));

  const idle = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
  function drawRest(rest) {
    if (rest.length > 0) idle(() => draw(rest[0]).then(() => drawRest(rest.slice(1))));
  }
  if (document.readyState === "complete") drawRest(places);
  else window.addEventListener("load", () => drawRest(places));

  let waiting;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => places.filter((place) => place.drawnAt).forEach(draw), 150);
  });

  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details:not([data-numbers])")) details.open = true;
  });
})();
