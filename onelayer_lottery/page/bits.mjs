// Masks: one bit for each position, packed or entropy-coded ("ans").
import {demand} from './refusal.mjs';

const TOTAL = 16384;
const LOWEST = 65536;

// The packed bits of a mask of `size` positions, `kept` of which are ones.
export function decodedMask(coding, payload, size, kept, what) {
  const packed = coding === 'ans' ? decodeAns(payload, size, kept, what) : payload;
  checkPacked(packed, size, what);
  let found = 0;
  for (let byte of packed) for (; byte; byte &= byte - 1) found++;
  demand(found === kept, `the ${what} is damaged: ${found} positions are kept, ${kept} were stated`);
  return packed;
}

export function checkPacked(packed, size, what) {
  const bytes = Math.ceil(size / 8);
  demand(packed.length === bytes,
    `the ${what} is damaged: ${packed.length} bytes were found, ${size} positions need ${bytes}`);
  demand(!(size % 8) || packed[bytes - 1] >> size % 8 === 0,
    `the ${what} is damaged: the unused bits of the last byte are not zero`);
}

function decodeAns(payload, size, kept, what) {
  const check = (valid, reason) => demand(valid, `the ${what} is damaged: ${reason}`);
  check(payload.length * 128 >= size, `${payload.length} bytes are too few for ${size} positions`);
  const count = Math.ceil(size / 8);
  const lanes = Math.ceil(count / 512);
  check(payload.length >= 4 * lanes, `${payload.length} bytes are too few for the lanes' states`);
  const view = new DataView(payload.buffer, payload.byteOffset, payload.length);
  const states = Uint32Array.from({length: lanes}, (_, lane) => view.getUint32(4 * lane, true));
  check(states.every(state => state >= LOWEST), 'the first state of a lane is out of range');
  const start = frequencies(kept, size);
  const valueOf = new Uint8Array(TOTAL);
  for (let value = 0; value < 256; value++) valueOf.fill(value, start[value], start[value + 1]);
  const packed = new Uint8Array(count);
  const last = payload.length - 1;
  let at = 4 * lanes;
  for (let i = 0, lane = 0; i < count; i++, lane = lane + 1 === lanes ? 0 : lane + 1) {
    const slot = states[lane] % TOTAL;
    const value = valueOf[slot];
    packed[i] = value;
    let state = (start[value + 1] - start[value]) * (states[lane] >>> 14) + slot - start[value];
    if (state < LOWEST) {
      check(at < last, 'the coded mask ends too early');
      state = state * 65536 + view.getUint16(at, true);
      at += 2;
    }
    states[lane] = state;
  }
  check(states.every(state => state === LOWEST), 'a lane does not end in the state it began with');
  const length = Math.max(at, Math.ceil(size / 128));
  check(payload.length === length && payload.subarray(at).every(byte => byte === 0),
    'bytes follow the end of the coded mask');
  return packed;
}

// Cumulative frequencies of the 256 byte values, out of TOTAL.
function frequencies(kept, size) {
  const whole = 4096n;
  let one = (2n * BigInt(kept) * whole + BigInt(size)) / (2n * BigInt(size));
  one = one < 1n ? 1n : one > whole - 1n ? whole - 1n : one;
  const start = new Uint32Array(257);
  let weight = 0n;
  for (let value = 0; value < 256; value++) {
    let ones = 0n;
    for (let rest = value; rest; rest &= rest - 1) ones++;
    weight += one ** ones * (whole - one) ** (8n - ones);
    start[value + 1] = Number((BigInt(TOTAL - 256) * weight) >> 96n) + value + 1;
  }
  return start;
}
