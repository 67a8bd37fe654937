// The worker of the page: opens tickets, and translates whatever was typed last.
import {Refusal} from './refusal.mjs';
import {Memory} from './memory.mjs';
import {product} from './parameters.mjs';
import {openTicket} from './translator.mjs';
import {frozenTensor} from './weights.mjs';

const TURN = 15; // milliseconds of work before messages are looked at
const REMEMBERED = 2000; // lines
const SHOWN = 40; // rows and columns of a tensor in a picture

let ready = null, kernels = null, latest = 0, since = 0;
const known = new Map();
const turns = new MessageChannel();
const waiting = [];
turns.port1.onmessage = () => waiting.shift()();

class Cancelled extends Error {}

const tell = message => postMessage(message);

// Let messages in; a job that is not the latest any more ends here.
async function pauseOf(job) {
  if (performance.now() - since < TURN) return;
  await new Promise(resolve => {
    waiting.push(resolve);
    turns.port2.postMessage(0);
  });
  since = performance.now();
  if (job !== latest) throw new Cancelled();
}

const handlers = {
  async open({kernels: bytes, tables, ticket, name, job}) {
    kernels ??= bytes;
    const started = performance.now();
    const progress = async share => {
      tell({kind: 'progress', share});
      since = 0;
      await pauseOf(job);
    };
    const opened = await openTicket(ticket, kernels, {tables, progress});
    ready = opened;
    known.clear();
    tell({kind: 'ready', name, seconds: (performance.now() - started) / 1000, bytes: ticket.length, ...summary(opened)});
  },

  // Translations of lines in their order; several together, so that messages stay few.
  async text({lines, beam, job}) {
    if (!ready) return;
    const pause = () => pauseOf(job);
    let found = [], told = performance.now();
    for (let number = 0; number < lines.length; number++) {
      const key = `${beam} ${ready.classify ? lines.join('\t') : lines[number]}`;
      if (!known.has(key)) {
        const answers = ready.classify ? await ready.classify(lines, {pause}) : await ready.translate(lines[number], {beam, pause});
        if (known.size >= REMEMBERED) known.clear();
        known.set(key, answers);
      }
      found.push({number, answers: known.get(key)});
      const last = number + 1 === lines.length || Boolean(ready.classify);
      if (last || performance.now() - told > 60) {
        tell({kind: 'lines', job, found, last});
        [found, told] = [[], performance.now()];
      }
      if (ready.classify) return;
      await pause();
    }
  },

  // A corner of a frozen tensor and of the masks over it.
  async picture({role}) {
    const {ticket, model} = ready;
    if (!ticket.frozen.has(role)) return; // it was chosen while another ticket opened
    const {shape, values: imported} = ticket.frozen.get(role);
    const memory = await Memory.create(kernels);
    const values = memory.view(await frozenTensor(memory, ticket, role), product(shape));
    const rows = Math.min(shape[0], SHOWN), columns = Math.min(shape[1], SHOWN);
    const corner = read => Float32Array.from({length: rows * columns},
      (_, i) => read(Math.floor(i / columns) * shape[1] + i % columns));
    const frozen = corner(i => values[i]);
    const masks = [...ticket.masks].filter(([, mask]) => mask.role === role)
      .map(([layer, {bits, kept}]) => {
        const weights = model.memory.view(model.weights.get(`${layer}.weight`), product(shape));
        return {layer, kept, bits: corner(i => bits[i >> 3] >> (i & 7) & 1), weights: corner(i => weights[i])};
      });
    tell({kind: 'picture', shape, rows, columns, frozen, masks, imported: Boolean(imported)});
  },
};

function summary({ticket, classify}) {
  const {settings, frozen, masks, config, sizes, digest} = ticket, parts = {};
  const kinds = {mask: 'masks, the learned bits', signs: 'signs', dense: 'values trained densely', values: 'imported embeddings',
    dictionary: 'dictionaries', bpe: 'subword model'};
  for (const [name, bytes] of Object.entries(sizes)) {
    const part = kinds[name.split('/')[0]];
    parts[part] = (parts[part] ?? 0) + bytes;
  }
  let kept = 0, positions = 0;
  for (const {role, kept: own} of masks.values()) {
    kept += own;
    positions += product(frozen.get(role).shape);
  }
  let drawn = 0, trained = 0;
  for (const {shape, values} of frozen.values()) {
    if (values) trained += values.length;
    else drawn += product(shape);
  }
  for (const {values} of ticket.dense.values()) trained += values.length;
  const roles = [...frozen].map(([role, {shape}]) =>
    ({role, shape, layers: [...masks.values()].filter(mask => mask.role === role).length}));
  return {
    settings: {...settings, seed: String(settings.seed)}, roles, kept, positions, parts, digest,
    masks: masks.size, pairs: Boolean(classify), languages: [config.task.source_lang, config.task.target_lang],
    drawn, trained, signed: [...masks.values()].some(({signs}) => signs),
  };
}

// One message at a time: `latest` moves at once, so that a running job sees it and ends.
let chain = Promise.resolve();
onmessage = ({data}) => {
  if (data.job) latest = data.job;
  chain = chain.then(async () => {
    if (data.job && data.job !== latest) return;
    since = performance.now();
    try {
      await handlers[data.kind](data);
    } catch (error) {
      if (error instanceof Cancelled) return;
      const reason = error instanceof Refusal ? error.message
        : error instanceof RangeError ? 'this browser has not enough memory for it' : `this page fails: ${error.message}`;
      tell({kind: 'refused', what: data.kind, reason, name: data.name});
    }
  });
};
