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

async function unpack(name) {
  const [parts, data] = await unpacked(name).json();
  parts.forEach((part, i) => (parts[i] = whole(part, parts)));
  return whole(data, parts);
}

// With the parts that repeat in place of references to them.
function whole(node, parts) {
  if (node === null || typeof node !== "object") return node;
  if (Array.isArray(node)) return node.map((one) => whole(one, parts));
  if ("=" in node) return parts[node["="]];
  return Object.fromEntries(Object.entries(node).map(([key, value]) => [key, whole(value, parts)]));
}

const unpackBytes = async (name) => new Uint8Array(await unpacked(name).arrayBuffer());

function unpacked(name) {
  const { textContent } = document.querySelector(`script[data-packed="${name}"]`);
  const plain = new Blob([bytesOf(textContent)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(plain);
}
