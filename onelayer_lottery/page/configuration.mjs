// The flags of a ticket, checked: each has a type and a range, all others are off.
// The rules are those of onelayer_lottery/ticket/configuration.py.
import {demand, quoted} from './refusal.mjs';
import {mapping, typeOf} from './json.mjs';

const WIDTH = 1 << 16, LAYERS = 1 << 10, POSITIONS = 1 << 15;

const whole = (lowest, highest) => value =>
  typeof value === 'bigint' && value >= lowest && value <= highest;
const number = (lowest, highest = Infinity) => value =>
  ['bigint', 'number'].includes(typeof value) && Number(value) >= lowest && Number(value) <= highest;
const choice = (...choices) => value => choices.includes(value);
const words = (...choices) => value => typeof value === 'string' && value.length < 1000 &&
  value.split(',').every(word => choices.includes(word));
const text = pattern => value => typeof value === 'string' && pattern.test(value);
const optional = rule => value => value === null || rule(value);
const unused = () => true;
const off = value => value === null || value === false || value === 0n || value === 0 ||
  value === '' || (Array.isArray(value) && !value.length);
const toggle = value => typeof value === 'boolean';

const positions = optional(whole(1, POSITIONS));
const activation = choice('relu', 'relu_squared', 'gelu', 'gelu_fast', 'gelu_accurate', 'tanh',
  'linear', 'swish');
const language = optional(text(/^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$/));
const reservoirs = text(/^[a-z0-9:,/]{1,20000}$/);

function ofSide(side) {
  const width = whole(1, WIDTH);
  return Object.fromEntries(Object.entries({
    embed_dim: width, ffn_embed_dim: width, input_dim: width, output_dim: width,
    attention_heads: width, layers: whole(0, LAYERS),
    layers_to_keep: optional(text(/^[0-9]{1,4}(,[0-9]{1,4}){0,1023}$/)),
    normalize_before: toggle, learned_pos: toggle, layerdrop: number(0, 1),
    embed_path: choice(null, '', 'imported'),
  }).map(([name, rule]) => [`${side}_${name}`, rule]));
}

function each(names, rule) {
  return Object.fromEntries(names.split(' ').map(name => [name, rule]));
}

const MODEL = {
  ...ofSide('encoder'), ...ofSide('decoder'),
  ...each('activation_fn pooler_activation_fn', activation),
  ...each('dropout attention_dropout activation_dropout relu_dropout pooler_dropout mask_anneal' +
    ' embed_missing', number(0, 1)),
  ...each('max_source_positions max_target_positions max_positions tokens_per_sample', positions),
  ...each('share_decoder_input_output_embed share_all_embeddings untie_weights_roberta' +
    ' no_token_positional_embeddings no_scale_embedding layernorm_embedding no_cross_attention' +
    ' cross_self_attention no_decoder_final_norm embeddings_inside start_inside', toggle),
  ...each('mha_heads_to_keep ffn_blocks_to_remove', choice(-1n)),
  mask_preset: choice('paper', 'paper-text', 'best', 'best-from-dense'),
  mask_method: choice('topk', 'signed'),
  mask_keep: number(0, 1),
  mask_seed: whole(0, (1n << 63n) - 1n),
  mask_init: choice('kaiming-uniform', 'xavier-uniform', 'kaiming-normal', 'signed-constant',
    'normal-0.02'),
  mask_fan: choice('kept', 'full'),
  mask_gain: value => ['int', 'float', 'text'].includes(typeOf(value)) && parsedGains(value) !== null,
  mask_embed_gain: number(0),
  mask_scores: choice('fan-in', 'width'),
  mask_share: choice('layers', 'none'),
  mask_train: words('none', 'norm', 'bias', 'positions', 'embed', 'head'),
  mask_scale: choice('none', 'tensor', 'row', 'row-column'),
  mask_embed: choice('masked', 'dense'),
  embed_path_side: choice('own', 'encoder', 'decoder'),
  reservoir_type: choice('transformer', 'ffn', 'bigru', 'cnn'),
  reservoir_backward: choice('exact', 'skip'),
  ...each('reservoir_layers reservoir_mask', reservoirs),
  ...each('adaptive_softmax_dropout adaptive_softmax_factor quant_noise_pq_block_size' +
    ' min_params_to_wrap base_sublayers base_shuffle checkpoint_activations offload_activations' +
    ' mha_reg_scale_factor ffn_reg_scale_factor', unused),
};

