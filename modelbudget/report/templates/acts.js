// What the acts of the story share: each registers a function of its section and of its data.
"use strict";

// At once, before a link lands: what is below must not move.
for (const one of document.querySelectorAll(".act [hidden]")) one.hidden = false;

const story = {
  entries: {},
  grouped: (n) => n.toLocaleString("en-US"),
  // As `percent` of charts/format.py.
  percent(share) {
    const hundredths = 100 * share;
    if (hundredths > 0 && hundredths < 0.01) return "< 0.01\u00a0%";
    if (hundredths > 99.99 && hundredths < 100) return "> 99.99\u00a0%";
    const digits = hundredths < 1 || (hundredths > 99.9 && hundredths < 100) ? 2 : 1;
    return `${share === 0 || share === 1 ? hundredths : hundredths.toFixed(digits)}\u00a0%`;
  },
  bytes(n) {
    const [unit, size] = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find((one) => n >= one[1]) ?? ["bytes", 1];
    return `${Number((n / size).toPrecision(3))} ${unit}`;
  },
  made(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    Object.assign(element, attributes);
    element.append(...children);
    return element;
  },
  drawn(name, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  },
  save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  },
};

document.addEventListener("DOMContentLoaded", async () => {
  const acts = await unpack("acts");
  for (const [name, data] of Object.entries(acts)) story.entries[name]?.(document.getElementById(name), data, acts);
});
