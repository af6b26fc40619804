// Filters and sorts long tables. Without it they are complete, in the order of their series.
for (const table of document.querySelectorAll("table[data-sortable]")) story.near(table).then(() => {
  const form = table.closest("section").querySelector("form.finder");
  const [search, output] = ["input", "output"].map((tag) => form.querySelector(tag));
  const rows = [...table.tBodies].flatMap((group) =>
    [...group.querySelectorAll("tr[data-status]")].map((row) => ({
      row,
      group,
      text: `${row.textContent} ${row.cells[0].title} ${group.rows[0].textContent}`.toLowerCase(),
      name: `${row.cells[0].firstChild.textContent} ${row.cells[0].title}`.toLowerCase(),
    })),
  );
  const sorted = table.createTBody(); // has every row while the table is sorted by a column
  const heads = [...table.tHead.rows[0].cells];

  // A number is a number of the name: 3 finds Llama 3 and Llama 3.2, not LLaMA 33B or 13B.
  const isNumber = (word) => /^\d/.test(word);
  const hasNumber = (name, word) => [...name.matchAll(/\d+(?:\.\d+)*[a-z]*/g)].some(([one]) => one === word || (one.startsWith(word) && !/\d/.test(one[word.length])));

  function find() {
    const wanted = search.value.toLowerCase().split(/\s+/);
    for (const { row, text, name } of rows) row.hidden = !wanted.every((word) => (isNumber(word) ? hasNumber(name, word) : text.includes(word)));
    const shown = rows.filter(({ row }) => !row.hidden).length;
    output.textContent = `${shown} of ${rows.length}`;
  }

  function value(row, column) {
    const cell = row.cells[column];
    if (column === heads.length - 1) return Number(cell.dataset.value ?? 0);
    return cell.className === "number" ? Number(cell.textContent.replaceAll(",", "")) || 0 : cell.textContent;
  }

  function sort(column) {
    const next = { none: "ascending", ascending: "descending", descending: "none" };
    const order = next[heads[column].ariaSort ?? "none"];
    heads.forEach((head, i) => head.setAttribute("aria-sort", i === column ? order : "none"));
    if (order === "none") {
      for (const { row, group } of rows) group.append(row);
    } else {
      const sign = order === "ascending" ? 1 : -1;
      const by = (a, b) => {
        const [x, y] = [value(a.row, column), value(b.row, column)];
        return sign * (typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true }));
      };
      for (const { row } of rows.toSorted(by)) sorted.append(row);
    }
    find();
  }

  heads.forEach((head, column) => {
    head.append(story.made("button", { type: "button", onclick: () => sort(column) }, ...head.childNodes));
    head.setAttribute("aria-sort", "none");
  });
  form.addEventListener("input", find);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  find();
});
