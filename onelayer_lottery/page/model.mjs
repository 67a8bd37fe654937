// fairseq's Transformer in single steps, over tensors in one memory.
const EPSILON = 1e-5;

export class Model {
  constructor(memory, weights, flags) {
    Object.assign(this, {memory, weights, flags});
    this.sinusoids = new Map();
  }

  // Encode symbols; `pause` lets others run between layers.
  async encode(ids, stack, pause) {
    const {flags} = this, n = ids.length, heads = flags.encoder_attention_heads;
    const d = flags.encoder_embed_dim, pre = flags.encoder_normalize_before;
    let x = this.embed(stack, 'encoder', ids, index => index);
    for (let index = 0; index < flags.encoder_depth; index++) {
      await pause();
      const layer = `${stack}.layers.${index}`;
      if (this.has(`${layer}.self_attn.q_proj.weight`))
        x = this.residual(x, n, d, pre, `${layer}.self_attn_layer_norm`, z => {
          const [q, k, v] = ['q', 'k', 'v'].map(part => this.linear(z, n, d, d, `${layer}.self_attn.${part}_proj`));
          const found = this.memory.take(n * d);
          for (let row = 0; row < n; row++) this.attend(q + row * d, k, v, found + row * d, n, {stride: d, d, heads});
          return this.linear(found, n, d, d, `${layer}.self_attn.out_proj`);
        });
      x = this.feedForward(x, n, d, pre, layer, flags.encoder_ffn_embed_dim);
    }
    if (pre) this.norm(x, n, d, `${stack}.layer_norm`);
    return x;
  }

  // What each layer of the decoder attends to, of n encoded symbols.
  crossAttention(x, n) {
    const {flags} = this, found = [];
    for (let index = 0; index < flags.decoder_depth; index++) {
      const name = `decoder.layers.${index}.encoder_attn`;
      found.push(this.has(`${name}.k_proj.weight`) && ['k', 'v'].map(part =>
        this.linear(x, n, flags.encoder_embed_dim, flags.decoder_embed_dim, `${name}.${part}_proj`)));
    }
    return found;
  }

  // One symbol more of each hypothesis: the index of the logits of all of them.
  // Each hypothesis has in `caches` the place of its keys and values, a row for each symbol.
  step(ids, at, source, caches, symbols) {
    const {flags, memory} = this, n = ids.length, d = flags.decoder_embed_dim;
    const pre = flags.decoder_normalize_before, heads = flags.decoder_attention_heads;
    const stride = this.cacheRow();
    let x = this.embed('decoder', 'decoder', ids, () => at);
    for (let index = 0; index < flags.decoder_depth; index++) {
      const layer = `decoder.layers.${index}`;
      if (this.has(`${layer}.self_attn.q_proj.weight`))
        x = this.residual(x, n, d, pre, `${layer}.self_attn_layer_norm`, z => {
          const [q, k, v] = ['q', 'k', 'v'].map(part => this.linear(z, n, d, d, `${layer}.self_attn.${part}_proj`));
          const found = memory.take(n * d);
          for (let row = 0; row < n; row++) {
            const keys = caches[row] + 2 * index * d, values = keys + d, now = at * stride;
            memory.floats.copyWithin(keys + now, k + row * d, k + (row + 1) * d);
            memory.floats.copyWithin(values + now, v + row * d, v + (row + 1) * d);
            this.attend(q + row * d, keys, values, found + row * d, at + 1, {stride, d, heads});
          }
          return this.linear(found, n, d, d, `${layer}.self_attn.out_proj`);
        });
      if (source.cross[index])
        x = this.residual(x, n, d, pre, `${layer}.encoder_attn_layer_norm`, z => {
          const q = this.linear(z, n, d, d, `${layer}.encoder_attn.q_proj`), found = memory.take(n * d);
          const [k, v] = source.cross[index];
          for (let row = 0; row < n; row++) this.attend(q + row * d, k, v, found + row * d, source.n, {stride: d, d, heads});
          return this.linear(found, n, d, d, `${layer}.encoder_attn.out_proj`);
        });
      x = this.feedForward(x, n, d, pre, layer, flags.decoder_ffn_embed_dim);
    }
    if (pre && !flags.no_decoder_final_norm) this.norm(x, n, d, 'decoder.layer_norm');
    const out = flags.decoder_output_dim;
    if (out !== d) x = this.linear(x, n, d, out, 'decoder.project_out_dim');
    return this.linear(x, n, out, symbols, 'decoder.output_projection');
  }

  // Keys and values of one symbol in all layers of the decoder.
  cacheRow() {
    return 2 * this.flags.decoder_depth * this.flags.decoder_embed_dim;
  }

  has(name) {
    return this.weights.has(name);
  }

  embed(stack, side, ids, position) {
    const {flags, memory} = this, d = flags[`${side}_embed_dim`];
    const x = memory.take(ids.length * d), f = memory.floats;
    const table = this.weights.get(`${stack}.embed_tokens.weight`) ?? this.weights.get('encoder.embed_tokens.weight');
    const scale = Math.fround(flags.no_scale_embedding ? 1 : Math.sqrt(d));
    ids.forEach((id, row) => {
      const places = this.positions(stack, d, position(row));
      for (let i = 0; i < d; i++)
        f[x + row * d + i] = Math.fround(f[table + id * d + i] * scale) + places[i];
    });
    if (flags.layernorm_embedding) this.norm(x, ids.length, d, `${stack}.layernorm_embedding`);
    return x;
  }

