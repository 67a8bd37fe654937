// What is wrong with a ticket or a text, as one sentence for the reader of the page.
export class Refusal extends Error {}

export function demand(valid, reason) {
  if (!valid) throw new Refusal(reason);
}

// A value out of a file: short, on one line.
export function quoted(value) {
  const text = JSON.stringify(value, (_, v) => (typeof v === 'bigint' ? Number(v) : v)) ?? 'nothing';
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}
