// The page itself: what is typed goes to the worker, what comes back is shown as text.
const $ = id => document.getElementById(id);
let worker = null, kernels = null, tables = null, job = 0, pairs = false, answers = [], facts = null, picture = null, opening = false;

const OWN = 'the ticket of this page';
const DARK = matchMedia('(prefers-color-scheme: dark)');
const CUT = 'A line is longer than the model reads; its end is left out.';
const UNHEARD = 'The model does not know every word of your text.';
const MOST_BYTES = 2 ** 30; // of a file; no larger one can be of a model that fits
const number = value => value.toLocaleString('en');
const bytes = value => (value < 10000 ? `${number(value)} bytes` : `${number(Math.round(value / 1000))} kB`);

// What the page holds in base64 of gzip.
async function unpacked(id) {
  const packed = Uint8Array.from(atob($(id).textContent), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function element(tag, text, attributes = {}) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.textContent = text;
  return made;
}

function say(text, refused = false) {
  $('message').textContent = text;
  $('message').classList.toggle('refused', refused);
}

// Whether the translations shown are of an older text; screen readers wait for the new ones.
function stale(is) {
  $('output').classList.toggle('stale', is);
  $('output').setAttribute('aria-busy', is);
}

function open(ticket, name) {
  opening = true;
  $('progress').hidden = false;
  $('progress').value = 0;
  say(`Reading ${name ?? OWN} and drawing its weights from the seed`);
  worker.postMessage({kind: 'open', kernels, tables, ticket, name, job: ++job});
}

// Ask for what is typed now, once a ticket is open; the worker leaves what it was asked before.
function ask() {
  const beam = Math.min(20, Math.max(1, Math.round($('beam').value) || 1));
  const lines = pairs ? [$('source').value, $('other').value] : $('source').value.split('\n');
  answers = [];
  stale(true);
  if (facts && !opening) worker.postMessage({kind: 'text', lines, beam, job: ++job});
}

const shown = {
  progress({share}) {
    $('progress').value = share;
  },

  ready(found) {
    facts = found;
    opening = false;
    pairs = found.pairs;
    $('progress').hidden = true;
    $('second').hidden = !pairs;
    $('beam-box').hidden = pairs;
    const [from, to] = found.languages;
    $('source-label').textContent = pairs ? 'First sentence' : from ? `Your text in ${language(from)}` : 'Your text';
    $('output-label').textContent = pairs ? 'Label' : to ? `Translation into ${language(to)}` : 'Translation';
    if (/^[a-z]{2,3}$/.test(from ?? '')) $('source').lang = from;
    if (/^[a-z]{2,3}$/.test(to ?? '')) $('output').lang = $('alternatives').lang = to;
    say(`Ready after ${found.seconds.toFixed(2)} seconds${found.name ? ` with ${found.name}` : ''}.`);
    if (found.name) $('title').textContent = document.title = found.name;
    explain(found);
    ask();
  },

  lines({job: of, found, last}) {
    if (of !== job) return;
    if (!answers.length) $('output').replaceChildren();
    for (const {number: line, answers: list} of found) {
      answers[line] = list;
      $('output').append(element('li', list[0]?.text ?? ''));
    }
    if (last) stale(false);
    const any = what => answers.some(list => list[0]?.[what]);
    $('note').textContent = any('cut') ? CUT : any('unheard') ? UNHEARD : '';
    showAlternatives();
  },

  picture(found) {
    picture = found;
    paint();
  },

  refused({what, reason, name}) {
    $('progress').hidden = true;
    const before = facts ? '; the ticket that was open before stays' : '';
    if (what !== 'open') {
      say(`Cannot do that: ${reason}.`, true);
      return stale(false);
    }
    opening = false;
    say(`Cannot open ${name ?? OWN}: ${reason}${before}.`, true);
    if (facts) ask();
    else stale(false);
  },
};

// The beams of the line in which the cursor is.
function showAlternatives() {
  const line = pairs ? 0 : $('source').value.slice(0, $('source').selectionStart).split('\n').length - 1;
  const list = (answers[line] ?? []).slice(pairs ? 0 : 1);
  $('alternatives-label').hidden = !list.length;
  $('alternatives-label').textContent = pairs ? 'Probabilities' : 'Alternatives and their scores';
  $('alternatives').replaceChildren(...list.map(({text, score}) => {
    const row = element('li', '');
    row.append(element('span', text), element('span', score === undefined ? '' : score.toFixed(pairs ? 3 : 2)));
    return row;
  }));
}

// A code such as de in words, where the browser knows it.
function language(code) {
  try {
    return new Intl.DisplayNames(['en'], {type: 'language'}).of(code) ?? code;
  } catch {
    return code;
  }
}

// The role of a tensor in words.
const WORDS = [['encoder.sentence_encoder', 'encoder'], ['encoder_attn', 'attention to the source'], ['self_attn', 'self-attention'],
  ['q_proj', 'queries'], ['k_proj', 'keys'], ['v_proj', 'values'], ['out_proj', 'output'], ['fc1', 'feed-forward, first half'],
  ['fc2', 'feed-forward, second half'], ['embed_tokens', 'embeddings'], ['output_projection', 'output symbols'], ['layers.*.', '']];

function inWords(role) {
  const words = WORDS.reduce((text, [name, word]) => text.replace(name, word), role).replaceAll('.', ', ').replaceAll('_', ' ');
  return words[0].toUpperCase() + words.slice(1);
}

function explain({settings, roles, kept, positions, parts, masks, digest, bytes: total, drawn, signed, trained}) {
  $('size').textContent = bytes(total);
  $('shared').hidden = roles.every(({layers}) => layers < 2);
  $('claim').hidden = !masks;
  $('drawn').textContent = number(drawn);
  $('bits').textContent = number(positions + (signed ? kept : 0));
  $('choice').textContent = 'one for each weight of each layer: keep it, or put zero in its place.' +
    (signed ? ' Those that are kept have one more, for the sign.' : '');
  $('trained').textContent = trained ? ` and ${number(trained)} values beside them` : '';
  $('seed').textContent = settings.seed;
  const stored = Object.values(parts).reduce((sum, part) => sum + part, 0);
  const rows = [...Object.entries(parts), ['header', total - stored]].sort((a, b) => b[1] - a[1]);
  $('parts').replaceChildren(...rows.map(([part, size]) => {
    const row = element('tr', ''), bar = element('td', ''), fill = element('i', '');
    fill.style.width = `${100 * size / total}%`;
    bar.append(fill);
    row.append(element('th', part, {scope: 'row'}), element('td', number(size)), bar);
    return row;
  }));
  $('checks').textContent = `${masks} masks keep ${number(kept)} of ${number(positions)} weights` +
    ` (${(100 * kept / positions || 0).toFixed(1)}%).` +
    ` Checked: the weights drawn here and all parts of the ticket have the digests that it states. Its own is ${digest}.`;
  const decodes = ({role}) => role.startsWith('decoder');
  const best = roles.slice().sort((a, b) => b.layers - a.layers || decodes(a) - decodes(b) || a.role.localeCompare(b.role))[0];
  $('role').replaceChildren(...roles.map(({role, shape, layers}) =>
    element('option', `${inWords(role)}: ${shape.join(' × ')}, ${layers} ${layers === 1 ? 'mask' : 'masks'}`, {value: role})));
  $('idea').hidden = !best;
  if (best) {
    $('role').value = best.role;
    worker.postMessage({kind: 'picture', role: best.role});
  }
}

// The frozen tensor in two colours by sign and size; of each layer its mask, and what it keeps.
function paint() {
  const {shape, rows, columns, frozen, imported, masks} = picture;
  const style = getComputedStyle(document.documentElement);
  const colour = name => [1, 3, 5].map(at => parseInt(style.getPropertyValue(name).trim().slice(at, at + 2), 16));
  const [low, high, ink, card] = ['--low', '--high', '--ink', '--paper'].map(colour);
  const shades = values => {
    const most = values.reduce((top, value) => Math.max(top, Math.abs(value)), 1e-9);
    return i => {
      const share = Math.abs(values[i]) / most, to = values[i] < 0 ? low : high;
      return card.map((from, c) => from + (to[c] - from) * share);
    };
  };
  const draw = (label, pixel) => {
    const canvas = element('canvas', '', {width: columns, height: rows});
    const context = canvas.getContext('2d'), image = context.createImageData(columns, rows);
    for (let i = 0; i < rows * columns; i++) image.data.set([...pixel(i), 255], 4 * i);
    context.putImageData(image, 0, 0);
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', label);
    return canvas;
  };
  const figure = (kind, caption, ...parts) => {
    const made = element('figure', '', {className: kind});
    made.append(element('figcaption', caption), ...parts);
    return made;
  };
  const origin = imported ? 'Weights of another trained model' : 'Random weights';
  $('pictures').replaceChildren(
    figure('frozen', `${origin}${masks.length > 1 ? ', the same for all layers' : ''}`, draw(origin, shades(frozen))),
    ...masks.map(({layer, kept, bits, weights}) => {
      const [, place] = /\.layers\.(\d+)\./.exec(layer) ?? [], name = place === undefined ? 'Here' : `Layer ${Number(place) + 1}`;
      return figure('masked', `${name}: learned mask`,
        draw(`Mask, ${layer}`, i => (bits[i] ? ink : card)),
        element('p', `It keeps ${number(kept)} of ${number(shape[0] * shape[1])}`),
        draw(`Weights under the mask, ${layer}`, shades(weights)));
    }));
  const whole = rows === shape[0] && columns === shape[1];
  $('corner').textContent = (whole ? 'Shown is the whole tensor.' : `Shown are the first ${rows} × ${columns} weights.`) +
    ` Blue is positive, orange negative; a mask is ${DARK.matches ? 'light' : 'dark'} where it keeps a weight.`;
}

async function openFile(file) {
  if (!file) return;
  const refuse = reason => shown.refused({what: 'open', name: file.name, reason});
  if (file.size > MOST_BYTES) return refuse(`it has ${number(file.size)} bytes, and this page reads at most ${number(MOST_BYTES)}`);
  try {
    open(new Uint8Array(await file.arrayBuffer()), file.name);
  } catch {
    refuse('this browser cannot read it; choose a file, not a folder');
  }
}

// Text that is dragged into a text box is the browser's to drop.
const hasFiles = event => event.dataTransfer.types.includes('Files');

// dir="auto" of the browser takes minutes on a line of a megabyte.
const FROM_RIGHT = /^\P{L}*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}]/u;
for (const id of ['source', 'other'])
  $(id).addEventListener('input', ({target}) => { target.dir = FROM_RIGHT.test(target.value.slice(0, 200)) ? 'rtl' : 'ltr'; });
