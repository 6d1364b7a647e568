"""Prompts of about so many tokens, without a tokenizer: common English words, and a line fitted to what the server counts.

Most byte-pair vocabularies hold each of these words, with the space before it, as one token; a byte tokenizer needs six. A `Fit` from two
probe requests tells which, so that a workload asked for 512 tokens gets about 512 on any server. Reports use the server's own counts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_TEXT = """
about above across after again against almost alone along already also although always among another answer any area
around ask away back base because become before began begin behind being believe below between beyond big bird black
blue board boat body book both bottom box boy bring brother brought build built business but call came can car care
carry case catch cause center certain chance change check child children church city clear close cold color come
common company complete contain control could country course cover cross cut dark day decide deep did different direct
distance does dog done door down draw drive dry during each early earth east easy eat effect eight either end energy
engine enough even evening ever every example eye face fact fall family far farm fast father feel feet field figure
final find fine fire first fish five floor fly follow food foot force form found four free friend from front full game
garden gave general get girl give glass go gold good got great green ground group grow half hand happy hard have head
hear heard heart heat heavy held help here high hill history hold home horse hot hour house however hundred idea
inside island keep kind king knew know land language large last late later laugh lay lead learn leave left less let
letter level life light line list listen little live local long look love low machine made main make man many map mark
matter may mean measure men might mile mind minute money month moon more morning most mother mountain move much music
must name near need never new next night north nothing notice now number object ocean off often old once one only open
order other our out over own page paper part pass past pattern people perhaps person picture piece place plain plan
plant play point poor possible power present problem produce product public pull put question quick rain ran reach
read ready real reason record red remember rest result rich ride right river road rock room round rule run said same
saw say school science sea second see seem self sentence serve set seven several shape she ship short should show side
simple since sing six sleep slow small snow some song soon sound south space special spring stand star start state
stay step still stone stop story street strong study such summer sun sure surface table take talk teach tell ten test
than that their them then there these they thing think this those thought three through time today together told too
took top toward town travel tree true try turn two under unit until upon use usual very voice wait walk wall want war
warm watch water way week weight well went were west what wheel when where which while white who whole why wide will
wind window winter wish with without woman wonder wood word work world would write year yes yet you young your
"""
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class Fit:
    """How a server counts: tokens = fixed + per_word * words."""

    per_word: float = 1.0
    """Tokens per word, > 0."""
    fixed: float = 0.0
    """Tokens of a prompt without words (chat template, beginning-of-sequence), >= 0."""

    def words_for(self, tokens: int, *, whole_prompt: bool) -> int:
        """Words that make about ``tokens`` tokens (at least one word); a whole prompt also holds the fixed part."""
        room = tokens - self.fixed if whole_prompt else float(tokens)
        return max(1, round(room / self.per_word))


def fit(words_a: int, tokens_a: int, words_b: int, tokens_b: int) -> Fit:
    """The line through two probes (number of words, prompt tokens as counted by the server).

    Raises:
        ValueError: the probes have equal lengths, or the longer one counts no more tokens.
    """
    if words_a == words_b or (tokens_b - tokens_a) * (words_b - words_a) <= 0:
        raise ValueError(
            f"probes do not fit a line: {words_a} words = {tokens_a} tokens, {words_b} words = {tokens_b} tokens"
        )
    per_word = (tokens_b - tokens_a) / (words_b - words_a)
    return Fit(per_word, max(0.0, tokens_a - per_word * words_a))


def text(rng: random.Random, words: int) -> str:
    """``words`` random words, separated by spaces."""
    return " ".join(rng.choices(WORDS, k=words))
