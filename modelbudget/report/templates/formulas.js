// Values of the graph of formulas (architecture/evaluators/graph.py).
"use strict";

const OPERATIONS = {
  "+": (x, y) => x + y,
  "-": (x, y) => x - y,
  "*": (x, y) => x * y,
  c: (x, y) => Math.ceil(x / y),
  p: (x) => Number(x > 0),
  m: (x, y) => Math.max(x, y),
};

// A column of rows, some of which are copies of earlier ones (architecture/evaluators/repeats.py).
function withRepeats(column, [since, distance, length]) {
  const whole = new column.constructor(length.reduce((sum, one) => sum + one, column.length));
  let [place, at] = [0, 0];
  for (let i = 0; i < since.length; i += 1) {
    whole.set(column.subarray(place, (place += since[i])), at);
    at += since[i];
    // A copy that is longer than its distance repeats what is between.
    for (let left = length[i]; left > 0; left -= distance[i]) {
      const n = Math.min(left, distance[i]);
      whole.copyWithin(at, at - distance[i], at - distance[i] + n);
      at += n;
    }
  }
  whole.set(column.subarray(place), at);
  return whole;
}

// Columns of numbers as `calculator_columns.py` writes them: operands, and copies of them.
function columnsOf(bytes, [nodes, copies]) {
  let place = 0;
  const next = (length) => Int32Array.from(bytes.subarray(place, (place += length)));
  const count = (column, holds) => column.reduce((n, one) => n + holds(one), 0);

  // One byte, or three.
  function numbers(length) {
    const column = next(length);
    const far = count(column, (one) => one >= 128);
    for (let i = 0, at = place; i < length; i += 1) {
      if (column[i] >= 128) column[i] = ((column[i] - 128) << 16) + (bytes[at] << 8) + bytes[far + at++];
    }
    place += 2 * far;
    return column;
  }

  // A reference is the number of references since the same one, or, if 0, of steps since the last new one.
  function references() {
    const column = next(nodes);
    const ago = numbers(count(column, (one) => one === 128));
    const steps = numbers(count(ago, (one) => one === 0));
    let [k, n, last] = [0, 0, 0];
    column.forEach((one, i) => {
      if (one !== 128) return;
      if (ago[k] === 0) last += steps[n] % 2 ? -(steps[n] + 1) / 2 : steps[n] / 2;
      n += ago[k] === 0;
      ago[k] = ago[k] === 0 ? last : ago[k - ago[k]];
      column[i] = -ago[k++];
    });
    return column;
  }

  return [references(), references(), numbers(copies), numbers(copies), numbers(copies)];
}

// Returns a function of fields, which returns a function of a node: it computes this node, and what it
// needs, once for these fields.
function evaluator({ fields, constants, lengths, ...rows }, bytes) {
  const [ofLeft, ofRight, ...copies] = columnsOf(bytes, lengths);
  const [codes, left, right] = [new TextEncoder().encode(rows.operations), ofLeft, ofRight].map((column) => withRepeats(column, copies));
  const at = (operands, node) => (operands[node] > 0 ? node - operands[node] : -operands[node]);
  const values = new Float64Array(codes.length);
  const turns = new Int32Array(codes.length); // whose value a node has
  let turn = 0;

  return (given) => {
    const ours = (turn += 1);
    return function value(node) {
      if (turns[node] === ours) return values[node];
      const operation = String.fromCharCode(codes[node]);
      if (operation === "f") values[node] = Number(given[fields[Math.abs(left[node])]]);
      else if (operation === "k") values[node] = constants[Math.abs(left[node])];
      else values[node] = OPERATIONS[operation](value(at(left, node)), value(at(right, node)));
      turns[node] = ours;
      return values[node];
    };
  };
}

// What the functions of `page_functions.py` call, which are in Vega's syntax.
const CALLED = {
  ...Object.fromEntries(["ceil", "floor", "round", "min", "max", "pow"].map((name) => [name, Math[name]])),
  format: (x) => x.toLocaleString("en-US"),
  split: (text, by) => text.split(by),
  join: (words, by) => words.join(by),
  slice: (words, first, end) => words.slice(first, end),
  indexof: (words, word) => words.indexOf(word),
  count: (word, words, number) => Array.from({ length: number }, (_, i) => words[i % words.length]).filter((one) => one === word).length,
};
