// Values of the graph of formulas (readings/graph.py) and of Vega's expressions.
"use strict";

const OPERATIONS = {
  "+": (x, y) => x + y,
  "-": (x, y) => x - y,
  "*": (x, y) => x * y,
  c: (x, y) => Math.ceil(x / y),
  p: (x) => Number(x > 0),
  m: (x, y) => Math.max(x, y),
};

// A column of rows, some of which are copies of earlier ones (readings/repeats.py).
function withRepeats(column, [since, distance, length]) {
  const whole = [];
  let place = 0;
  for (let i = 0; i < since.length; i += 1) {
    for (const end = place + since[i]; place < end; place += 1) whole.push(column[place]);
    for (let k = 0; k < length[i]; k += 1) whole.push(whole[whole.length - distance[i]]);
  }
  for (; place < column.length; place += 1) whole.push(column[place]);
  return whole;
}

// Columns of numbers as `calculator_columns.py` writes them: one byte, or three for a negative number.
function columnsOf(bytes, lengths) {
  let place = 0;
  return lengths.map((length) => {
    const column = Int32Array.from(bytes.subarray(place, (place += length)));
    const far = column.reduce((n, one) => n + (one >= 128), 0);
    for (let i = 0, at = place; i < length; i += 1) {
      if (column[i] < 128) continue;
      column[i] = -(((column[i] - 128) << 16) + (bytes[at] << 8) + bytes[at + far]);
      at += 1;
    }
    place += 2 * far;
    return column;
  });
}

// Returns a function of a name, fields and nodes that computes these nodes, and what they need. The
// nodes of a name are looked up once.
function evaluator({ fields, constants, lengths, ...rows }, bytes) {
  const [ofLeft, ofRight, ...ofCopies] = columnsOf(bytes, lengths);
  const copies = ofCopies.map((column) => column.map(Math.abs));
  const [operations, left, right] = [rows.operations, ofLeft, ofRight].map((column) => withRepeats(column, copies));
  const isLeaf = (node) => "fk".includes(operations[node]);
  const at = (operands, node) => (operands[node] > 0 ? node - operands[node] : -operands[node]);
  const values = new Float64Array(operations.length);
  const programs = new Map();

  function program(nodes) {
    const seen = new Set();
    const waiting = [...nodes];
    while (waiting.length > 0) {
      const node = waiting.pop();
      if (seen.has(node)) continue;
      seen.add(node);
      if (!isLeaf(node)) waiting.push(at(left, node), at(right, node));
    }
    return Int32Array.from(seen).sort();
  }

  return (name, given, nodes) => {
    if (!programs.has(name)) programs.set(name, program(nodes()));
    for (const node of programs.get(name)) {
      if (operations[node] === "f") values[node] = Number(given[fields[Math.abs(left[node])]]);
      else if (operations[node] === "k") values[node] = constants[Math.abs(left[node])];
      else values[node] = OPERATIONS[operations[node]](values[at(left, node)], values[at(right, node)]);
    }
    return (node) => values[node];
  };
}

// A view of signals alone. Vega's interpreter evaluates them: the page's policy forbids eval.
async function vegaSignals(signals) {
  const options = { mode: "vega", renderer: "none", ast: true, actions: false, defaultStyle: false, tooltip: { disableDefaultStyle: true } };
  return (await embed(document.createElement("div"), { signals }, options)).view;
}
