// Frozen random weights, stream 1: the same bits as in Python, keyed by (seed, role).
import {demand} from './refusal.mjs';
import {sha256, sha256Bytes} from './container.mjs';

// Draw the frozen weight of a role into memory and compare its digest; its index.
export async function drawFrozen(memory, {settings, frozen}, role) {
  const {shape, gain, padding, digest} = frozen.get(role);
  const weight = await drawWeight(memory, {...settings, role, shape, gain});
  const values = memory.view(weight, shape[0] * shape[1]);
  if (padding !== null) values.fill(0, padding * shape[1], (padding + 1) * shape[1]);
  demand(await sha256(values) === digest,
    `the frozen weights of ${role} drawn here differ from the ticket's`);
  return weight;
}

export function drawWeight(memory, {seed, role, shape: [rows, columns], init, keep, fan, gain}) {
  const size = gain * (fan === 'kept' ? Math.sqrt(1 / keep) : 1);
  const std = size * Math.sqrt(2) / Math.sqrt(columns);
  const [distribution, scale] = {
    'kaiming-uniform': [fillUniform, std * Math.sqrt(3)],
    'xavier-uniform': [fillUniform, size * Math.sqrt(6 / (rows + columns))],
    'kaiming-normal': [fillNormal, std],
    'signed-constant': [fillSign, std],
    'normal-0.02': [fillNormal, size * 0.02],
  }[init];
  return draw(memory, distribution, {seed, role, count: rows * columns, scale});
}

// Positions that were not trained stay at the values from which they started.
export function drawPositions(memory, {seed, name, shape: [rows, columns]}) {
  return draw(memory, fillNormal, {seed, role: name, count: rows * columns, scale: columns ** -0.5});
}

async function draw(memory, distribution, {seed, role, count, scale}) {
  const digest = await sha256Bytes(new TextEncoder().encode(`${seed}/${role}`));
  const key = new DataView(digest.buffer);
  const out = memory.take(count);
  memory.philox(4 * out, Math.ceil(count / 8), 1n, key.getBigInt64(0, true), key.getBigInt64(8, true));
  const values = memory.view(out, count);
  const bits = new Uint32Array(values.buffer, values.byteOffset, count);
  distribution(bits, values, Math.fround(scale));
  return out;
}

// Odd multiples of 2^-23 in (-1, 1).
function fillUniform(bits, values, scale) {
  for (let i = 0; i < bits.length; i++)
    values[i] = (2 * (bits[i] >>> 9) + 1 - 2 ** 23) * 2 ** -23 * scale;
}

function fillSign(bits, values, scale) {
  for (let i = 0; i < bits.length; i++) values[i] = bits[i] >>> 31 ? scale : -scale;
}

// The inverse of the normal distribution by Acklam's approximation.
function fillNormal(bits, values, scale) {
  for (let i = 0; i < bits.length; i++) {
    const p = (bits[i] + 0.5) * 2 ** -32;
    const offset = p - 0.5, square = offset * offset, tail = Math.min(p, 1 - p);
    let value = polynomial(CENTRE_TOP, square) * offset / polynomial(CENTRE_LOW, square);
    if (tail < 0.02425) {
      const depth = Math.sqrt(-2 * logarithm(tail));
      const outer = Math.abs(polynomial(TAIL_TOP, depth) / polynomial(TAIL_LOW, depth));
      value = offset < 0 ? -outer : outer;
    }
    values[i] = Math.fround(value) * scale;
  }
}

// From IEEE's basic operations only, so that all machines agree.
function logarithm(x) {
  let mantissa = x, exponent = 0;
  for (; mantissa < 0.5; exponent--) mantissa *= 2;
  const ratio = (mantissa - 1) / (mantissa + 1);
  return 2 * ratio * polynomial(SERIES, ratio * ratio) + exponent * 0.6931471805599453;
}

function polynomial(coefficients, x) {
  let value = coefficients[0];
  for (let i = 1; i < coefficients.length; i++) value = value * x + coefficients[i];
  return value;
}

const SERIES = Array.from({length: 21}, (_, i) => 1 / (41 - 2 * i));
const CENTRE_TOP = [-3.969683028665376e01, 2.209460984245205e02, -2.759285104469687e02,
  1.383577518672690e02, -3.066479806614716e01, 2.506628277459239e00];
const CENTRE_LOW = [-5.447609879822406e01, 1.615858368580409e02, -1.556989798598866e02,
  6.680131188771972e01, -1.328068155288572e01, 1];
const TAIL_TOP = [-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838,
  -2.549732539343734, 4.374664141464968, 2.938163982698783];
const TAIL_LOW = [7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996,
  3.754408661907416, 1];
