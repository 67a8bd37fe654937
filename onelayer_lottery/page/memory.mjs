// One WebAssembly memory for weights and activations. Tensors are indices of floats in it.
import {demand} from './refusal.mjs';

const PAGE = 65536;
const MOST_BYTES = 2 ** 30;

export function demandRoom(bytes) {
  demand(bytes <= MOST_BYTES, `it needs more than the ${MOST_BYTES / 2 ** 20} MB of memory that this page allows`);
}

export class Memory {
  static async create(kernels) {
    const {instance} = await WebAssembly.instantiate(kernels);
    return new Memory(instance.exports);
  }

  constructor({memory, philox, product}) {
    Object.assign(this, {memory, philox});
    this.multiply = product;
    this.top = 8; // index 0 stands for no tensor
    this.floats = new Float32Array(memory.buffer);
  }

  // Room for `count` floats, until `top` is set back.
  take(count) {
    const start = this.top;
    this.top += 8 * Math.ceil(count / 8); // so that eight values of Philox fit at any end
    const missing = 4 * this.top - this.memory.buffer.byteLength;
    if (missing > 0) {
      demandRoom(4 * this.top);
      this.memory.grow(Math.ceil(missing / PAGE));
      this.floats = new Float32Array(this.memory.buffer);
    }
    return start;
  }

  put(values) {
    const start = this.take(values.length);
    this.floats.set(values, start);
    return start;
  }

  view(start, count) {
    return this.floats.subarray(start, start + count);
  }

  // The n rows of k floats at x times the m rows of k at w.
  product(x, w, {n, k, m}) {
    const y = this.take(n * m);
    this.multiply(4 * x, 4 * w, 4 * y, n, k, m);
    return y;
  }
}
