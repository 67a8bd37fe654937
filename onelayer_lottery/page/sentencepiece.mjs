// sentencepiece's models, unigram and BPE: normalised text to pieces, as its library does.
import {demand} from './refusal.mjs';
import {utf8} from './container.mjs';

const NORMAL = 1, UNKNOWN_PIECE = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6;
const SPACE_MARK = '\u2581';
const bytesOf = text => new TextEncoder().encode(text);

export class SentencePiece {
  constructor(content) {
    const model = readModel(content);
    Object.assign(this, model);
    this.pieces = new Map();
    this.longest = 1;
    let lowest = Infinity;
    model.listed.forEach(({text, score, kind}) => {
      if (kind === NORMAL) lowest = Math.min(lowest, score);
      if (![NORMAL, USER, UNUSED].includes(kind)) return;
      demand(!this.pieces.has(text), 'the subword model has a piece twice');
      this.pieces.set(text, {score, kind});
      this.longest = Math.max(this.longest, [...text].length);
    });
    this.unknownScore = lowest - 10;
    this.own = model.listed.filter(({kind}) => kind === USER).map(({text}) => text)
      .sort((a, b) => b.length - a.length);
  }

  encode(text) {
    const normal = this.normalized(text);
    const found = this.bpe ? this.mergedPieces(normal) : this.bestPieces(normal);
    const shown = [];
    let before = false;
    for (const piece of found) {
      const unknown = !this.pieces.has(piece);
      if (unknown && this.byteFallback) {
        for (const byte of bytesOf(piece)) shown.push(`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
      } else if (unknown && before) shown[shown.length - 1] += piece;
      else shown.push(piece);
      before = unknown;
    }
    return shown.join(' ');
  }

  decode(text) {
    return text.replaceAll(' ', '').replaceAll(SPACE_MARK, ' ').trim();
  }

  // Characters as the model's table maps them, one space for many, spaces as marks.
  normalized(text) {
    let found = '';
    const bytes = bytesOf(text.toWellFormed?.() ?? text);
    const starts = this.own.map(bytesOf);
    for (let at = 0; at < bytes.length;) {
      const own = starts.find(piece => piece.every((byte, i) => bytes[at + i] === byte));
      const [normal, used] = own ? [utf8(own), own.length] : this.map(bytes, at);
      found += normal;
      at += used;
    }
    if (this.extraSpaces) found = found.replace(/ +/g, ' ').replace(/^ | $/g, '');
    if (!found) return '';
    if (this.dummyPrefix) found = this.suffixSpaces ? `${found} ` : ` ${found}`;
    return this.escapeSpaces ? found.replaceAll(' ', SPACE_MARK) : found;
  }

  // The longest text at a place that the table maps, or else one character.
  map(bytes, at) {
    const {trie, replacements} = this;
    if (trie.length) {
      let node = offsetOf(trie[0]), length = 0, value = 0;
      for (let i = at; i < bytes.length; i++) {
        node ^= bytes[i];
        const unit = trie[node];
        if (unit === undefined || (unit & 0x800000ff) >>> 0 !== bytes[i]) break;
        node ^= offsetOf(unit);
        if (unit >>> 8 & 1) [length, value] = [i - at + 1, trie[node] & 0x7fffffff];
      }
      if (length) {
        const end = replacements.indexOf(0, value);
        return [utf8(replacements.subarray(value, end < 0 ? replacements.length : end)) ?? '', length];
      }
    }
    const lead = bytes[at], length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    return [utf8(bytes.subarray(at, at + length)) ?? '\ufffd', length];
  }

  // Unigram: the pieces with the highest sum of scores.
  bestPieces(text) {
    const letters = [...text], best = new Float64Array(letters.length + 1).fill(-Infinity);
    const from = new Int32Array(letters.length + 1);
    best[0] = 0;
    for (let start = 0; start < letters.length; start++) {
      let piece = '', single = false;
      for (let end = start + 1; end <= Math.min(letters.length, start + this.longest); end++) {
        piece += letters[end - 1];
        const found = this.pieces.get(piece);
        if (!found || found.kind === UNUSED) continue;
        const score = found.kind === USER ? (end - start) * this.highest - 0.1 : found.score;
        if (end === start + 1) single = true;
        this.better(best, from, start, end, score);
      }
      if (!single) this.better(best, from, start, start + 1, this.unknownScore);
    }
    const found = [];
    for (let end = letters.length; end > 0; end = from[end]) found.unshift(letters.slice(from[end], end).join(''));
    return found;
  }

  better(best, from, start, end, score) {
    const total = Math.fround(best[start] + score);
    if (total > best[end]) {
      best[end] = total;
      from[end] = start;
    }
  }

  // BPE: the two neighbours whose union has the highest score become one, again and again.
  mergedPieces(text) {
    const parts = this.ownParts(text), next = parts.map((_, i) => i + 1), before = parts.map((_, i) => i - 1);
    const queue = new Queue(), halves = new Map();
    const offer = (left, right) => {
      if (left < 0 || right >= parts.length || parts[left].own || parts[right].own) return;
      const whole = parts[left].text + parts[right].text, found = this.pieces.get(whole);
      if (!found) return;
      queue.push({left, right, length: whole.length, score: found.score});
      if (found.kind === UNUSED) halves.set(whole, [parts[left].text, parts[right].text]);
    };
    for (let i = 0; i + 1 < parts.length; i++) offer(i, i + 1);
    for (let pair = queue.pop(); pair; pair = queue.pop()) {
      const {left, right, length} = pair;
      if (!parts[left].text || !parts[right].text || parts[left].text.length + parts[right].text.length !== length) continue;
      parts[left].text += parts[right].text;
      parts[right].text = '';
      next[left] = next[right];
      if (next[left] < parts.length) before[next[left]] = left;
      offer(before[left], left);
      offer(left, next[left]);
    }
    const split = piece => (this.pieces.get(piece)?.kind === UNUSED && halves.has(piece)
      ? halves.get(piece).flatMap(split) : [piece]);
    return parts.filter(part => part.text).flatMap(part => (part.own ? [part.text] : split(part.text)));
  }

  // Letters, and the user's own symbols, which are never split or merged.
  ownParts(text) {
    const found = [];
    for (let at = 0; at < text.length;) {
      const own = this.own.find(piece => text.startsWith(piece, at));
      const part = own ?? String.fromCodePoint(text.codePointAt(at));
      found.push({text: part, own: own !== undefined});
      at += part.length;
    }
    return found;
  }
}

// Pairs by their score, of equal ones the leftmost first: a heap.
class Queue {
  items = [];

  push(item) {
    const {items} = this;
    let at = items.push(item) - 1;
    for (let up = (at - 1) >> 1; at > 0 && isBefore(items[at], items[up]); at = up, up = (at - 1) >> 1)
      [items[at], items[up]] = [items[up], items[at]];
  }

  pop() {
    const {items} = this, top = items[0], end = items.pop();
    if (!items.length) return top;
    items[0] = end;
    for (let at = 0;;) {
      let least = at;
      for (const child of [2 * at + 1, 2 * at + 2])
        if (child < items.length && isBefore(items[child], items[least])) least = child;
      if (least === at) return top;
      [items[at], items[least]] = [items[least], items[at]];
      at = least;
    }
  }
}

function isBefore(a, b) {
  return a.score > b.score || (a.score === b.score && a.left < b.left);
}

// A unit of the table of characters, a double array.
function offsetOf(unit) {
  return (unit >>> 10) << ((unit & 512) >>> 6);
}

// The parts of the model's protocol buffer that matter here.
function readModel(content) {
  const listed = [], trainer = {}, normalizer = {};
  for (const [field, value] of fields(content)) {
    if (field === 1) {
      const piece = {text: '', score: 0, kind: NORMAL};
      for (const [number, part] of fields(value)) {
        if (number === 1) piece.text = utf8(part) ?? '';
        if (number === 2) piece.score = part;
        if (number === 3) piece.kind = part;
      }
      demand(piece.text, 'the subword model has an empty piece');
      listed.push(piece);
    }
    if (field === 2) for (const [number, part] of fields(value)) trainer[number] = part;
    if (field === 3) for (const [number, part] of fields(value)) normalizer[number] = part;
  }
  demand(listed.length && listed.some(({kind}) => kind === UNKNOWN_PIECE),
    'the subword model cannot be read as sentencepiece');
  const kind = trainer[3] ?? 1;
  demand(kind === 1 || kind === 2, 'the subword model of sentencepiece is neither unigram nor BPE');
  const table = normalizer[2] ?? new Uint8Array(0);
  const size = table.length >= 4 ? new DataView(table.buffer, table.byteOffset).getUint32(0, true) : 0;
  demand(!table.length || (size % 4 === 0 && 4 + size <= table.length),
    'the table of characters of the subword model is damaged');
  return {
    listed, bpe: kind === 2, byteFallback: Boolean(trainer[35] ?? 0), suffixSpaces: Boolean(trainer[24] ?? 0),
    highest: Math.max(...listed.filter(piece => piece.kind === NORMAL).map(piece => piece.score), 0),
    dummyPrefix: Boolean(normalizer[3] ?? 1), extraSpaces: Boolean(normalizer[4] ?? 1),
    escapeSpaces: Boolean(normalizer[5] ?? 1),
    trie: new Uint32Array(table.slice(4, 4 + size).buffer), replacements: table.subarray(4 + size),
  };
}

// The fields of a message: numbers, floats or bytes.
function* fields(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const damaged = valid => demand(valid, 'the subword model cannot be read as sentencepiece');
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let shift = 0; shift < 70; shift += 7) {
      damaged(at < bytes.length);
      const byte = bytes[at++];
      value += (byte & 127) * 2 ** shift;
      if (byte < 128) return value;
    }
    return damaged(false);
  };
  while (at < bytes.length) {
    const tag = varint(), field = Math.floor(tag / 8), type = tag % 8;
    damaged(field > 0 && [0, 1, 2, 5].includes(type));
    if (type === 0) yield [field, varint()];
    else {
      const length = type === 2 ? varint() : type === 1 ? 8 : 4;
      damaged(at + length <= bytes.length);
      yield [field, type === 5 ? view.getFloat32(at, true) : bytes.subarray(at, at + length)];
      at += length;
    }
  }
}
