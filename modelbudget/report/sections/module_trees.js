// Draws each module tree as an icicle chart: nested blocks, as wide as their parameters.
"use strict";

function drawTree(figure) {
  const tree = figure.querySelector(".tree");
  const description = figure.querySelector(".description");
  const toggle = figure.querySelector(".toggle");
  const parts = [...tree.querySelectorAll("li")];
  const root = parts[0];
  const parent = (part) => part.parentElement.closest("li");
  const button = (part) => part.querySelector("button");
  const textOf = (part) => [...button(part).children].map((piece) => piece.textContent).join(" · ");

  for (const part of parts) {
    part.style.flexGrow = part.dataset.parameters;
    const holds = part.dataset.parameters !== "0" || part.classList.contains("shared");
    part.classList.toggle("empty", !holds && part !== root);
    button(part).tabIndex = -1;
    button(part).ariaLabel = textOf(part);
  }

  // Hide everything that is not on the path from the root to the part, or below it.
  function zoom(part) {
    for (const other of parts) other.classList.remove("aside", "zoomed");
    part.classList.add("zoomed");
    for (let one = part; one !== root; one = parent(one)) {
      for (const sibling of one.parentElement.children) sibling.classList.toggle("aside", sibling !== one);
    }
  }

  const describe = (part) => (description.textContent = textOf(part));
  const visible = (part) => (part?.checkVisibility() ? part : null);
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
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const to = move(event.target.closest("li"));
    if (to) button(to).focus();
  });
  tree.addEventListener("focusin", ({ target }) => {
    tree.querySelector("[tabindex='0']").tabIndex = -1;
    target.tabIndex = 0;
    describe(target.closest("li"));
  });
  tree.addEventListener("pointerover", ({ target }) => describe(target.closest("li") ?? root));
  toggle.addEventListener("click", () => {
    const drawn = tree.classList.toggle("icicle");
    description.hidden = !drawn;
    toggle.textContent = drawn ? "show as list" : "show as chart";
  });

  button(root).tabIndex = 0;
  tree.classList.add("icicle");
  toggle.hidden = false;
  zoom(root);
  describe(root);
}

document.querySelectorAll("figure.module-tree").forEach(drawTree);
