// Decompresses data that is embedded in the page.
"use strict";

// Seven bits a character, as in `packing.py`; three characters have 256 more.
function bytesOf(text) {
  const found = new Uint8Array(Math.floor((text.length * 7) / 8));
  let [bits, held] = [0, 0];
  for (let i = 0, place = 0; i < text.length; i += 1) {
    bits = ((bits << 7) | (text.charCodeAt(i) & 127)) & 0x7fff;
    held += 7;
    if (held >= 8) found[place++] = bits >> (held -= 8);
  }
  return found;
}

// Runs a script that is embedded compressed, a third of its size.
async function runPacked(name) {
  const script = document.createElement("script"); // the page's policy has its hash
  script.textContent = await unpack(name);
  document.head.append(script);
  script.remove(); // it has run
}

const unpack = (name) => unpacked(name).json();

function unpacked(name) {
  const { textContent } = document.querySelector(`script[data-packed="${name}"]`);
  const plain = new Blob([bytesOf(textContent)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(plain);
}

// Rows of a table, of which the page has the columns.
const rowsOf = (columns) => (Object.values(columns)[0] ?? []).map((_, i) => Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, column[i]])));