for (const id of ['source', 'other', 'beam']) $(id).addEventListener('input', ask);
$('source').addEventListener('keyup', showAlternatives);
$('source').addEventListener('click', showAlternatives);
$('role').addEventListener('change', () => worker.postMessage({kind: 'picture', role: $('role').value}));
DARK.addEventListener('change', () => picture && paint());
$('file').addEventListener('change', event => openFile(event.target.files[0]));
addEventListener('dragover', event => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  document.body.classList.add('dropping');
});
addEventListener('dragleave', () => document.body.classList.remove('dropping'));
addEventListener('drop', event => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  document.body.classList.remove('dropping');
  openFile(event.dataTransfer.files[0]);
});

const examples = JSON.parse($('example-lines').textContent);
$('examples').hidden = !examples.length;
$('examples').append(...examples.map(line => {
  const [first, second = ''] = line.split('\t');
  const button = element('button', first, {type: 'button'});
  button.addEventListener('click', () => {
    [$('source').value, $('other').value] = [first, second];
    ask();
  });
  return button;
}));
if (examples.length) [$('source').value, $('other').value = ''] = examples[0].split('\t');

async function start() {
  const script = new Blob([await unpacked('engine')], {type: 'text/javascript'});
  worker = new Worker(URL.createObjectURL(script));
  worker.onmessage = ({data}) => shown[data.kind](data);
  worker.onerror = event => say(`This page fails: ${event.message ?? 'its worker was refused'}.`, true);
  kernels = await unpacked('kernels');
  tables = JSON.parse(new TextDecoder().decode(await unpacked('tables')));
  open(await unpacked('ticket'));
}

start().catch(error => say(`This page needs a newer browser: ${error.message}.`, true));
