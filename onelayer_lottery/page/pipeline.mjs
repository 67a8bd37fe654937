// From raw text to the words of a dictionary and back: all that a ticket says of it.
import {Moses} from './moses.mjs';
import {subwordsOf} from './subwords.mjs';

export function pipelineOf({text, bpe}, tables) {
  const moses = text?.moses ? new Moses(text.moses, tables) : null, subwords = subwordsOf(bpe);
  return {
    encode(line) {
      if (moses) line = moses.encode(line);
      if (text?.lower) line = line.toLowerCase();
      return subwords.encode(line);
    },
    decode(words) {
      const line = subwords.decode(words);
      return moses ? moses.decode(line) : line;
    },
  };
}