const TASK = {
  _name: choice('translation', 'sentence_prediction', 'masked_lm'),
  ...each('source_lang target_lang', language),
  ...each('left_pad_source left_pad_target', choice(true, false, 'True', 'False')),
  ...each('max_source_positions max_target_positions max_positions tokens_per_sample', positions),
  num_classes: whole(1, 1 << 16),
  ...each('init_token separator_token', optional(whole(0, 1 << 24))),
  classification_head_name: text(/^[A-Za-z_][A-Za-z0-9_]{0,63}$/),
  ...each('regression_target no_shuffle freq_weighted_replacement mask_whole_words', toggle),
  shorten_method: choice('none', 'truncate', 'random_crop'),
  sample_break_mode: choice(null, 'none', 'complete', 'complete_doc', 'eos'),
  ...each('mask_prob leave_unmasked_prob random_token_prob', number(0, 1)),
};

export function checkedConfiguration(config, settings) {
  const known = ['arch', 'model', 'task', 'frozen-sha256'];
  for (const key of mapping(config, 'config').keys())
    demand(known.includes(key), `its config has the unknown key ${quoted(key)}`);
  const arch = config.get('arch'), digest = config.get('frozen-sha256') ?? null;
  demand(typeof arch === 'string' && /^[a-z][a-z0-9_]{0,99}$/.test(arch),
    `its architecture is ${quoted(arch)}; expected the name of one`);
  demand(digest === null || (typeof digest === 'string' && /^[0-9a-f]{64}$/.test(digest)),
    `its frozen-sha256 is ${quoted(digest)}; expected a digest`);
  const model = checkedFlags(config.get('model'), 'model', MODEL);
  const task = checkedFlags(config.get('task'), 'task', TASK);
  for (const name of ['seed', 'init', 'fan', 'keep']) {
    const stated = config.get('model').get(`mask_${name}`);
    demand(stated === undefined || stated === settings[name] || Number(stated) === settings[name],
      `its mask_${name} contradicts its settings`);
  }
  return {arch, model, task, digest};
}

function checkedFlags(table, part, rules) {
  const flags = {};
  for (const [name, value] of mapping(table, `config's ${part}`)) {
    const rule = Object.hasOwn(rules, name) ? rules[name] : off;
    demand(rule(value), `its flag ${quoted(name)} is ${quoted(value)}, which it may not be`);
    if (Object.hasOwn(rules, name) && rule !== unused)
      flags[name] = typeof value === 'bigint' ? Number(value) : value;
  }
  return flags;
}

// The gains of kinds of tensors in --mask-gain: one number, or q=0.5,out=0.7; null if neither.
export function parsedGains(value) {
  const kinds = ['q', 'k', 'v', 'out', 'fc1', 'fc2'];
  const valid = text => /^[-+0-9.eE]+$/.test(text) && Number(text) > 0 && Number(text) < Infinity;
  const flag = String(value);
  if (!/[=,]/.test(flag))
    return valid(flag) ? Object.fromEntries([...kinds, 'other'].map(kind => [kind, Number(flag)])) : null;
  const gains = {};
  for (const part of flag.slice(0, 1000).split(',')) {
    const [kind, number] = part.split('=');
    const named = [...kinds, ...['q', 'k', 'v', 'out'].map(name => `cross-${name}`), 'embed'];
    if (!named.includes(kind) || kind in gains || !valid(number ?? '')) return null;
    gains[kind] = Number(number);
  }
  return gains;
}

// The gain of the tensor of a layer by the layer's name.
export function gainOf(name, value) {
  const gains = parsedGains(value);
  let kind = name.split('.').pop().replace(/_proj$/, '');
  if (!/\blayers\.\d+\./.test(name)) kind = name.endsWith('embed_tokens') ? 'embed' : 'outside';
  else if (!['q', 'k', 'v', 'out', 'fc1', 'fc2'].includes(kind)) kind = 'other';
  const cross = name.includes('.encoder_attn.') ? gains[`cross-${kind}`] : undefined;
  return cross ?? gains[kind] ?? 1;
}
