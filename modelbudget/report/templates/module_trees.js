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
    fit();
  }

  // Hide labels that do not fit; the line above the tree has the full text.
  function fit() {
    const labels = [...tree.querySelectorAll("b, .amount")];
    const cut = labels.map((label) => label.scrollWidth > label.clientWidth);
    labels.forEach((label, i) => label.classList.toggle("cut", cut[i]));
  }

  function describe(part) {
    description.textContent = textOf(part);
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
    describe(target.closest("li"));
  });
  tree.addEventListener("pointerover", ({ target }) => describe(target.closest("li") ?? root));
  toggle.addEventListener("click", () => {
    const drawn = tree.classList.toggle("icicle");
    description.hidden = !drawn;
    toggle.textContent = drawn ? "show as list" : "show as chart";
  });

  new ResizeObserver(fit).observe(tree);

  button(root).tabIndex = 0;
  tree.classList.add("icicle");
  toggle.hidden = false;
  zoom(root);
  describe(root);
}

document.querySelectorAll("figure.module-tree").forEach(drawTree);

// Any swept model, selected by sweep and point.
{
  const HOME = "#architecture-swept";
  const figure = document.querySelector(HOME);
  if (figure) {
    const form = figure.querySelector("form");
    const blank = figure.querySelector(".module-tree").cloneNode(true);
    const sweeps = [...form.sweep.options].map(({ value }) => value);
    let points, trees;

    async function choose(sweep, point) {
      form.sweep.value = sweep;
      ({ points, trees } = await unpack(`trees ${sweep}`));
      form.point.replaceChildren(...points.map(([name, label]) => new Option(label, name)));
      const known = points.some(([name]) => name === point);
      form.point.value = known ? point : points[0][0];
      show();
    }

    function show() {
      const [, label, place] = points[form.point.selectedIndex];
      const fresh = blank.cloneNode(true);
      const tree = fresh.querySelector(".tree");
      tree.innerHTML = trees[place];
      tree.ariaLabel = `Modules of ${label}`;
      figure.querySelector(".module-tree").replaceWith(fresh);
      drawTree(fresh);
    }

    function follow() {
      if (!location.hash.startsWith(`${HOME}?`)) return;
      const wanted = new URLSearchParams(location.hash.slice(HOME.length + 1));
      if (sweeps.includes(wanted.get("sweep"))) choose(wanted.get("sweep"), wanted.get("point"));
      figure.scrollIntoView();
    }

    form.addEventListener("change", async ({ target }) => {
      if (target === form.sweep) await choose(form.sweep.value);
      else show();
      const address = new URLSearchParams({ sweep: form.sweep.value, point: form.point.value });
      history.replaceState(null, "", `${HOME}?${address}`);
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    window.addEventListener("hashchange", follow);
    figure.hidden = false;
    choose(sweeps[0]).then(follow);
  }
}
