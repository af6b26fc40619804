// Draws each module tree as an icicle: blocks within blocks, as wide as their parameters.
"use strict";

for (const figure of document.querySelectorAll(".inside")) {
  const tree = figure.querySelector(".tree");
  const told = figure.querySelector(".told");
  const look = figure.querySelector(".look");
  const parts = [...tree.querySelectorAll("li")];
  const root = parts[0];
  const parent = (part) => part.parentElement.closest("li");
  const button = (part) => part.querySelector("button");
  const words = (part) => [...button(part).children].map((piece) => piece.textContent).join(" · ");

  for (const part of parts) {
    part.style.flexGrow = part.dataset.parameters;
    part.classList.toggle("empty", part.dataset.parameters === "0" && !part.classList.contains("shared"));
    button(part).tabIndex = -1;
    button(part).ariaLabel = words(part);
  }

  // Everything beside the way from the root to the part makes room for it.
  function zoom(part) {
    for (const other of parts) other.classList.remove("aside", "zoomed");
    part.classList.add("zoomed");
    for (let one = part; one !== root; one = parent(one)) {
      for (const sibling of one.parentElement.children) sibling.classList.toggle("aside", sibling !== one);
    }
    fit();
  }

  // A label that would be cut is left out; the line above the picture tells all.
  function fit() {
    const labels = [...tree.querySelectorAll("b, .amount")];
    const cut = labels.map((label) => label.scrollWidth > label.clientWidth);
    labels.forEach((label, i) => label.classList.toggle("cut", cut[i]));
  }

  function tell(part) {
    told.textContent = words(part);
  }

  function visible(part) {
    return part !== null && part.checkVisibility() ? part : null;
  }

  const nearest = (part, step) => {
    let other = part[step];
    while (other && !other.checkVisibility()) other = other[step];
    return other;
  };
  const moves = {
    ArrowUp: (part) => visible(parent(part)),
    ArrowDown: (part) => visible(part.querySelector("li:not(.aside, .empty)")),
    ArrowLeft: (part) => nearest(part, "previousElementSibling"),
    ArrowRight: (part) => nearest(part, "nextElementSibling"),
  };

  tree.addEventListener("click", ({ target }) => {
    const part = target.closest("li");
    zoom(part.classList.contains("zoomed") && part !== root ? parent(part) : part);
  });
  tree.addEventListener("keydown", (event) => {
    const to = moves[event.key]?.(event.target.closest("li"));
    if (!moves[event.key]) return;
    event.preventDefault();
    if (to) button(to).focus();
  });
  tree.addEventListener("focusin", ({ target }) => {
    tree.querySelector("[tabindex='0']").tabIndex = -1;
    target.tabIndex = 0;
    tell(target.closest("li"));
  });
  tree.addEventListener("pointerover", ({ target }) => tell(target.closest("li") ?? root));
  look.addEventListener("click", () => {
    const drawn = tree.classList.toggle("icicle");
    told.hidden = !drawn;
    look.textContent = drawn ? "as a list" : "as a picture";
  });

  new ResizeObserver(fit).observe(tree);

  button(root).tabIndex = 0;
  tree.classList.add("icicle");
  look.hidden = false;
  zoom(root);
  tell(root);
}
