// A ticket: settings, frozen tensors by role, masks by layer, what was trained densely,
// dictionaries and the subword model; each checked as docs/ticket-format.md asks.
import {demand, quoted} from './refusal.mjs';
import {mapping, record} from './json.mjs';
import {openContainer, utf8} from './container.mjs';
import {demandRoom} from './memory.mjs';
import {checkPacked, decodedMask} from './bits.mjs';
import {checkedConfiguration} from './configuration.mjs';

const INITS = ['kaiming-uniform', 'xavier-uniform', 'kaiming-normal', 'signed-constant', 'normal-0.02'];
const SUBWORDS = ['sentencepiece', 'fastbpe', 'subword_nmt', 'gpt2'];

export async function readTicket(bytes) {
  const {tables, payloads, digest} = await openContainer(bytes);
  const sizes = Object.fromEntries([...payloads].map(([name, {data}]) => [name, data.length]));
  const settings = checkedSettings(tables.settings);
  const frozen = checkedFrozen(tables.frozen);
  const masks = checkedMasks(tables.masks, frozen, payloads, settings.keep);
  takeValues(frozen, masks, payloads);
  const tied = mapping(tables.tied, 'tied');
  for (const [name, layer] of tied)
    demand(typeof layer === 'string' && masks.has(layer) && !masks.has(name),
      `${quoted(name)} cannot be tied to ${quoted(layer)}: the latter must be a masked layer, the former not`);
  let bpe = null;
  if (tables.bpe !== null) {
    demand(SUBWORDS.includes(tables.bpe), `its bpe ${quoted(tables.bpe)} is unknown`);
    bpe = {kind: tables.bpe, content: takeBytes(payloads, 'bpe')};
  }
  const dense = new Map(), dictionaries = {};
  for (const [name, payload] of payloads) {
    const [kind, ...rest] = name.split('/');
    const key = rest.join('/');
    if (kind === 'dense') dense.set(key, {shape: payload.shape, values: floats(payload, name)});
    else {
      demand(kind === 'dictionary' && /^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$/.test(key),
        `payload ${quoted(name)} belongs to nothing`);
      dictionaries[key] = utf8(takeBytes(payloads, name));
      demand(dictionaries[key] !== null, `payload ${quoted(name)} is not text in UTF-8`);
    }
  }
  const config = checkedConfiguration(tables.config, settings);
  checkSigns(masks, config.model.mask_method ?? 'topk');
  const text = tables.text === null ? null : checkedText(tables.text);
  return {settings, frozen, masks, tied, bpe, text, dense, dictionaries, config, digest, sizes};
}

function checkedSettings(table) {
  const settings = record(table, 'settings',
    {seed: 'int', init: 'text', fan: 'text', keep: 'int float', stream: 'int'});
  const {seed, init, fan, keep, stream} = settings;
  demand(seed >= 0n && seed < 1n << 63n, `its seed is ${seed}; expected one from 0 to 2^63 - 1`);
  demand(INITS.includes(init), `its init is ${quoted(init)}; expected one of ${INITS.join(', ')}`);
  demand(['kept', 'full'].includes(fan), `its fan is ${quoted(fan)}; expected kept or full`);
  demand(keep > 0 && keep <= 1, `its keep is ${keep}; expected a fraction in (0, 1]`);
  demand(stream === 1n, `its stream is ${stream}; expected 1`);
  return {...settings, keep: Number(keep)};
}

function checkedText(table) {
  const text = record(table, 'text', {moses: 'object null', lower: 'bool'});
  demand(text.moses || text.lower, 'its text has no step');
  if (!text.moses) return text;
  const moses = record(text.moses, "text's moses", {source: 'text', target: 'text', dashes: 'bool'});
  for (const language of [moses.source, moses.target])
    demand(/^[a-z]{2,3}$/.test(language), `its text's language ${quoted(language)} is not a code such as de`);
  return {...text, moses};
}

