// Moses' tokens and back, exactly as sacremoses makes them. Its lists are in `tables`, which
// the command that writes the page takes from that library (moses.py): classes of characters,
// as the lengths of runs outside and inside them, and abbreviations by language.
import {demand} from './refusal.mjs';
import {WHITE, pythonSplit, pythonStrip} from './dictionary.mjs';

// Their rules need more than these lists.
const LEFT_OUT = {source: ['cjk', 'ja', 'ko', 'zh'], target: ['cs', 'fi', 'ko']};

export class Moses {
  constructor({source, target, dashes}, tables) {
    for (const [side, language] of Object.entries({source, target}))
      demand(!LEFT_OUT[side].includes(language),
        `its text is tokenised by Moses' rules of ${language}, which no page has; use onelayer-lottery translate`);
    const abbreviations = tables?.abbreviations[source];
    demand(abbreviations,
      `its text is tokenised by Moses' rules of ${source}, which this page does not hold; make a page of this ticket`);
    const classes = Object.fromEntries(Object.entries(tables.classes).map(([name, runs]) => [name, classBody(runs)]));
    const normal = normalRules(source), tokens = tokenRules(source, dashes, classes);
    const period = periodRule(abbreviations, classes);
    this.encode = text => {
      text = pythonStrip(replaced(text, normal));
      text = pythonStrip(text.replace(SPACES_IN_A_ROW, ' ').replace(/[\0-\x1f]/g, ''));
      text = period(replaced(text, tokens));
      text = text.replace(/\.' ?$/, " . ' ");
      // Runs of dots were words of letters until here, so that no rule took them apart.
      text = text.replace(/(?:DOT)+(MULTI)?/g,
        (all, multi) => (multi ? '.'.repeat((all.length - 5) / 3) : all));
      return replaced(text, ESCAPES);
    };
    this.decode = detokenizer(target, classes);
  }
}

const SPACES_IN_A_ROW = new RegExp(`[${WHITE}]+`, 'gu');
const ESCAPES = [['&', '&amp;'], ['|', '&#124;'], ['<', '&lt;'], ['>', '&gt;'], ["'", '&apos;'], ['"', '&quot;'],
  ['[', '&#91;'], [']', '&#93;']];
const UNESCAPES = [['&bar;', '|'], ['&#124;', '|'], ['&lt;', '<'], ['&gt;', '>'], ['&bra;', '['], ['&ket;', ']'],
  ['&quot;', '"'], ['&apos;', "'"], ['&#91;', '['], ['&#93;', ']'], ['&amp;', '&']];

// What stands between the brackets of a class in a regular expression.
function classBody(runs) {
  let body = '', code = 0;
  runs.forEach((length, i) => {
    if (i % 2) body += `\\u{${code.toString(16)}}-\\u{${(code + length - 1).toString(16)}}`;
    code += length;
  });
  return body;
}

function replaced(text, rules) {
  return rules.reduce((before, [from, to]) => before.replaceAll(from, to), text);
}

// Punctuation in one spelling.
function normalRules(language) {
  const digits = ['cs', 'cz', 'de', 'es', 'fr'].includes(language) ? '$1,$2' : '$1.$2';
  const quotes = {
    en: [[/"([,.]+)/g, '$1"']],
    de: [
      [',"', '",'],
      // One match for each run of dots: the time must not grow with the square of its length.
      [new RegExp(`(\\.+)(?:"([${WHITE}]*[^<]))?`, 'gu'),
        (all, dots, rest) => (rest === undefined ? all : `"${dots}${rest}`)],
    ],
  };
  return [
    ['\r', ''], ['(', ' ('], [')', ') '], [/ +/g, ' '], [/\) ([.!:?;,])/g, ')$1'], ['( ', '('], [' )', ')'],
    [/(\p{Nd}) %/gu, '$1%'], [' :', ':'], [' ;', ';'],
    ['`', "'"], ["''", ' " '],
    [/[„“”]/g, '"'], ['–', '-'], ['—', ' - '], [/ +/g, ' '], ['´', "'"],
    [/([a-zA-Z])‘([a-zA-Z])/g, "$1'$2"], [/([a-zA-Z])’([a-zA-Z])/g, "$1'$2"], [/[‘‚’]/g, "'"],
    ["''", '"'], ['…', '...'],
    ['\xa0«\xa0', '"'], ['«\xa0', '"'], ['«', '"'], ['\xa0»\xa0', '"'], ['\xa0»', '"'], ['»', '"'],
    ['\xa0%', '%'], ['nº\xa0', 'nº '], ['\xa0:', ':'], ['\xa0ºC', ' ºC'], ['\xa0cm', ' cm'],
    ['\xa0?', '?'], ['\xa0!', '!'], ['\xa0;', ';'], [',\xa0', ', '], [/ +/g, ' '],
    ...language === 'en' ? quotes.en : ['de', 'es', 'fr'].includes(language) ? quotes.de : [],
    [/(\p{Nd})\xa0(\p{Nd})/gu, digits],
  ];
}

// Spaces around what is a word of its own.
function tokenRules(language, dashes, {letters, marks, digits, numbers}) {
  const alpha = letters + marks, alnum = alpha + digits;
  const rule = (pattern, to) => [new RegExp(pattern, 'gu'), to];
  const apostrophes = {
    en: [
      rule(`([^${alpha}])'([^${alpha}])`, "$1 ' $2"), rule(`([^${alpha}${numbers}])'([${alpha}])`, "$1 ' $2"),
      rule(`([${alpha}])'([^${alpha}])`, "$1 ' $2"), rule(`([${alpha}])'([${alpha}])`, "$1 '$2"),
      rule(`([${numbers}])'(s)`, "$1 '$2"),
    ],
    fr: [
      rule(`([^${alpha}])'([^${alpha}])`, "$1 ' $2"), rule(`([^${alpha}])'([${alpha}])`, "$1 ' $2"),
      rule(`([${alpha}])'([^${alpha}])`, "$1 ' $2"), rule(`([${alpha}])'([${alpha}])`, "$1' $2"),
    ],
  };
  return [
    rule(`([^${alnum}${WHITE}.'\`,\\-])`, ' $1 '),
    ...dashes ? [rule(`([${alnum}])-(?=[${alnum}])`, '$1 @-@ ')] : [],
    [/\.{2,}/g, (dots, at, text) =>
      ` ${'DOT'.repeat(dots.length)}MULTI${at + dots.length < text.length ? ' ' : ''}`],
    rule(`([^${numbers}]),`, '$1 , '), rule(`,([^${numbers}])`, ' , $1'), rule(`([${numbers}]),$`, '$1 , '),
    ...language === 'en' ? apostrophes.en : ['fr', 'it'].includes(language) ? apostrophes.fr : [["'", " ' "]],
  ];
}

// A period ends its word, unless that is an abbreviation or the sentence goes on.
function periodRule({words, numeric}, {letters, marks, lower}) {
  const any = new Set(words), beforeNumbers = new Set(numeric);
  const hasLetter = new RegExp(`[${letters}${marks}]`, 'u'), startsLow = new RegExp(`^[${lower}]`, 'u');
  return text => pythonSplit(text).map((word, i, all) => {
    if (word.length < 2 || !word.endsWith('.')) return word;
    const stem = word.slice(0, -1), next = all[i + 1];
    const keeps = (stem.includes('.') && hasLetter.test(stem)) || (any.has(stem) && !beforeNumbers.has(stem)) ||
      (next && startsLow.test(next)) || (beforeNumbers.has(stem) && /^[0-9]/.test(next ?? ''));
    return keeps ? word : `${stem} .`;
  }).join(' ');
}

function detokenizer(language, {letters, currency, cjk}) {
  const pattern = text => new RegExp(text, 'u');
  const opens = pattern(`^[${currency}([{¿¡]+$`), closes = /^[,.?!:;\\%}\])]+$/, quotes = /^['"„“`]+$/;
  const contraction = pattern(`^'[${letters}]`), elision = pattern(`[${letters}]'$`), starts = pattern(`^[${letters}]`);
  const east = pattern(`^[${cjk}]`), eastAtEnd = pattern(`[${cjk}]$`);
  // Which of its neighbours a word joins: neither, the one on its left, or that on its right.
  function side(word, i, words, count) {
    if (east.test(word)) return i && eastAtEnd.test(words[i - 1]) ? 'left' : 'none';
    if (opens.test(word)) return 'right';
    if (closes.test(word)) return language === 'fr' && /^[?!:;\\%]$/.test(word) ? 'space' : 'left';
    if (language === 'en' && i && contraction.test(word)) return 'left';
    if (['fr', 'it', 'ga'].includes(language) && i + 1 < words.length && elision.test(word) && starts.test(words[i + 1]))
      return 'right';
    if (!quotes.test(word)) return 'none';
    const kind = /^[„“”]+$/.test(word) ? '"' : word, before = count.get(kind) ?? 0;
    const possessive = language === 'en' && word === "'" && i > 0 && words[i - 1].endsWith('s');
    if (before % 2 === 0 && possessive) return 'left';
    count.set(kind, before + 1);
    return before % 2 ? 'left' : 'right';
  }
  return text => {
    const words = pythonSplit(replaced(` ${pythonSplit(text).join(' ')} `.replaceAll(' @-@ ', '-'), UNESCAPES));
    const count = new Map();
    let found = '', space = ' ';
    words.forEach((word, i) => {
      const joins = side(word, i, words, count);
      found += (joins === 'left' ? '' : joins === 'space' ? ' ' : space) + word;
      space = joins === 'right' ? '' : ' ';
    });
    return pythonStrip(found.replace(/ {2,}/g, ' '));
  };
}
