// Decompresses data that is embedded in the page.
"use strict";

// Base85 with its letters as in `payload.py`: four bytes are five letters, the first one highest.
function bytesOf(text) {
  const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%/()*+-;,=.?@^_`{|}~";
  const digits = new Uint8Array(128);
  [...LETTERS].forEach((letter, i) => { digits[letter.charCodeAt(0)] = i; });
  const missing = (5 - (text.length % 5)) % 5;
  const padded = text + "~".repeat(missing);
  const found = new DataView(new ArrayBuffer((padded.length / 5) * 4));
  for (let i = 0; i < padded.length; i += 5) {
    let value = 0;
    for (let k = i; k < i + 5; k++) value = 85 * value + digits[padded.charCodeAt(k)];
    found.setUint32((i / 5) * 4, value);
  }
  return new Uint8Array(found.buffer, 0, found.byteLength - missing);
}

async function unpack(name) {
  const { textContent } = document.querySelector(`script[data-packed="${name}"]`);
  const plain = new Blob([bytesOf(textContent)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(plain).json();
}
