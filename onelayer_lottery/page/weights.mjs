// The weights of a ticket's model in memory: frozen values under their masks, times scales.
import {demand, quoted} from './refusal.mjs';
import {sha256} from './container.mjs';
import {gainOf} from './configuration.mjs';
import {drawFrozen, drawPositions, drawWeight} from './frozen.mjs';
import {checkDeclared, layerOf, product, tiedParameters} from './parameters.mjs';

// The index in memory of each parameter; those at their first value (norms, biases) have none.
export async function loadWeights(memory, ticket, flags, declared, progress) {
  checkParameters(ticket, flags, declared);
  const weights = new Map(), byRole = new Map(), digests = new Map();
  for (const [layer, {role}] of ticket.masks)
    byRole.set(role, [...byRole.get(role) ?? [], layer]);
  const room = declared.reduce((sum, [, shape]) => sum + product(shape), 0);
  memory.top = memory.take(room); // refuse now what would not fit later
  for (const [layer, {role}] of ticket.masks)
    weights.set(`${layer}.weight`, memory.take(product(ticket.frozen.get(role).shape)));
  let done = 0;
  for (const [role, layers] of byRole) {
    await progress(done++ / byRole.size);
    const mark = memory.top;
    const frozen = await frozenTensor(memory, ticket, role);
    for (const layer of layers) applyMask(memory, ticket, layer, frozen, weights.get(`${layer}.weight`));
    digests.set(role, ticket.frozen.get(role).digest);
    memory.top = mark;
  }
  for (const [name, {values}] of ticket.dense)
    if (!isScale(name)) weights.set(name, memory.put(values));
  await drawReservoirs(memory, ticket, flags, declared, weights, digests);
  for (const [name, shape, kind] of declared)
    if (kind === 'positions' && !weights.has(name)) {
      weights.set(name, await drawPositions(memory, {seed: ticket.settings.seed, name, shape}));
      memory.view(weights.get(name), product(shape)).fill(0, shape[1], 2 * shape[1]);
    }
  for (const [name, other] of tiedParameters(flags))
    weights.set(`${name}.weight`, weights.get(`${other}.weight`));
  await progress(1);
  return weights;
}

export async function frozenTensor(memory, ticket, role) {
  const {shape, values} = ticket.frozen.get(role);
  if (!values) return drawFrozen(memory, ticket, role);
  const frozen = memory.take(product(shape));
  const {bits} = [...ticket.masks.values()].find(mask => mask.role === role);
  const found = memory.view(frozen, product(shape)).fill(0);
  for (let i = 0, next = 0; i < found.length; i++)
    if (bits[i >> 3] >> (i & 7) & 1) found[i] = values[next++];
  return frozen;
}

function applyMask(memory, ticket, layer, frozen, weight) {
  const {role, bits, signs} = ticket.masks.get(layer);
  const [rows, columns] = ticket.frozen.get(role).shape;
  const size = rows * columns;
  const from = memory.view(frozen, size), to = memory.view(weight, size);
  for (let i = 0, kept = 0; i < size; i++) {
    if (!(bits[i >> 3] >> (i & 7) & 1)) to[i] = 0;
    else {
      to[i] = signs && signs[kept >> 3] >> (kept & 7) & 1 ? -from[i] : from[i];
      kept++;
    }
  }
  for (const name of [...ticket.dense.keys()].filter(n => n.startsWith(`${layer}.masked.scales.`)).sort()) {
    const {shape: [down, across], values} = ticket.dense.get(name);
    for (let i = 0, row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++, i++)
        to[i] *= values[down > 1 ? row : across > 1 ? column : 0];
  }
}

// The weights of layers without a mask, and the digest of all frozen ones together.
async function drawReservoirs(memory, ticket, flags, declared, weights, digests) {
  const order = [];
  for (const [name, shape, kind] of declared) {
    const layer = name.replace(/\.weight$/, '');
    if (kind !== 'mask') continue;
    let role = ticket.masks.get(layer)?.role;
    if (!role && !weights.has(name) && flags.reservoirs.has(layerOf(name))) {
      role = flags.mask_share === 'layers' ? layer.replace(/\blayers\.\d+\b/, 'layers.*') : layer;
      const weight = await drawWeight(memory, {
        ...ticket.settings, role, shape, keep: 1, gain: gainOf(layer, flags.mask_gain ?? 1),
      });
      weights.set(name, weight);
      digests.set(role, await sha256(memory.view(weight, product(shape))));
    }
    if (role && !order.includes(role)) order.push(role);
  }
  const stated = ticket.config.digest;
  const text = order.map(role => digests.get(role)).join('');
  demand(!stated || await sha256(new TextEncoder().encode(text)) === stated,
    'the frozen weights of its reservoirs drawn here differ from its own');
}

function checkParameters(ticket, flags, declared) {
  const held = new Map(), names = new Set(declared.map(([name]) => name));
  for (const [layer, {role}] of ticket.masks) held.set(`${layer}.weight`, ticket.frozen.get(role).shape);
  for (const [name, {shape}] of ticket.dense) {
    if (isScale(name)) checkScale(ticket, name, shape);
    else {
      demand(!held.has(name), `it has ${name} twice`);
      held.set(name, shape);
    }
  }
  for (const name of held.keys()) demand(names.has(name), `it has ${quoted(name)}, which its model does not`);
  const ties = tiedParameters(flags);
  for (const [name, layer] of ticket.tied)
    demand(ties.get(name) === layer, `it ties ${quoted(name)} to ${quoted(layer)}, its model does not`);
  checkDeclared(declared, held, flags.reservoirs);
}

function checkScale(ticket, name, shape) {
  const layer = name.slice(0, name.indexOf('.masked.scales.'));
  const masked = ticket.masks.get(layer);
  demand(masked, `it has ${quoted(name)}, which its model does not`);
  const [rows, columns] = ticket.frozen.get(masked.role).shape;
  demand([[1, 1], [rows, 1], [1, columns]].some(([r, c]) => shape.length === 2 && shape[0] === r && shape[1] === c),
    `its scale of ${layer} has the shape ${shape.join(' x ')}, its weight ${rows} x ${columns}`);
}

function isScale(name) {
  return name.includes('.masked.scales.');
}
