"""The lists of sacremoses that a page needs to tokenise text as Moses does.

They are taken from the installed library when a page is written: no list is kept here
that could differ from the one with which ``translate`` works.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any, Dict, Iterable, List, Optional

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.ticket.format import Moses

# Languages whose rules need more than these lists; moses.mjs refuses them too.
LEFT_OUT = {"source": ("cjk", "ja", "ko", "zh"), "target": ("cs", "fi", "ko")}


def moses_tables(moses: Optional[Moses]) -> Optional[Dict[str, Any]]:
    """Return classes of characters, and abbreviations of both languages."""
    if moses is None:
        return None
    try:
        from sacremoses import MosesDetokenizer, MosesTokenizer
        from sacremoses.util import CJKChars
    except ImportError:
        raise LotteryError(
            "the ticket takes text tokenised by Moses, and its page needs the lists of"
            " the library sacremoses, which is not installed: pip install sacremoses"
        ) from None
    letters = set(MosesDetokenizer.IsAlpha)
    alpha, alnum = set(MosesTokenizer.IsAlpha), set(MosesTokenizer.IsAlnum)
    return {
        "classes": {
            "letters": _runs(letters),
            "marks": _runs(alpha - letters),
            "digits": _runs(alnum - alpha),
            "numbers": _runs(MosesTokenizer.IsN),
            "lower": _runs(MosesTokenizer.IsLower),
            "currency": _runs(MosesTokenizer.IsSc),
            "cjk": _runs(
                map(chr, chain(*(range(a, b + 1) for a, b in CJKChars().ranges)))
            ),
        },
        "abbreviations": {
            language: _abbreviations(MosesTokenizer(lang=language))
            for language in (moses.source, moses.target)
        },
    }


def _abbreviations(tokenizer: Any) -> Dict[str, Any]:
    numeric = set(tokenizer.NUMERIC_ONLY_PREFIXES)
    words = {
        word for word in tokenizer.NONBREAKING_PREFIXES if not re.search(r"\s", word)
    }
    return {"words": sorted(words), "numeric": sorted(numeric)}


def _runs(characters: Iterable[str]) -> List[int]:
    """Count the codes in a row that are outside and inside, in turns, from 0 on."""
    runs: List[int] = []
    end = 0
    for code in sorted(set(map(ord, characters))):
        if not runs or code > end:
            runs += [code - end, 0]
        runs[-1] += 1
        end = code + 1
    return runs
