// fairseq's beam search: scores are divided by their length, the longest has 200 symbols.
import {Refusal} from './refusal.mjs';

export const PAD = 1, EOS = 2, UNKNOWN = 3;
const LONGEST = 200;

// The finished hypotheses [{ids, score}], best first. `pause` lets others run between steps.
export async function beamSearch(model, source, {beam, symbols, positions, pause}) {
  const {memory, flags} = model;
  const width = Math.min(beam, symbols - 1), last = Math.min(LONGEST, positions - 1);
  const row = model.cacheRow(), room = row * (last + 1);
  const done = [];
  let live = [{ids: [EOS], score: 0, cache: memory.take(room)}];
  let spare = Array.from({length: width - 1}, () => memory.take(room));
  for (let at = 0; at <= last; at++) {
    await pause();
    const top = memory.top;
    const logits = model.step(live.map(h => h.ids[at]), at, source, live.map(h => h.cache), symbols);
    const best = candidates(memory.view(logits, live.length * symbols), live,
      {count: 2 * width, symbols, first: at === 0, last: at === last});
    memory.top = top;
    for (const {score, from, symbol} of best.slice(0, width))
      if (symbol === EOS && done.length < width)
        done.push({ids: live[from].ids.slice(1), score: Math.fround(score / (at + 1))});
    if (done.length === width || at === last) break;
    ({live, spare} = continued(memory, live, spare, best.filter(c => c.symbol !== EOS).slice(0, width), row * (at + 1)));
    if (!live.length) break;
  }
  if (!done.length) throw new Refusal('the model breaks down in beam search');
  return done.sort((a, b) => b.score - a.score);
}

// The candidates with the highest scores, best first.
function candidates(logits, live, {count, symbols, first, last}) {
  const best = [];
  live.forEach(({score: before}, from) => {
    const row = logits.subarray(from * symbols, (from + 1) * symbols);
    let top = -Infinity, sum = 0;
    for (let i = 0; i < symbols; i++) if (row[i] > top) top = row[i];
    for (let i = 0; i < symbols; i++) sum += Math.exp(row[i] - top);
    const shift = top + Math.log(sum);
    for (let symbol = last ? EOS : 0; symbol < (last ? EOS + 1 : symbols); symbol++) {
      if (symbol === PAD || (first && symbol === EOS)) continue;
      const score = Math.fround(Math.fround(row[symbol] - shift) + before);
      if (!(score > -Infinity) || (best.length === count && score <= best[count - 1].score)) continue;
      let place = best.length;
      while (place > 0 && best[place - 1].score < score) place--;
      best.splice(place, 0, {score, from, symbol});
      if (best.length > count) best.pop();
    }
  });
  return best;
}

// The chosen candidates as hypotheses: the first of a hypothesis keeps its cache, others copy it.
function continued(memory, live, spare, chosen, used) {
  const followed = new Set(chosen.map(({from}) => from)), kept = new Set();
  const rooms = [...spare, ...live.filter((_, index) => !followed.has(index)).map(({cache}) => cache)];
  const next = chosen.map(({score, from, symbol}) => {
    const {ids, cache} = live[from];
    let own = cache;
    if (kept.has(from)) {
      own = rooms.pop();
      memory.floats.copyWithin(own, cache, cache + used);
    }
    kept.add(from);
    return {ids: [...ids, symbol], score, cache: own};
  });
  return {live: next, spare: rooms};
}
