// Values of the graph of formulas (architecture/evaluators/graph.py).
"use strict";

const NEAR = 128; // an operand below is the distance to its node (0: none), another one its number and this more
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

// Columns of numbers as `packing.py` writes them, in three bytes: operands, and copies of them.
function columnsOf(bytes, [nodes, copies]) {
  let place = 0;
  return [nodes, nodes, copies, copies, copies].map((length) => {
    const [high, middle, low] = [0, 1, 2].map(() => bytes.subarray(place, (place += length)));
    return Int32Array.from(low, (one, i) => (high[i] << 16) + (middle[i] << 8) + one);
  });
}

// Returns a function of fields, which returns a function of a node: it computes this node, and what it
// needs, once for these fields.
function evaluator({ fields, constants, lengths, ...rows }, bytes) {
  const [ofLeft, ofRight, ...copies] = columnsOf(bytes, lengths);
  const [codes, left, right] = [new TextEncoder().encode(rows.operations), ofLeft, ofRight].map((column) => withRepeats(column, copies));
  const at = (operands, node) => (operands[node] >= NEAR ? operands[node] - NEAR : operands[node] && node - operands[node]);
  const values = new Float64Array(codes.length);
  const turns = new Int32Array(codes.length); // whose value a node has
  let turn = 0;

  return (given) => {
    const ours = (turn += 1);
    return function value(node) {
      if (turns[node] === ours) return values[node];
      const operation = String.fromCharCode(codes[node]);
      if (operation === "f") values[node] = Number(given[fields[left[node]]]);
      else if (operation === "k") values[node] = constants[left[node]];
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
