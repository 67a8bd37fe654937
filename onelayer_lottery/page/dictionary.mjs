// fairseq's dictionaries, and text as Python splits it.
import {demand, quoted} from './refusal.mjs';

// What Python takes for white space, which is not quite what JavaScript does.
export const WHITE = '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const SPACES = new RegExp(`[${WHITE}]+`, 'u'), START = new RegExp(`^[${WHITE}]+`, 'u'), SPACE = new RegExp(`[${WHITE}]`, 'u');

export function pythonSplit(text) {
  return text.split(SPACES).filter(word => word);
}

// A loop, because /\s+$/ takes time with the square of the spaces that are not at the end.
export function pythonRstrip(text) {
  let end = text.length;
  while (end && SPACE.test(text[end - 1])) end--;
  return text.slice(0, end);
}

export function pythonStrip(text) {
  return pythonRstrip(text.replace(START, ''));
}

export class Dictionary {
  // `more` follows the symbols of the file.
  constructor(text, side, {more = []} = {}) {
    this.symbols = ['<s>', '<pad>', '</s>', '<unk>'];
    this.indices = new Map(this.symbols.map((symbol, index) => [symbol, index]));
    const fail = reason => demand(false, `its dictionary of the ${side} cannot be read: ${reason}`);
    const lines = text.endsWith('\n') ? text.slice(0, -1).split('\n') : text.split('\n');
    for (const line of text ? lines : []) {
      let [, symbol, count] = /^([^]*) ([^ ]*)$/.exec(pythonRstrip(line)) ?? fail(`${quoted(line)} is not a symbol and its count`);
      const overwrite = count === '#fairseq:overwrite';
      if (overwrite) [, symbol, count] = /^([^]*) ([^ ]*)$/.exec(symbol) ?? fail(`${quoted(line)} has no count`);
      if (!/^[+-]?[0-9]+$/.test(count)) fail(`${quoted(line)} has no count`);
      if (this.indices.has(symbol) && !overwrite) fail(`it has ${quoted(symbol)} twice`);
      this.add(symbol);
    }
    for (const symbol of more) if (!this.indices.has(symbol)) this.add(symbol);
  }

  add(symbol) {
    this.indices.set(symbol, this.symbols.length);
    this.symbols.push(symbol);
  }

  get size() {
    return this.symbols.length;
  }

  encode(line) {
    return pythonSplit(line).map(symbol => this.indices.get(symbol) ?? 3);
  }

  // Without <s> and </s>, as fairseq shows it.
  decode(ids) {
    return ids.filter(id => id !== 0 && id !== 2).map(id => this.symbols[id]).join(' ');
  }
}
