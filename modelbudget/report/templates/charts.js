// Draws each chart at the width of its place, when it comes near the window or its section opens.
"use strict";

const charts = (() => {
  const NARROW = 560; // pixels: below this width, panels and legend entries are stacked
  let unpacking;
  let drawings = Promise.resolve(); // one after another
  const data = () => (unpacking ??= unpack("charts").then(({ datasets, ...others }) => (
    { ...others, datasets: Object.fromEntries(Object.entries(datasets).map(([name, columns]) => [name, rowsOf(columns)])) }
  )));
  const places = [...document.querySelectorAll("[data-chart]")];

  // Vega's spec at a width, of which the build compiled one: with panels in fewer columns, if it is narrow.
  function fitted({ specs, datasets }, name, width, excess) {
    const copy = structuredClone(specs[name]);
    const { columns, gap, margin } = copy.usermeta;
    copy.legends = copy.legends?.filter(({ fill }) => !fill); // the page has the colours
    if (width < NARROW) for (const legend of copy.legends ?? []) legend.columns = 1;
    const inRow = width >= NARROW ? columns : 1;
    const inner = Math.floor((width - 1 - excess + gap) / inRow) - gap - margin;
    if (copy.layout) copy.layout.columns = inRow;
    const shared = copy.signals?.find((one) => one.name === "childWidth"); // of panels in a row
    if (shared) shared.value = inner;
    else copy.width = inner;
    return filled(copy, datasets);
  }

  // Vega adds fields to rows: each drawing has its own.
  function filled(spec, datasets) {
    for (const one of spec.data) if (datasets[one.name]) one.values = datasets[one.name].map((row) => ({ ...row }));
    return spec;
  }

  async function draw(place) {
    // In closed details, of which a width would lay out all contents.
    const width = place.checkVisibility() ? place.clientWidth : 0;
    if (width === 0) return null;
    if (place.drawnAt !== width) {
      place.drawnAt = width;
      place.drawing = drawings.then(() => drawAt(place, width));
      drawings = place.drawing.catch(() => {});
    }
    return place.drawing;
  }

  async function drawAt(place, width) {
    const found = await data();
    place.style.minHeight = `${place.clientHeight}px`; // it stays while the drawing is replaced
    let excess = 0;
    for (let attempt = 0; attempt < 2; attempt += 1) {
      place.view?.finalize();
      place.view = await embed(place, fitted(found, place.dataset.chart, width, excess));
      const overflow = place.querySelector("svg").getBoundingClientRect().width - width;
      if (overflow <= 0) break;
      excess += Math.ceil(overflow) + 2;
    }
    place.style.minHeight = "";
    addFiles(place.closest("figure"));
    highlight.drawn(place.querySelector("svg"));
  }

  places.forEach((place) => story.near(place, "300px").then(() => draw(place)));

  // A toggle does not bubble. A section draws all of its charts, so that its height is final.
  document.addEventListener("toggle", ({ target }) => places.filter((place) => target.contains(place)).forEach(draw), true);

  let waiting;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => places.filter((place) => place.drawnAt).forEach(draw), 150);
  });

  // -- A chart as a file, in the light colours, with its title, its finding, its colours and the source.

  async function saved(figure) {
    const { specs, datasets, palette, source } = await data();
    const name = figure.querySelector("[data-chart]").dataset.chart;
    const light = JSON.parse(JSON.stringify(specs[name]).replace(/var\(--[\w-]+\)/g, (variable) => palette[variable]));
    const [text, finding] = ["h3", "figcaption p"].map((one) => figure.querySelector(one).textContent);
    const title = { text: story.wrapped(text, 90), subtitle: [...story.wrapped(finding, 110), `Source: ${source}`], anchor: "start", offset: 14 };
    return filled({ ...light, title, background: palette["var(--paper)"], padding: 12 }, datasets);
  }

  function addFiles(figure) {
    if (figure.querySelector(".files")) return;
    const drawing = async () => (await embed(document.createElement("div"), await saved(figure))).toSVG();
    figure.append(story.files("", "file", figure.id, drawing));
  }

  return {
    // Draws what is shown above an element or in its section: afterwards the element stays in place.
    async settle(target) {
      const section = target.closest("#appendix > section") ?? target;
      const before = (place) => place.compareDocumentPosition(target) & Node.DOCUMENT_POSITION_FOLLOWING;
      await Promise.all(places.filter((place) => before(place) || section.contains(place)).map(draw));
    },
  };
})();