function checkedFrozen(table) {
  const frozen = new Map();
  for (const [role, row] of mapping(table, 'frozen')) {
    const what = `frozen tensor ${quoted(role)}`;
    const {shape, gain, padding, sha256: digest} = record(row, what,
      {shape: 'list', gain: 'int float', padding: 'int null', sha256: 'text'});
    demand(shape.length === 2 && shape.every(n => typeof n === 'bigint' && n > 0n),
      `the ${what} has shape ${quoted(shape)}; expected rows and columns`);
    demand(gain > 0, `the ${what} has gain ${gain}; expected one above 0`);
    demand(padding === null || (padding >= 0n && padding < shape[0]),
      `the ${what} has padding ${padding}; expected one of its ${shape[0]} rows`);
    demand(/^[0-9a-f]{64}$/.test(digest), `the digest of the ${what} is malformed`);
    frozen.set(role, {shape: shape.map(Number), gain: Number(gain), digest,
      padding: padding === null ? null : Number(padding), values: null});
  }
  return frozen;
}

function checkedMasks(table, frozen, payloads, keep) {
  const masks = new Map(), idle = new Set(frozen.keys());
  let positions = 0;
  for (const [layer, row] of mapping(table, 'masks')) {
    const what = `mask of ${quoted(layer)}`;
    const {role, kept, coding} = record(row, what, {role: 'text', kept: 'int', coding: 'text'});
    demand(['bits', 'ans'].includes(coding), `the ${what} has unknown coding ${quoted(coding)}`);
    demand(frozen.has(role), `the ${what} has role ${quoted(role)}, of no tensor`);
    idle.delete(role);
    const [rows, columns] = frozen.get(role).shape;
    const size = rows * columns, expected = roundHalfEven(keep * size);
    demand(Number(kept) === expected,
      `the ${what} keeps ${kept} of ${size}; keep ${keep} means ${expected}`);
    positions += size;
    demandRoom(4 * positions); // before it is decoded: coded, it may be a sixteenth of its bits
    const bits = decodedMask(coding, takeBytes(payloads, `mask/${layer}`), size, expected, what);
    let signs = null;
    if (payloads.has(`signs/${layer}`)) {
      signs = takeBytes(payloads, `signs/${layer}`);
      checkPacked(signs, expected, `signs of ${quoted(layer)}`);
    }
    masks.set(layer, {role, kept: expected, bits, signs});
  }
  demand(!idle.size, `the frozen tensor ${quoted([...idle][0])} has no mask`);
  return masks;
}

function roundHalfEven(value) {
  const low = Math.floor(value), rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low;
}

function takeValues(frozen, masks, payloads) {
  for (const [role, tensor] of frozen) {
    const name = `values/${role}`;
    if (!payloads.has(name)) continue;
    const over = [...masks.values()].filter(mask => mask.role === role);
    const {shape} = payloads.get(name);
    tensor.values = floats(payloads.get(name), name);
    payloads.delete(name);
    demand(over.length === 1 && shape.length === 1 && shape[0] === over[0].kept,
      `payload ${quoted(name)} does not hold one value for each kept position of one mask`);
  }
}

function takeBytes(payloads, name) {
  const payload = payloads.get(name);
  demand(payload, `payload ${quoted(name)} is missing`);
  demand(payload.dtype === 'U8' && payload.shape.length === 1, `${quoted(name)} is not of bytes`);
  payloads.delete(name);
  return payload.data;
}

function floats({dtype, data}, name) {
  demand(dtype !== 'U8', `payload ${quoted(name)} is not of numbers`);
  const copy = data.slice().buffer;
  const values = dtype === 'F32' ? new Float32Array(copy) : Float32Array.from(new Uint16Array(copy), half);
  demand(values.every(Number.isFinite), `payload ${quoted(name)} has a NaN or infinity`);
  return values;
}

// A number of 16 bits: sign, 5 bits of exponent, 10 of fraction.
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

function checkSigns(masks, method) {
  for (const [name, {signs}] of masks)
    demand((signs !== null) === (method === 'signed'),
      `it has ${signs ? 'signs' : 'no signs'} for ${name}, but its --mask-method is ${method}`);
}
