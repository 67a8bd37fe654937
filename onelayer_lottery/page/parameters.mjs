// The parameters that a ticket's flags declare, by the names of fairseq, in its order.
import {demand} from './refusal.mjs';

const MOST_DRAWN = 64; // times what the file holds: reservoirs come from the seed alone

const TRANSFORMER = {
  encoder_embed_dim: 512, encoder_ffn_embed_dim: 2048, encoder_layers: 6, encoder_attention_heads: 8,
  decoder_layers: 6, decoder_attention_heads: 8, activation_fn: 'relu',
  max_source_positions: 1024, max_target_positions: 1024,
};
const ROBERTA = {
  encoder_embed_dim: 768, encoder_ffn_embed_dim: 3072, encoder_layers: 12, encoder_attention_heads: 12,
  encoder_learned_pos: true, layernorm_embedding: true, no_scale_embedding: true,
  activation_fn: 'gelu', pooler_activation_fn: 'tanh', max_positions: 512,
};

// The flags with the values that fairseq gives those which are not stated.
export function completeFlags({arch, model}) {
  const roberta = arch.startsWith('roberta_');
  demand(roberta || arch.startsWith('transformer_'), `its architecture ${arch} is not known to this page`);
  const stated = Object.fromEntries(Object.entries(model).filter(([, value]) => value !== null));
  const flags = {roberta, ...(roberta ? ROBERTA : TRANSFORMER), ...stated};
  flags.decoder_embed_dim ??= flags.encoder_embed_dim;
  flags.decoder_ffn_embed_dim ??= flags.encoder_ffn_embed_dim;
  flags.decoder_output_dim ??= flags.decoder_embed_dim;
  for (const side of ['encoder', 'decoder']) {
    flags[`${side}_depth`] = flags[`${side}_layers_to_keep`]?.split(',').length ?? flags[`${side}_layers`] ?? 0;
    const heads = flags[`${side}_attention_heads`], width = flags[`${side}_embed_dim`];
    demand(!heads || width % heads === 0,
      `its ${side} has ${heads} attention heads, which do not divide its width ${width}`);
  }
  for (const missing of ['cross_self_attention'])
    demand(!flags[missing], `its flag ${missing} is on, which this page cannot compute`);
  flags.reservoirs = reservoirLayers(flags);
  const kind = flags.reservoir_type ?? 'transformer';
  demand(!flags.reservoirs.size || ['transformer', 'ffn'].includes(kind),
    `its reservoir layers are of type ${kind}, which this page cannot compute; use onelayer-lottery translate`);
  return flags;
}

// The layers that stay random, such as encoder.layers.1, out of encoder:1,3/decoder:2.
function reservoirLayers(flags) {
  const found = new Set(), listed = flags.reservoir_layers ?? 'none';
  if (listed === 'none') return found;
  for (const part of listed.split('/')) {
    const [side, indices] = part.split(':');
    const stack = flags.roberta ? 'encoder.sentence_encoder' : side;
    demand(['encoder', 'decoder'].includes(side) && /^[0-9,]+$/.test(indices ?? ''),
      'it contradicts itself: --reservoir-layers cannot be understood');
    for (const index of indices.split(',')) {
      demand(index !== '' && Number(index) < flags[`${side}_depth`],
        `it contradicts itself: --reservoir-layers has ${side}:${index}`);
      found.add(`${stack}.layers.${Number(index)}`);
    }
  }
  return found;
}

// Names, shapes and kinds (mask, bias, norm or positions) of all parameters.
export function* declaredParameters(flags, symbols) {
  const width = flags.encoder_embed_dim;
  if (flags.roberta) {
    yield* stack(flags, 'encoder', 'encoder.sentence_encoder',
      {rows: symbols.source, positions: flags.max_positions});
    yield* linear('encoder.lm_head.dense', [width, width]);
    yield* norm('encoder.lm_head.layer_norm', width);
    yield ['encoder.lm_head.bias', [symbols.source], 'bias'];
    if (flags.untie_weights_roberta) yield ['encoder.lm_head.weight', [symbols.source, width], 'mask'];
    return;
  }
  yield* stack(flags, 'encoder', 'encoder',
    {rows: symbols.source, positions: flags.max_source_positions});
  yield* stack(flags, 'decoder', 'decoder', {
    rows: flags.share_all_embeddings ? 0 : symbols.target, positions: flags.max_target_positions,
    cross: flags.no_cross_attention ? 0 : width,
  });
  const out = flags.decoder_output_dim;
  if (out !== flags.decoder_embed_dim) yield ['decoder.project_out_dim.weight', [out, flags.decoder_embed_dim], 'mask'];
  if (!flags.share_decoder_input_output_embed && !flags.share_all_embeddings)
    yield ['decoder.output_projection.weight', [symbols.target, out], 'mask'];
}

