// Decompresses data that is embedded in the page.
"use strict";

async function unpack(name) {
  const { textContent } = document.querySelector(`script[data-packed="${name}"]`);
  const bytes = Uint8Array.from(atob(textContent), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(plain).json();
}
