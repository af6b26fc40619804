// Draws each module tree as an icicle chart: nested blocks, as wide as their parameters.

function drawTree(figure) {
  const [tree, description, toggle] = [".tree", ".description", ".toggle"].map((one) => figure.querySelector(one));
  const parts = [...tree.querySelectorAll("li")];
  const root = parts[0];
  const parent = (part) => part.parentElement.closest("li");
  const button = (part) => part.querySelector("button");
  const textOf = (part) => [...button(part).children].map((piece) => piece.textContent).join(" · ");

  for (const part of parts) {
    part.style.flexGrow = part.dataset.parameters;
    button(part).tabIndex = -1;
    button(part).ariaLabel = textOf(part);
  }

  // The style hides everything that is not on the path from the root to the part, or below it.
  function zoom(part) {
    tree.querySelector(".zoomed")?.classList.remove("zoomed");
    part.classList.add("zoomed");
  }

  const describe = (part) => (description.textContent = textOf(part));

  // The parts that an arrow leads to: the first one that is shown has the focus next.
  function along(arrow, part) {
    const siblings = [...part.parentElement.children];
    const place = siblings.indexOf(part);
    return {
      ArrowUp: [parent(part)],
      ArrowDown: [...part.querySelectorAll("li")],
      ArrowLeft: siblings.slice(0, place).reverse(),
      ArrowRight: siblings.slice(place + 1),
    }[arrow];
  }

  tree.addEventListener("click", ({ target }) => {
    const part = target.closest("li");
    zoom(part.classList.contains("zoomed") && part !== root ? parent(part) : part);
  });
  tree.addEventListener("keydown", (event) => {
    const others = along(event.key, event.target.closest("li"));
    if (!others) return;
    event.preventDefault();
    const shown = others.find((part) => part?.checkVisibility());
    if (shown) button(shown).focus();
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
