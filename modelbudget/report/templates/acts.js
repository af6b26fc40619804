// What the acts of the story share: each registers a function of its section and of its data.
"use strict";

// At once, before a link lands: what is below must not move.
for (const one of document.querySelectorAll(".act [hidden]")) one.hidden = false;

const story = {
  entries: {},
  // Of whole numbers. The formats of Intl take 20 ms to be there, in the task that parses the page.
  grouped: (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ","),
  // Resolves once an element comes within a margin of the window, or the page is printed.
  near: (place, rootMargin = "100%") =>
    new Promise((done) => {
      const observer = new IntersectionObserver((entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        observer.disconnect();
        done();
      }, { rootMargin });
      observer.observe(place);
      window.addEventListener("beforeprint", done, { once: true });
    }),
  bytes(n) {
    const units = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"];
    const power = Math.min(Math.floor(Math.log10(Math.max(n, 1)) / 3), 6);
    return `${Number((n / 1000 ** power).toPrecision(3))}\u00a0${units[power]}`;
  },
  made(name, { dataset = {}, ...properties } = {}, ...children) {
    const element = Object.assign(document.createElement(name), properties);
    Object.assign(element.dataset, dataset);
    element.append(...children);
    return element;
  },
  set(element, attributes) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  },
  drawn(name, attributes, ...children) {
    const element = story.set(document.createElementNS("http://www.w3.org/2000/svg", name), attributes);
    element.append(...children);
    return element;
  },
  // Lines of a text that are no longer than a number of characters.
  wrapped: (text, length) => text.match(new RegExp(`.{1,${length}}(?= |$)`, "g")).map((line) => line.trim()),
  // A drawing as PNG with two pixels a point; the page's policy allows images of data addresses alone.
  async png(drawing) {
    const image = new Image();
    image.src = `data:image/svg+xml,${encodeURIComponent(drawing)}`;
    await image.decode();
    const canvas = story.made("canvas", { width: 2 * image.naturalWidth, height: 2 * image.naturalHeight });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  },
  save(blob, download) {
    const link = story.made("a", { href: URL.createObjectURL(blob), download });
    link.click();
    URL.revokeObjectURL(link.href);
  },
  // A line of buttons that save files of a drawing, of which `drawing` returns the SVG.
  files(text, attribute, name, drawing) {
    const contents = {
      svg: async () => new Blob([await drawing()], { type: "image/svg+xml" }),
      png: async () => story.png(await drawing()),
    };
    const buttons = Object.entries(contents).map(([kind, content]) => {
      const onclick = async () => story.save(await content(), `${name}.${kind}`);
      return story.made("button", { type: "button", className: "link", dataset: { [attribute]: kind }, onclick }, kind.toUpperCase());
    });
    return story.made("p", { className: "files" }, text, ...buttons.flatMap((one) => [one, " "]));
  },
};

document.addEventListener("DOMContentLoaded", async () => {
  await runPacked("later");
  const acts = await unpack("acts");
  for (const [name, data] of Object.entries(acts)) story.entries[name]?.(document.getElementById(name), data, acts);
});

// Each drawing of acts 2 and 4 and of the last one can be saved as it is shown, with what is above it.
{
  const KEPT = ["display", "opacity", "paint-order", "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "font", "text-anchor", "r"];

  // With the styles that the page gives its parts, which a file does not have.
  function styled(svg, x, y) {
    const copy = svg.cloneNode(true);
    const inside = [...copy.querySelectorAll("*")];
    [...svg.querySelectorAll("*")].forEach((one, i) => {
      const style = getComputedStyle(one);
      for (const name of KEPT) inside[i].style.setProperty(name, style.getPropertyValue(name));
    });
    return story.set(copy, { x, y, width: svg.clientWidth, height: svg.clientHeight, overflow: "visible" });
  }

  // An entry of a legend, which has a shape or a colour.
  function drawnEntry(entry, x, y, fill) {
    const shape = entry.querySelector("svg");
    const colour = getComputedStyle(entry, "::before").backgroundColor;
    const sign = shape ? styled(shape, x, y) : story.drawn("rect", { x, y: y + 1, width: 10, height: 10, fill: colour });
    return [sign, story.drawn("text", { x: x + 16, y: y + 10, fill, "font-size": 12 }, entry.textContent)];
  }

  function standalone(place) {
    const part = place.closest(".shared, section");
    const { color: fill, backgroundColor } = getComputedStyle(document.body);
    const width = place.clientWidth + 20;
    const lines = story.wrapped(part.querySelector("h2, h3").textContent, Math.floor(width / 9));
    const title = story.drawn("text", { "font-size": 15, "font-weight": 600, fill }, ...lines.map((line, i) => story.drawn("tspan", { x: 10, y: 20 * (i + 1) }, line)));
    const legend = part.querySelector(":scope > .legend");
    const [above, { left, top }] = [20 * lines.length + 10, (legend ?? place).getBoundingClientRect()];
    const entries = [...(legend?.children ?? [])].flatMap((entry) => {
      const box = entry.getBoundingClientRect();
      return drawnEntry(entry, 10 + box.left - left, above + box.top - top, fill);
    });
    const y = above + (legend ? legend.clientHeight + 10 : 0);
    const drawings = place.matches("svg") ? [place] : [...place.querySelectorAll("svg")];
    const paper = story.drawn("rect", { width: "100%", height: "100%", fill: backgroundColor });
    const size = { width, height: y + place.clientHeight + 20, "font-family": "sans-serif" };
    const whole = story.drawn("svg", size, paper, title, ...entries, ...drawings.map((one) => styled(one, 10, y)));
    return new XMLSerializer().serializeToString(whole);
  }

  document.querySelectorAll(".act .scatter, .act .plot, .ratios").forEach((place) => {
    place.after(story.files("Save the picture ", "drawing", place.closest("section").id, () => standalone(place)));
  });
}
