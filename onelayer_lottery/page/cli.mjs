// The page's engine in Node: node cli.mjs TICKET [BEAM [TABLES.json]] < text, as
// onelayer-lottery translate; TABLES are those of moses.py.
import {readFileSync} from 'node:fs';
import {Refusal} from './refusal.mjs';
import {openTicket} from './translator.mjs';

const [path, beam = '5', lists] = process.argv.slice(2);
try {
  const kernels = readFileSync(new URL('kernels.wasm', import.meta.url));
  const tables = lists ? JSON.parse(readFileSync(lists, 'utf8')) : null;
  const started = performance.now();
  const ready = await openTicket(new Uint8Array(readFileSync(path)), kernels, {tables});
  const loaded = performance.now(), before = process.cpuUsage();
  const lines = readFileSync(0, 'utf8').replace(/\n$/, '').split('\n'), out = [];
  for (const line of lines) {
    const [best] = ready.classify ? await ready.classify(line.split('\t'))
      : await ready.translate(line, {beam: Number(beam)});
    out.push(best && ready.classify && best.score !== undefined ? `${best.text}\t${best.score.toFixed(4)}` : best?.text ?? '');
  }
  const used = process.cpuUsage(before), seconds = (used.user + used.system) / 1e6;
  process.stdout.write(`${out.join('\n')}\n`);
  if (process.env.MEASURE)
    process.stderr.write(`ready ${Math.round(loaded - started)} ms, ${(lines.length / seconds).toFixed(1)} lines per CPU-second\n`);
} catch (error) {
  if (!(error instanceof Refusal)) throw error;
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 1;
}
