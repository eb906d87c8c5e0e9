"""Phrases that no native speaker would write, and what to write instead."""

from __future__ import annotations

import re

# A pattern, and the plain word for it. Patterns ignore case and match whole words.
PHRASES: dict[str, str] = {
    r"sees? to (?:it|that|all)\b": "makes sure, prevents, ensures",
    r"cannot see to": "does not cover",
    r"as pays off|what(?:ever)? pays\b(?! for)": "as helps, as many as help",
    r"of (?:its|his|hers|theirs|gpq's|one's own)(?= (?:until|that|which|and|or)\b)": "its own X",
    r"(?<!there )(?:is|are|was|were|be) no (?:number|value|name|file|folder|server|user|job|policy)\b": "is not a X",
    r"no value that fits": "invalid value",
    r"of no use": "useless",
    r"whatever it is": "any",
    r"so long (?:a|an) \w+": "this long",
    r"(?:is|are) ill\b": "unhealthy",
    r"heeds?\b": "honours, respects",
    r"hinders?\b": "affects, blocks",
    r"given out\b": "assigned",
    r"is due\b(?! to)": "is pending, is next",
    r"(?:was|were|is|are|be) made of\b": "consists of",
    r"made anew|anew\b": "again",
    r"(?<!are )(?<!is )all the same\b": "anyway",
    r"none of (?:yours|theirs|ours)": "nothing of yours",
    r"beside (?:a|an|the|each|it|them|its)\b": "next to, together with",
    r"beforehand\b": "in advance",
    r"thereby|therein|thereof|whereof|wherein|hereby|thereupon": "say it in two sentences",
    r"as ever\b": "as always",
    r"what (?:it|they|he|she|one) (?:is|are|was|were) told": "say what it receives",
    r"(?:is|are|was|were) told\b": "say who reports what to whom",
    r"lets? go of\b": "releases",
    r"comes? to an end\b|came to its end\b": "ends, finished",
    r"by itself alone\b": "on its own",
    r"in (?:its|their) place\b": "instead",
    r"so far as\b": "as far as",
    r"out of (?:gpq's|its) hands\b": "not managed by gpq",
    r"for good\b": "permanently",
    r"ill-(?:formed|shaped)": "malformed",
    r"which (?:is|are) to be\b": "say who does it",
    r"shall\b": "must, will",
    r"it be\b": "is",
    r"in the midst of": "in the middle of",
    r"at the (?:most|least)\b": "at most, at least",
    r"by way of\b": "through",
    r"with (?:it|them) the\b": "and the",
    r"needs not\b": "does not need to",
    r"may (?:not )?have come\b": "say what happened",
    r"begins? anew": "starts again",
    r"else it\b": "otherwise it",
    r"meanwhile\b": "in the meantime, while this happens",
    r"hold (?:good|true) for\b": "apply to",
    r"(?:lies|lie|lay) (?:in|below|there|beside)\b": "is in, is below",
    r"(?:stands|stand|stood) (?:in|at|there|beside|between)\b": "is in, is at",
    r"what (?:becomes|became) of\b": "what happens to",
    r"looks? whether\b": "checks whether",
    r"asks? for (?:it|them) by\b": "names",
    r"is (?:called|named) so\b": "has this name",
    r"(?:two|three|ten) times as (?:much|many|long)": "twice, three times",
}
COMPILED = {re.compile(rf"(?<![\w-])(?:{pattern})", re.IGNORECASE): plain for pattern, plain in PHRASES.items()}


def found(text: str) -> list[tuple[str, str]]:
    """Each phrase of `text` that is not plain English, with what to write instead."""
    return [(match[0], plain) for pattern, plain in COMPILED.items() for match in pattern.finditer(text)]