// Parameters that are others under a second name.
export function tiedParameters(flags) {
  const found = new Map();
  if (flags.roberta) {
    if (!flags.untie_weights_roberta) found.set('encoder.lm_head', 'encoder.sentence_encoder.embed_tokens');
  } else if (flags.share_all_embeddings) {
    found.set('decoder.embed_tokens', 'encoder.embed_tokens');
    found.set('decoder.output_projection', 'encoder.embed_tokens');
  } else if (flags.share_decoder_input_output_embed) found.set('decoder.output_projection', 'decoder.embed_tokens');
  return found;
}

function* stack(flags, side, name, {rows, positions, cross = 0}) {
  const width = flags[`${side}_embed_dim`];
  if (rows) yield [`${name}.embed_tokens.weight`, [rows, width], 'mask'];
  if (flags[`${side}_learned_pos`] && !flags.no_token_positional_embeddings)
    yield [`${name}.embed_positions.weight`, [positions + 2, width], 'positions'];
  if (flags.layernorm_embedding) yield* norm(`${name}.layernorm_embedding`, width);
  for (let index = 0; index < flags[`${side}_depth`]; index++) {
    const layer = `${name}.layers.${index}`, inner = flags[`${side}_ffn_embed_dim`];
    const attends = flags.reservoir_type !== 'ffn' || !flags.reservoirs.has(layer);
    if (attends) yield* attention(`${layer}.self_attn`, width, width);
    if (attends && cross) yield* attention(`${layer}.encoder_attn`, width, cross);
    yield* linear(`${layer}.fc1`, [inner, width]);
    yield* linear(`${layer}.fc2`, [width, inner]);
    yield* norm(`${layer}.final_layer_norm`, width);
  }
  if (flags[`${side}_normalize_before`] && !(side === 'decoder' && flags.no_decoder_final_norm))
    yield* norm(`${name}.layer_norm`, width);
}

function* attention(name, width, inputs) {
  yield* linear(`${name}.k_proj`, [width, inputs]);
  yield* linear(`${name}.v_proj`, [width, inputs]);
  yield* linear(`${name}.q_proj`, [width, width]);
  yield* linear(`${name}.out_proj`, [width, width]);
  yield* norm(`${name}_layer_norm`, width);
}

function* linear(name, shape) {
  yield [`${name}.weight`, shape, 'mask'];
  yield [`${name}.bias`, [shape[0]], 'bias'];
}

function* norm(name, width) {
  yield [`${name}.weight`, [width], 'norm'];
  yield [`${name}.bias`, [width], 'norm'];
}

// Refuse a ticket that does not hold the weights that its flags declare: building a model
// takes the memory that its flags ask for, and a few bytes can ask for anything.
export function checkDeclared(declared, held, reservoirs) {
  let room = 0;
  for (const shape of held.values()) room += product(shape);
  room *= MOST_DRAWN;
  for (const [name, shape, kind] of declared) {
    const stated = held.get(name);
    const same = stated && stated.length === shape.length && stated.every((n, i) => n === shape[i]);
    if (reservoirs.has(layerOf(name)) && !stated) {
      room -= product(shape);
      demand(room >= 0, `it declares reservoirs of more than ${MOST_DRAWN} times the weights that it holds`);
    } else {
      demand(stated || kind !== 'mask', `it has no mask or weight for ${name}`);
      demand(!stated || same,
        `its ${name} has the shape ${stated?.join(' x ')}, its architecture and dictionaries ask for ${shape.join(' x ')}`);
    }
  }
}

// The layer of a stack that a parameter is in: encoder.layers.3 of ....3.fc1.weight.
export function layerOf(name) {
  return /^(.*\.layers\.\d+)\./.exec(name)?.[1] ?? name;
}

export function product(shape) {
  return shape.reduce((a, b) => a * b, 1);
}
