// Values of the graph of formulas (architecture/evaluators/graph.py) and of Vega's expressions.
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
  const n = length.reduce((sum, one) => sum + one, column.length);
  const whole = typeof column === "string" ? new Array(n) : new Int32Array(n);
  let [place, at] = [0, 0];
  for (let i = 0; i < since.length; i += 1) {
    for (const end = place + since[i]; place < end; place += 1, at += 1) whole[at] = column[place];
    for (const end = at + length[i]; at < end; at += 1) whole[at] = whole[at - distance[i]];
  }
  for (; place < column.length; place += 1, at += 1) whole[at] = column[place];
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

// Vega's expressions, as vega_constraints.py writes them, as functions of the values of names. Vega
// itself would take half a second of a phone's CPU.
const LITERALS = { null: null, true: true, false: false };
const FUNCTIONS = {
  ...Object.fromEntries(["ceil", "floor", "round", "min", "max", "pow"].map((name) => [name, Math[name]])),
  format: (x) => x.toLocaleString("en-US"),
  split: (text, by) => text.split(by),
  join: (words, by) => words.join(by),
  slice: (words, first, end) => words.slice(first, end),
  indexof: (words, word) => words.indexOf(word),
};
const BINARY = [
  { "||": (x, y) => x() || y() },
  { "&&": (x, y) => x() && y() },
  { "==": (x, y) => x() == y(), "!=": (x, y) => x() != y() },
  { "<=": (x, y) => x() <= y(), ">=": (x, y) => x() >= y(), "<": (x, y) => x() < y(), ">": (x, y) => x() > y() },
  { "+": (x, y) => x() + y(), "-": (x, y) => x() - y() },
  { "*": (x, y) => x() * y(), "/": (x, y) => x() / y(), "%": (x, y) => x() % y() },
]; // by precedence, the weakest first
const compiledTexts = new Map();

function compiled(text) {
  if (!compiledTexts.has(text)) compiledTexts.set(text, parsed(text));
  return compiledTexts.get(text);
}

function parsed(text) {
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|'[^']*'|[\w.]+|[<>=!]=|&&|\|\||\S/g);
  let at = 0;
  const take = (token) => tokens[at] === token && (at += 1);

  function listed(end) {
    const parts = [];
    for (; !take(end); take(",")) parts.push(choice());
    return (values) => parts.map((part) => part(values));
  }

  function choice() {
    const test = binary(0);
    if (!take("?")) return test;
    const yes = choice();
    take(":");
    const no = choice();
    return (values) => (test(values) ? yes(values) : no(values));
  }

  function binary(level) {
    if (level === BINARY.length) return unary();
    let left = binary(level + 1);
    for (let name; (name = Object.keys(BINARY[level]).find(take)); ) {
      const [x, y, operation] = [left, binary(level + 1), BINARY[level][name]];
      left = (values) => operation(() => x(values), () => y(values));
    }
    return left;
  }

  function unary() {
    const token = tokens[at];
    at += 1;
    if (token === "(") {
      const inner = choice();
      take(")");
      return inner;
    }
    if (token === "[") return listed("]");
    if (token === "!" || token === "-") {
      const x = unary();
      return (values) => (token === "!" ? !x(values) : -x(values));
    }
    const constant = token.startsWith("'") ? token.slice(1, -1) : /^["\d]/.test(token) ? JSON.parse(token) : LITERALS[token];
    if (constant !== undefined) return () => constant;
    if (!take("(")) return (values) => values[token];
    const operands = listed(")");
    return (values) => FUNCTIONS[token](...operands(values));
  }

  return choice();
}
