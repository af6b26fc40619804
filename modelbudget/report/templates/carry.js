// Gives the tables that the page carries back as files.
"use strict";

{
  const tables = JSON.parse(document.getElementById("tables").textContent);

  async function save(name) {
    const packed = Uint8Array.from(atob(tables[name]), (letter) => letter.charCodeAt(0));
    const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([await new Response(plain).blob()], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  for (const button of document.querySelectorAll("[data-table]")) {
    button.hidden = !Object.hasOwn(tables, button.dataset.table);
    button.addEventListener("click", () => save(button.dataset.table));
  }
}
