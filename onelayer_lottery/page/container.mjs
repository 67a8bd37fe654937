// The frame of a ticket: a safetensors file whose digests are right, and no other.
// docs/ticket-format.md defines it; no check relies on the digests.
import {demand, quoted} from './refusal.mjs';
import {mapping, parseJson, record} from './json.mjs';

const MAX_HEADER = 4 * 2 ** 20;
const ITEM_BYTES = {F32: 4, F16: 2, U8: 1};
const TABLES = ['payloads', 'settings', 'frozen', 'masks', 'tied', 'config', 'bpe'];

export async function openContainer(bytes) {
  demand(bytes.length, 'it is empty');
  demand(bytes.length > 8 && bytes[8] === 0x7b, 'it is not a ticket');
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  demand(length <= MAX_HEADER, 'it is not a ticket');
  demand(8 + length <= bytes.length, 'it is truncated: its header is not complete');
  const header = bytes.subarray(8, 8 + length);
  const text = utf8(header);
  demand(text !== null, 'it is damaged: its header is not valid JSON');
  const entries = mapping(parseJson(text, 'header'), 'header');
  const metadata = checkedMetadata(entries.get('__metadata__'));
  entries.delete('__metadata__');
  const tables = {text: null};
  for (const key of Object.keys(metadata).filter(name => [...TABLES, 'text'].includes(name)))
    tables[key] = parseJson(metadata[key], key);
  const payloads = placed(entries, bytes.subarray(8 + length));
  const stated = mapping(tables.payloads, 'payloads');
  demand(stated.size === payloads.size && [...stated.keys()].every(name => payloads.has(name)),
    'its payloads are not those that it states');
  for (const [name, {data}] of payloads)
    demand(await sha256(data) === stated.get(name),
      `payload ${quoted(name)} is damaged: its digest is not the stated one`);
  await checkWhole(bytes, text, metadata.sha256);
  return {tables, payloads, digest: metadata.sha256};
}

export async function sha256(bytes) {
  return hexadecimal(await sha256Bytes(bytes));
}

export async function sha256Bytes(bytes) {
  demand(globalThis.crypto?.subtle,
    'this browser checks digests only on pages that are opened from disk or over https');
  return new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
}

function hexadecimal(bytes) {
  return Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('');
}

// Text in UTF-8, or null where the bytes are not.
export function utf8(bytes) {
  try {
    return new TextDecoder('utf-8', {fatal: true, ignoreBOM: true}).decode(bytes);
  } catch {
    return null;
  }
}

function checkedMetadata(metadata) {
  demand(metadata instanceof Map && metadata.get('format') === 'onelayer_lottery.ticket',
    'it is not a ticket but another safetensors file');
  const version = metadata.get('version');
  const newer = /^[1-9][0-9]{0,8}$/.test(version) && Number(version) > 2;
  demand(!newer, `it is of format ${version}, and this page reads formats 1 and 2; make a page of it with the program that wrote it`);
  demand(['1', '2'].includes(version), `its version is ${quoted(version)}, not 1 or 2`);
  const keys = ['format', 'version', 'sha256', ...TABLES, ...version === '2' ? ['text'] : []];
  return record(metadata, 'metadata', Object.fromEntries(keys.map(key => [key, 'text'])));
}

// Where the payloads are, by name: they cover the rest of the file without gaps.
function placed(entries, rest) {
  const payloads = new Map();
  for (const [name, entry] of entries) {
    const what = `entry of payload ${quoted(name)}`;
    const {dtype, shape, data_offsets: offsets} =
      record(entry, what, {dtype: 'text', shape: 'list', data_offsets: 'list'});
    const lowest = shape.length === 1 ? 0 : 1;
    demand(Object.hasOwn(ITEM_BYTES, dtype) && offsets.length === 2 && shape.length <= 8 &&
      [...shape, ...offsets].every(number => typeof number === 'bigint') &&
      shape.every(number => number >= lowest), `the ${what} is malformed`);
    const count = shape.reduce((a, b) => a * b, 1n);
    demand(offsets[1] - offsets[0] === count * BigInt(ITEM_BYTES[dtype]),
      `the ${what} does not have the length of its shape`);
    payloads.set(name, {dtype, shape: shape.map(Number), start: offsets[0], end: offsets[1]});
  }
  let position = 0n;
  const order = [...payloads].sort(([, a], [, b]) => Number(a.start - b.start) || Number(a.end - b.end));
  for (const [name, {start, end}] of order) {
    demand(start === position, `${quoted(name)} is not where it must be`);
    position = end;
  }
  const state = position > rest.length ? 'truncated' : 'damaged';
  demand(position === BigInt(rest.length),
    `it is ${state}: ${rest.length} bytes of payload, not ${position}`);
  for (const payload of payloads.values())
    payload.data = rest.subarray(Number(payload.start), Number(payload.end));
  return payloads;
}

async function checkWhole(bytes, header, digest) {
  demand(/^[0-9a-f]{64}$/.test(digest), 'it is damaged: it has no digest');
  const at = header.indexOf(digest);
  const start = 8 + new TextEncoder().encode(header.slice(0, at)).length;
  const blank = bytes.slice();
  blank.fill(0x30, start, start + 64);
  demand(header.indexOf(digest, at + 1) < 0 && await sha256(blank) === digest,
    'it is damaged: its digest is not the stated one');
}