  // The embedding of a position; fairseq's first one is number 2.
  positions(stack, d, position) {
    const {flags, sinusoids, memory} = this;
    const learned = this.weights.get(`${stack}.embed_positions.weight`);
    if (learned) return memory.view(learned + (position + 2) * d, d);
    const key = `${d}/${position}`;
    if (!sinusoids.has(key)) {
      const row = new Float32Array(d), half = d >> 1;
      const rate = Math.fround(-Math.log(10000) / (half - 1));
      for (let i = 0; i < half && !flags.no_token_positional_embeddings; i++) {
        const angle = Math.fround((position + 2) * Math.fround(Math.exp(Math.fround(i * rate))));
        row[i] = Math.sin(angle);
        row[half + i] = Math.cos(angle);
      }
      sinusoids.set(key, row);
    }
    return sinusoids.get(key);
  }

  linear(x, n, k, m, name) {
    const y = this.memory.product(x, this.weights.get(`${name}.weight`), {n, k, m});
    const bias = this.weights.get(`${name}.bias`), f = this.memory.floats;
    if (bias) for (let i = 0; i < n * m; i++) f[y + i] += f[bias + i % m];
    return y;
  }

  // A sublayer between its residual path and its norm.
  residual(x, n, d, pre, norm, inner) {
    const {memory} = this;
    let input = x;
    if (pre) {
      input = memory.take(n * d);
      memory.floats.copyWithin(input, x, x + n * d);
      this.norm(input, n, d, norm);
    }
    const y = inner(input), f = memory.floats;
    for (let i = 0; i < n * d; i++) f[y + i] += f[x + i];
    if (!pre) this.norm(y, n, d, norm);
    return y;
  }

  feedForward(x, n, d, pre, layer, inner) {
    return this.residual(x, n, d, pre, `${layer}.final_layer_norm`, z => {
      const hidden = this.linear(z, n, d, inner, `${layer}.fc1`);
      activate(this.memory.view(hidden, n * inner), this.flags.activation_fn);
      return this.linear(hidden, n, inner, d, `${layer}.fc2`);
    });
  }

  norm(x, n, d, name) {
    const f = this.memory.floats;
    const gain = this.weights.get(`${name}.weight`), bias = this.weights.get(`${name}.bias`);
    for (let row = x; row < x + n * d; row += d) {
      let mean = 0, variance = 0;
      for (let i = 0; i < d; i++) mean += f[row + i];
      mean /= d;
      for (let i = 0; i < d; i++) variance += (f[row + i] - mean) ** 2;
      const inverse = 1 / Math.sqrt(variance / d + EPSILON);
      for (let i = 0; i < d; i++)
        f[row + i] = (f[row + i] - mean) * inverse * (gain ? f[gain + i] : 1) + (bias ? f[bias + i] : 0);
    }
  }

  // One query of width d over `count` keys and values, head by head.
  attend(query, keys, values, out, count, {stride, d, heads}) {
    const f = this.memory.floats, width = d / heads, scale = 1 / Math.sqrt(width);
    const shares = new Float32Array(count);
    for (let head = 0; head < d; head += width) {
      let top = -Infinity, sum = 0;
      for (let c = 0; c < count; c++) {
        let score = 0;
        const key = keys + c * stride + head;
        for (let i = 0; i < width; i++) score += f[query + head + i] * f[key + i];
        shares[c] = score * scale;
        if (shares[c] > top) top = shares[c];
      }
      for (let c = 0; c < count; c++) sum += shares[c] = Math.exp(shares[c] - top);
      f.fill(0, out + head, out + head + width);
      for (let c = 0; c < count; c++) {
        const share = shares[c] / sum, value = values + c * stride + head;
        for (let i = 0; i < width; i++) f[out + head + i] += share * f[value + i];
      }
    }
  }
}

export function activate(values, name) {
  const function_ = ACTIVATIONS[name];
  for (let i = 0; i < values.length; i++) values[i] = function_(values[i]);
}

const accurateGelu = x => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
const ACTIVATIONS = {
  relu: x => (x > 0 ? x : 0),
  relu_squared: x => (x > 0 ? x * x : 0),
  gelu: x => 0.5 * x * (1 + errorFunction(x / Math.SQRT2)),
  gelu_fast: accurateGelu,
  gelu_accurate: accurateGelu,
  tanh: Math.tanh,
  linear: x => x,
  swish: x => x / (1 + Math.exp(-x)),
};

// By its power series near zero, by a continued fraction farther out.
function errorFunction(x) {
  const size = Math.abs(x), square = x * x;
  if (size > 6) return Math.sign(x);
  if (size < 2.5) {
    let sum = 0, term = x;
    for (let n = 0; Math.abs(term) > 1e-17; n++) {
      sum += term / (2 * n + 1);
      term *= -square / (n + 1);
    }
    return sum * 2 / Math.sqrt(Math.PI);
  }
  let fraction = 0;
  for (let n = 60; n > 0; n--) fraction = n / 2 / (size + fraction);
  return Math.sign(x) * (1 - Math.exp(-square) / Math.sqrt(Math.PI) / (size + fraction));
}
