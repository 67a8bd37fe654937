// The subword model of a ticket: text to symbols and back, as fairseq's encoders do it.
import {demand, quoted} from './refusal.mjs';
import {utf8} from './container.mjs';
import {parseJson} from './json.mjs';
import {pythonRstrip} from './dictionary.mjs';
import {SentencePiece} from './sentencepiece.mjs';

export function subwordsOf(bpe) {
  if (!bpe) return {encode: text => text, decode: text => text};
  const model = bpe.kind === 'sentencepiece' ? new SentencePiece(bpe.content)
    : bpe.kind === 'gpt2' ? new ByteMerges(bpe.content) : new Merges(bpe);
  return {
    encode: text => model.encode(text.replace(OVERLONG, '$1 ')),
    decode: text => model.decode(text),
  };
}

// Merging takes time that grows with the square of a word's length.
const OVERLONG = /(\S{1000})(?=\S)/gu;

// The first of the parts of a word that were merged earliest in training, again and again.
function mergedParts(parts, ranks) {
  for (;;) {
    let best = Infinity, pair = null;
    for (let i = 0; i + 1 < parts.length; i++) {
      const rank = ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
      if (rank < best) [best, pair] = [rank, [parts[i], parts[i + 1]]];
    }
    if (!pair) return parts;
    const merged = [];
    for (let i = 0; i < parts.length; i++) {
      const both = i + 1 < parts.length && parts[i] === pair[0] && parts[i + 1] === pair[1];
      merged.push(both ? parts[i] + parts[++i] : parts[i]);
    }
    parts = merged;
  }
}

// The ranks of the pairs in the lines of codes or merges.
function readRanks(text, kind, {header, fields}) {
  const ranks = new Map(), made = new Set();
  (text.endsWith('\n') ? text.slice(0, -1) : text).split('\n').forEach((line, number) => {
    if (number === 0 && header) return;
    const parts = line.replace(/\r$/, '').split(' ');
    demand(parts.length === fields && parts.every(part => part) && !line.includes('\0'),
      `line ${number + 1} of the subword model of ${kind} is ${quoted(line)}; expected ${fields} fields separated by a space`);
    const merged = parts[0] + parts[1], pair = `${parts[0]} ${parts[1]}`;
    demand(kind !== 'fastbpe' || !made.has(merged),
      `line ${number + 1} of the subword model of ${kind} merges ${quoted(merged)} again`);
    made.add(merged);
    if (!ranks.has(pair)) ranks.set(pair, number);
  });
  return ranks;
}

// fastBPE and subword-nmt: parts of a word but the last one end in @@.
class Merges {
  constructor({kind, content}) {
    const text = utf8(content);
    demand(text !== null, `the subword model of ${kind} is not text in UTF-8`);
    const version = kind === 'subword_nmt' && text.startsWith('#version:');
    this.kind = kind;
    // Codes without a version count the end of a word as a symbol of its own.
    this.apart = kind === 'subword_nmt' && !/^#version: *0\.2/.test(text);
    this.ranks = readRanks(text, kind, {header: version, fields: kind === 'fastbpe' ? 3 : 2});
    this.known = new Map();
  }

  encode(text) {
    const words = this.kind === 'fastbpe' ? text.split(/[ \n]/) : text.replace(/^[\r\n ]+|[\r\n ]+$/g, '').split(' ');
    return words.filter(word => word).map(word => this.parts(word)).join(' ');
  }

  parts(word) {
    if (!this.known.has(word)) {
      if (this.known.size > 20000) this.known.clear();
      const letters = [...word];
      if (this.apart) letters.push('</w>');
      else letters[letters.length - 1] += '</w>';
      const merged = mergedParts(letters, this.ranks);
      let last = merged.pop();
      if (last === '</w>' && merged.length) last = merged.pop();
      merged.push(last.replace(/<\/w>$/, ''));
      this.known.set(word, merged.join('@@ '));
    }
    return this.known.get(word);
  }

  decode(text) {
    return pythonRstrip(`${text} `.replaceAll('@@ ', ''));
  }
}

// GPT-2's: bytes, shown as letters, are merged; a part becomes its number.
class ByteMerges {
  constructor(content) {
    const zero = content.indexOf(0);
    demand(zero >= 0, 'the subword model of gpt2 is not of two files');
    const [vocabulary, merges] = [content.subarray(0, zero), content.subarray(zero + 1)].map(utf8);
    demand(vocabulary !== null && merges !== null, 'the subword model of gpt2 is not text in UTF-8');
    this.numbers = parseJson(vocabulary, 'subword model of gpt2');
    demand(this.numbers instanceof Map && [...this.numbers.values()].every(n => typeof n === 'bigint' && n >= 0n && n < 1n << 31n),
      'the subword model of gpt2 has no JSON object of symbols and their indices');
    this.ranks = readRanks(merges, 'gpt2', {header: true, fields: 2});
    this.parts = new Map([...this.numbers].map(([part, number]) => [String(number), part]));
    const plain = byte => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    let next = 256;
    this.letters = Array.from({length: 256}, (_, byte) => String.fromCharCode(plain(byte) ? byte : next++));
    this.bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
  }

  encode(text) {
    const words = text.match(/'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu) ?? [];
    const found = [];
    for (const word of words) {
      const letters = Array.from(new TextEncoder().encode(word), byte => this.letters[byte]);
      for (const part of mergedParts(letters, this.ranks)) {
        demand(this.numbers.has(part), `the subword model has no number for ${quoted(part)}`);
        found.push(this.numbers.get(part));
      }
    }
    return found.join(' ');
  }

  decode(text) {
    const letters = text.split(' ').map(number => this.parts.get(number) ?? number).join('');
    return new TextDecoder().decode(Uint8Array.from(letters, letter => this.bytes.get(letter) ?? 63));
  }
}
