// A ticket made ready: text in, translations or labels out.
import {demand} from './refusal.mjs';
import {Dictionary, pythonSplit} from './dictionary.mjs';
import {Memory} from './memory.mjs';
import {Model, activate} from './model.mjs';
import {completeFlags, declaredParameters} from './parameters.mjs';
import {pipelineOf} from './pipeline.mjs';
import {EOS, PAD, UNKNOWN, beamSearch} from './search.mjs';
import {readTicket} from './ticket.mjs';
import {loadWeights} from './weights.mjs';

const quiet = async () => {};

// Read a ticket and draw its weights; `progress(share)` is told how far it is.
// `tables` are the lists of Moses' tokeniser, for tickets that ask for it.
export async function openTicket(bytes, kernels, {tables = null, progress = quiet} = {}) {
  const ticket = await readTicket(bytes), flags = completeFlags(ticket.config);
  const task = ticket.config.task._name ?? 'translation';
  demand(flags.roberta === (task !== 'translation') && task !== 'masked_lm',
    `its model is of the task ${task}; this page is for translation and sentence_prediction`);
  const memory = await Memory.create(kernels);
  const kind = flags.roberta ? Classifier : Translator;
  const found = new kind(ticket, flags, tables);
  const weights = await loadWeights(memory, ticket, flags, found.declared, progress);
  found.model = new Model(memory, weights, flags);
  found.mark = memory.top;
  return found;
}

function dictionaryOf(ticket, side, options) {
  const text = ticket.dictionaries[side];
  demand(text !== undefined, `it has no dictionary of its ${side}`);
  return new Dictionary(text, side, options);
}

class Translator {
  constructor(ticket, flags, tables) {
    this.ticket = ticket;
    this.source = dictionaryOf(ticket, 'source');
    this.target = dictionaryOf(ticket, 'target');
    this.pipeline = pipelineOf(ticket, tables);
    this.declared = [...declaredParameters(flags, {source: this.source.size, target: this.target.size})];
    const task = ticket.config.task;
    this.longest = Math.min(flags.max_source_positions, task.max_source_positions ?? 1024);
    this.positions = flags.max_target_positions;
    demand(!flags.share_all_embeddings || this.source.size === this.target.size,
      'it contradicts itself: it shares embeddings of dictionaries that differ');
  }

  // Translations of a line, best first; [] for an empty one.
  async translate(line, {beam = 5, pause = quiet} = {}) {
    if (!pythonSplit(line).length) return [];
    let ids = this.source.encode(this.pipeline.encode(line));
    const cut = ids.length >= this.longest;
    if (cut) ids = ids.slice(0, this.longest - 1);
    ids = [...ids.filter(id => id !== PAD), EOS];
    const {memory} = this.model;
    memory.top = this.mark;
    const encoded = await this.model.encode(ids, 'encoder', pause);
    const source = {n: ids.length, cross: this.model.crossAttention(encoded, ids.length)};
    const found = await beamSearch(this.model, source,
      {beam, symbols: this.target.size, positions: this.positions, pause});
    return found.map(({ids: target, score}) =>
      ({text: this.pipeline.decode(this.target.decode(target)), score, cut, unheard: ids.includes(UNKNOWN)}));
  }
}

