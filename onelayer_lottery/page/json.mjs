// JSON as tickets have it: no key twice, numbers finite, integers of 20 characters.
// An integer becomes a BigInt and any other number a Number, so that they stay apart.
import {Refusal} from './refusal.mjs';

const DEEPEST = 64;
const TOKEN = /[ \t\n\r]*(?:([{}[\],:])|(true|false|null)|"((?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)"|(-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?))/y;

export function parseJson(text, what) {
  let at = 0;
  const fail = () => new Refusal(`it is damaged: its ${what} is not valid JSON`);

  function token() {
    TOKEN.lastIndex = at;
    const found = TOKEN.exec(text);
    if (!found) throw fail();
    at = TOKEN.lastIndex;
    return found;
  }

  function value([whole, mark, word, , number, fraction, exponent], depth) {
    if (depth > DEEPEST) throw fail();
    if (mark === '{') return object(depth);
    if (mark === '[') return array(depth);
    if (mark) throw fail();
    if (word) return word === 'null' ? null : word === 'true';
    if (number === undefined) return string(whole);
    if (!fraction && !exponent) {
      if (number.length > 20) throw fail();
      return BigInt(number);
    }
    if (!Number.isFinite(Number(number))) throw fail();
    return Number(number);
  }

  function string(whole) {
    const found = JSON.parse(whole);
    if (!found.isWellFormed?.() && /\p{Surrogate}/u.test(found)) throw fail();
    return found;
  }

  function object(depth) {
    const found = new Map();
    let next = token();
    while (next[1] !== '}') {
      if (next[1] || next[2] || next[4] !== undefined) throw fail();
      const key = string(next[0]);
      if (found.has(key) || token()[1] !== ':') throw fail();
      found.set(key, value(token(), depth + 1));
      next = token();
      if (next[1] === ',') {
        next = token();
        if (next[1] === '}') throw fail();
      } else if (next[1] !== '}') throw fail();
    }
    return found;
  }

  function array(depth) {
    const found = [];
    let next = token();
    while (next[1] !== ']') {
      found.push(value(next, depth + 1));
      next = token();
      if (next[1] === ',') {
        next = token();
        if (next[1] === ']') throw fail();
      } else if (next[1] !== ']') throw fail();
    }
    return found;
  }

  const found = value(token(), 0);
  if (/[^ \t\n\r]/.test(text.slice(at))) throw fail();
  return found;
}

// The fields of a JSON object, which has exactly these, each of one of its types.
export function record(table, what, types) {
  const names = Object.keys(types);
  const valid = table instanceof Map && table.size === names.length &&
    names.every(name => table.has(name) && types[name].split(' ').includes(typeOf(table.get(name))));
  if (!valid) throw new Refusal(`its ${what} must have the fields ${names.join(', ')}, each of its type`);
  return Object.fromEntries(table);
}

export function mapping(table, what) {
  if (!(table instanceof Map)) throw new Refusal(`its ${what} is not a JSON object`);
  return table;
}

export function typeOf(value) {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'list';
  if (value instanceof Map) return 'object';
  return {bigint: 'int', number: 'float', string: 'text', boolean: 'bool'}[typeof value];
}
