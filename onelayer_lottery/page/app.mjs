// The page itself: what is typed goes to the worker, what comes back is shown as text.
const $ = id => document.getElementById(id);
let worker = null, kernels = null, tables = null, job = 0, pairs = false, answers = [], facts = null, picture = null;

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

function open(ticket, name) {
  $('progress').hidden = false;
  $('progress').value = 0;
  say(`Reading ${name}`);
  worker.postMessage({kind: 'open', kernels, tables, ticket, name, job: ++job});
}

// Ask for what is typed now; the worker leaves what it was asked before.
function ask() {
  const beam = Math.min(20, Math.max(1, Math.round($('beam').value) || 1));
  const lines = pairs ? [$('source').value, $('other').value] : $('source').value.split('\n');
  answers = [];
  $('output').classList.add('stale');
  if (facts) worker.postMessage({kind: 'text', lines, beam, job: ++job});
}

const shown = {
  progress({share, role}) {
    $('progress').value = share;
    if (role) say(`Drawing ${role} from the seed`);
  },

  ready(found) {
    facts = found;
    pairs = found.pairs;
    $('progress').hidden = true;
    $('second').hidden = !pairs;
    $('beam-box').hidden = pairs;
    const [from, to] = found.languages;
    $('source-label').textContent = pairs ? 'First sentence' : from ? `Your text (${from})` : 'Your text';
    $('output-label').textContent = pairs ? 'Label' : to ? `Translation (${to})` : 'Translation';
    if (/^[a-z]{2,3}$/.test(from ?? '')) $('source').lang = from;
    if (/^[a-z]{2,3}$/.test(to ?? '')) $('output').lang = $('alternatives').lang = to;
    const drawn = found.roles.reduce((sum, {shape: [rows, columns]}) => sum + rows * columns, 0);
    say(`Ready after ${found.seconds.toFixed(2)} seconds: ${number(drawn)} random weights under ${found.masks} masks.`);
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
    if (last) $('output').classList.remove('stale');
    if (found.some(({answers: list}) => list[0]?.cut)) say('The text is longer than the model reads; its end is left out.');
    showAlternatives();
  },

  picture(found) {
    picture = found;
    paint();
  },

  refused({what, reason, name}) {
    $('progress').hidden = true;
    if (what === 'open') say(`Cannot open ${name}: ${reason}.`, true);
    else say(`Cannot do that: ${reason}.`, true);
    $('output').classList.remove('stale');
  },
};


// The beams of the line in which the cursor is.
function showAlternatives() {
  const line = pairs ? 0 : $('source').value.slice(0, $('source').selectionStart).split('\n').length - 1;
  const list = (answers[line] ?? []).slice(pairs ? 0 : 1);
  $('alternatives-label').hidden = !list.length;
  $('alternatives-label').textContent = pairs ? 'Probabilities' : 'Alternatives';
  $('alternatives').replaceChildren(...list.map(({text, score}) => {
    const row = element('li', '');
    row.append(element('span', text), element('span', score === undefined ? '' : score.toFixed(pairs ? 3 : 2)));
    return row;
  }));
}

function explain({settings, roles, kept, positions, parts, masks, digest, bytes: total, trained}) {
  $('size').textContent = bytes(total);
  $('shared').hidden = roles.every(({layers}) => layers < 2);
  $('trained').textContent = trained ? `Beside them, ${number(trained)} values were trained densely.` : '';
  $('seed').textContent = settings.seed;
  const stored = Object.values(parts).reduce((sum, part) => sum + part, 0);
  const rows = [...Object.entries(parts), ['header', total - stored]].sort((a, b) => b[1] - a[1]);
  $('parts').replaceChildren(...rows.map(([part, size]) => {
    const row = element('tr', ''), bar = element('td', ''), fill = element('i', '');
    fill.style.width = `${100 * size / total}%`;
    bar.append(fill);
    row.append(element('td', part), element('td', number(size)), bar);
    return row;
  }));
  $('checks').textContent = `${masks} masks keep ${number(kept)} of ${number(positions)} weights` +
    ` (${(100 * kept / positions || 0).toFixed(1)}%).` +
    ` The weights drawn here have the stated digests, and so have all parts of the ticket; its own is ${digest}.`;
  const best = roles.slice().sort((a, b) => b.layers - a.layers || a.role.localeCompare(b.role))[0];
  $('role').replaceChildren(...roles.map(({role, shape, layers}) =>
    element('option', `${role}, ${shape.join(' × ')}, ${layers} ${layers === 1 ? 'mask' : 'masks'}`, {value: role})));
  $('idea').hidden = !best;
  if (best) {
    $('role').value = best.role;
    worker.postMessage({kind: 'picture', role: best.role});
  }
}

// The frozen tensor in two colours by sign and size, and the masks over it.
function paint() {
  const {shape, rows, columns, frozen, masks, role} = picture, under = $('under').checked;
  const style = getComputedStyle(document.documentElement);
  const colour = name => [1, 3, 5].map(at => parseInt(style.getPropertyValue(name).trim().slice(at, at + 2), 16));
  const [low, high, ink, card] = ['--low', '--high', '--ink', '--paper'].map(colour);
  const most = frozen.reduce((top, value) => Math.max(top, Math.abs(value)), 1e-9);
  const weight = i => {
    const share = Math.abs(frozen[i]) / most, to = frozen[i] < 0 ? low : high;
    return card.map((from, c) => from + (to[c] - from) * share);
  };
  const draw = (caption, pixel) => {
    const figure = element('figure', ''), canvas = element('canvas', '', {width: columns, height: rows});
    const context = canvas.getContext('2d'), image = context.createImageData(columns, rows);
    for (let i = 0; i < rows * columns; i++) image.data.set([...pixel(i), 255], 4 * i);
    context.putImageData(image, 0, 0);
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', caption);
    figure.append(canvas, element('figcaption', caption));
    return figure;
  };
  $('pictures').replaceChildren(
    draw('frozen random weights', weight),
    ...masks.map(({layer, kept, bits}) => draw(`${layer}: ${number(kept)} of ${number(shape[0] * shape[1])} kept`,
      i => (bits[i] ? under ? weight(i) : ink : card))));
  const whole = rows === shape[0] && columns === shape[1];
  $('corner').textContent = `${role} has ${shape.join(' × ')} weights` +
    (whole ? '.' : `; shown are the first ${rows} × ${columns}.`) +
    ' Blue is positive, orange negative; a mask is dark where it keeps a weight.';
}

async function openFile(file) {
  if (file) open(new Uint8Array(await file.arrayBuffer()), file.name);
}

for (const id of ['source', 'other', 'beam']) $(id).addEventListener('input', ask);
$('source').addEventListener('keyup', showAlternatives);
$('source').addEventListener('click', showAlternatives);
$('role').addEventListener('change', () => worker.postMessage({kind: 'picture', role: $('role').value}));
$('under').addEventListener('change', paint);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => picture && paint());
$('file').addEventListener('change', event => openFile(event.target.files[0]));
addEventListener('dragover', event => {
  event.preventDefault();
  document.body.classList.add('dropping');
});
addEventListener('dragleave', () => document.body.classList.remove('dropping'));
addEventListener('drop', event => {
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
  open(await unpacked('ticket'), 'the ticket of this page');
}

start().catch(error => say(`This page needs a newer browser: ${error.message}.`, true));