class Classifier {
  constructor(ticket, flags, tables) {
    const {task} = ticket.config;
    for (const name of ['num_classes', 'classification_head_name', 'max_positions'])
      demand((task[name] ?? null) !== null, `it does not say its ${name}`);
    this.ticket = ticket;
    this.flags = flags;
    this.source = dictionaryOf(ticket, 'source', {more: ['<mask>']});
    this.pipeline = pipelineOf(ticket, tables);
    this.labels = task.regression_target ? null : this.readLabels();
    this.before = [task.init_token ?? null, task.separator_token ?? null];
    for (const token of this.before)
      demand(token === null || token < this.source.size, `it has no symbol ${token}, which it names`);
    this.longest = Math.min(task.max_positions, flags.max_positions);
    // Without the end of each sentence, and what the task puts before it.
    this.room = this.longest - 2 - this.before.filter(token => token !== null).length;
    demand(this.room >= 1, `its model reads ${this.longest} symbols, which leaves none for two sentences`);
    this.declared = [...declaredParameters(flags, {source: this.source.size}), ...this.heads()];
    this.head = `classification_heads.${task.classification_head_name}`;
    this.inner = this.declared.find(([name]) => name === `${this.head}.dense.weight`)?.[1][0];
    this.classes = this.declared.find(([name]) => name === `${this.head}.out_proj.weight`)?.[1][0];
    demand(this.inner && this.classes, `it has no classification head ${task.classification_head_name}`);
    demand(!this.labels || this.labels.length === this.classes,
      `its dictionary of labels has ${this.labels?.length} classes, its head ${this.classes}`);
  }

  readLabels() {
    const count = this.ticket.config.task.num_classes;
    const labels = dictionaryOf(this.ticket, 'label').symbols.slice(4, 4 + count);
    demand(labels.length === count, `the dictionary of labels has ${labels.length}, the model ${count} classes`);
    return labels;
  }

  // The parameters of classification heads, whose shapes are those of the ticket.
  heads() {
    const {masks, frozen, dense} = this.ticket, shapes = new Map(), found = [];
    for (const [name, {role}] of masks) shapes.set(`${name}.weight`, frozen.get(role).shape);
    for (const [name, {shape}] of dense) shapes.set(name, shape);
    for (const [name, shape] of shapes) {
      const [, head] = /^classification_heads\.([A-Za-z_]\w{0,63})\.dense\.weight$/.exec(name) ?? [];
      if (!head) continue;
      const base = `classification_heads.${head}`, out = shapes.get(`${base}.out_proj.weight`) ?? [];
      demand(shape.length === 2 && shape[1] === this.flags.encoder_embed_dim && out.length === 2 && out[1] === shape[0],
        `its classification head ${head} is malformed`);
      found.push([`${base}.dense.weight`, shape, 'mask'], [`${base}.dense.bias`, [shape[0]], 'bias'],
        [`${base}.out_proj.weight`, out, 'mask'], [`${base}.out_proj.bias`, [out[0]], 'bias']);
    }
    return found;
  }

  // Labels and their probabilities, the most probable first; of a regression its values.
  async classify(pair, {pause = quiet} = {}) {
    if (pair.some(sentence => !pythonSplit(sentence).length)) return [];
    const sides = pair.map(sentence => this.source.encode(this.pipeline.encode(sentence)));
    const cut = sides[0].length + sides[1].length > this.room;
    while (sides[0].length + sides[1].length > this.room)
      (sides[0].length > sides[1].length ? sides[0] : sides[1]).pop();
    const ids = this.before.flatMap((token, side) => [...token === null ? [] : [token], ...sides[side], EOS])
      .filter(id => id !== PAD);
    const unheard = ids.includes(UNKNOWN), {model, inner, classes} = this, {memory} = model, d = this.flags.encoder_embed_dim;
    memory.top = this.mark;
    const x = await model.encode(ids, 'encoder.sentence_encoder', pause);
    const hidden = model.linear(x, 1, d, inner, `${this.head}.dense`);
    activate(memory.view(hidden, inner), this.flags.pooler_activation_fn);
    const scores = [...memory.view(model.linear(hidden, 1, inner, classes, `${this.head}.out_proj`), classes)];
    if (!this.labels) return [{text: scores.map(score => score.toFixed(4)).join(' '), cut, unheard}];
    const top = Math.max(...scores), total = scores.reduce((sum, score) => sum + Math.exp(score - top), 0);
    return scores.map((score, i) => ({text: this.labels[i], score: Math.exp(score - top) / total, cut, unheard}))
      .sort((a, b) => b.score - a.score);
  }
}
