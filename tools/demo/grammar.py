"""Sentences in the manner of business news, from a grammar of our own."""

from __future__ import annotations

import re

import numpy as np

from demo.vocabulary import Vocabulary

_SLOT = re.compile(r"\{([\w:]+)\}")
_ONES = "one two three four five six seven eight nine"
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"

# A slot is a rule of this table or a pool of the vocabulary; alternatives are equally likely. A comma is a short pause.
RULES = {
    "sentence": """
        {company} said {quarter} profit {up:ed} {percent}
        {company} said its {adj} {noun} {down:ed} {percent} {when}
        {company} will {verb} its {product} {noun} {when}
        {company} agreed to buy {company} for {amount}
        {company} plans to {verb} {number} {place} {noun:s}
        {company} named {person} {role}
        {company} is {verb:ing} a {adj} {noun} in {place}
        {company} has {verb:en} the {noun} of {company}
        {person} was named {role} of this {adj} {noun} company
        {person}, {number} years old, succeeds {person} as {role}
        {person}, {role} of {company}, {adverb} {verb:ed} the {noun}
        {person}, a {city} {role}, {said:ed} the {noun} was {adj}
        the {noun} was {adverb} {verb:en} by {company}
        the {noun} {up:ed} {measure} in {month}, from {measure} {when}
        the {nationality} {noun} {down:ed} {percent} in {month}
        the {role} {verb:ed} a {adj} {noun} {when}
        the {role:s} {verb:ed} {adj} {noun:s}, but the {noun} {up:ed}
        the {adj} {role} {said:s} that {noun:s} will {down} in {place}
        {nationality} {role:s} {said} the {noun} is {adj}
        {nationality} {product:s} {up:ed} to {price} a {unit}
        {product} prices {up:ed} {adverb} in {city} {when}
        {product:s} and {product:s} are {adverb} {verb:en} in {country}
        {country} and {country} {verb:ed} a {adj} {noun} {when}
        {country} {verb:ed} {number} {unit:s} of {product} {when}
        shares of {company} {down:ed} {fraction} to {number}
        shares {up:ed} {number} and {fraction}, {role:s} said
        it is a {adj} and {adj} {noun}, {said:s} {person}
        it {adverb} {verb:s} the {adj} {noun} of {city}
        we are {verb:ing} every {noun}, {person} said
        we have {adverb} {verb:en} the {adj} {noun}
        they {adverb} {verb} {adj} {product:s}
        she {verb:ed} the {noun} of {product:s} in {state}
        he {verb:ed} that {noun} in {year}, {role:s} {said}
        in {year}, {company} {verb:ed} {amount} of {noun:s}
        in {city}, the {noun} {up:ed} {number} points
        {when}, {role:s} in {country} {verb:ed} the {noun}
        a {role} at {company} {said:ed} {noun:s} are {adverb} {adj}
        a {adj} {noun} {may} {verb} {nationality} {noun:s}
        a {state} {noun} {may} {verb} the {product} {role:s}
        {noun:s} {may} {down} in {month}, said {person} of {company}
        {adj} {noun:s} and {adj} {noun:s} {verb:ed} {company}
        sales of {product:s} {down:ed} {percent} to {amount}
        about {number} {role:s} in {state} {may} {verb} the {noun}
        {role:s} {may} {adverb} {verb} the {noun} of {year}
        the {currency} {up:ed} against the {currency} in {city}
        the {company} {noun} is {adverb} {adj}
        that {noun} is {verb:ing} {adj} {role:s}
        {person} and {person} {verb:ed} {number} {product:s}""",
    "company": """
        {brand} {suffix}
        {brand} {suffix}
        {brand} {product} company
        {surname} {suffix}
        {surname} and {surname}
        {surname} {product} {suffix}
        {city} {suffix}
        first {state} {suffix}""",
    "person": """
        {given} {surname}
        {given} {surname}
        mister {surname}
        missus {surname}
        doctor {surname}""",
    "place": """
        {city}
        {city}
        {country}
        {state}""",
    "number": """
        {ones}
        {teens}
        {tens}
        {tens} {ones}
        {ones} hundred
        {ones} thousand""",
    "percent": """
        {ones} percent
        {teens} point {ones} percent
        {tens} {ones} percent
        {number} percent""",
    "fraction": """
        one half
        one quarter
        three quarters
        {ones} eighths""",
    "price": """
        {number} {currency:s}
        {ones} {currency:s} and {tens} cents
        {number} yen""",
    "amount": """
        {number} {currency:s}
        {number} million {currency:s}
        {ones} point {ones} billion {currency:s}
        {tens} million yen""",
    "measure": """
        {percent}
        {amount}
        {number} {unit:s}""",
    "year": """
        nineteen {tens} {ones}
        nineteen {tens} {ones}
        two thousand {ones}""",
    "quarter": """
        first quarter
        second quarter
        third quarter
        fourth quarter
        annual""",
    "when": """
        on {weekday}
        last {weekday}
        in {month}
        in {year}
        this week
        last month
        a year earlier""",
    "may": """
        may
        might
        could
        should
        would
        must""",
    "ones": "\n".join(_ONES.split()),
    "teens": "\n".join(_TEENS.split()),
    "tens": "\n".join(_TENS.split()),
}
_RULES = {slot: [line.strip() for line in lines.strip().splitlines()] for slot, lines in RULES.items()}


class Grammar:
    """Draws sentences over a vocabulary; every slot of every rule is checked when it is built."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.expansions: dict[str, list[str]] = vocabulary.pools | _RULES
        for slot in {slot for lines in _RULES.values() for line in lines for slot in _SLOT.findall(line)}:
            if not self.expansions.get(slot):
                raise KeyError(f"the grammar uses {{{slot}}}, for which there is neither rule nor pronounced word")

    def sentence(self, rng: np.random.Generator) -> list[str]:
        """Words in lower case and commas, such as `['the', 'yen', 'rose', ',', ...]`."""
        words = self._expand("sentence", rng).replace(",", " ,").split()
        for place, following in enumerate(words[1:]):
            if words[place] == "a" and self._starts_with_vowel(following):
                words[place] = "an"
        return words

    def words(self) -> set[str]:
        """Every word that a sentence can hold."""
        slots, seen, words = ["sentence"], set(), {"an"}
        while slots:
            slot = slots.pop()
            if slot not in seen:
                seen.add(slot)
                for line in self.expansions[slot]:
                    slots += _SLOT.findall(line)
                    words |= set(_SLOT.sub(" ", line).replace(",", " ").split())
        return words

    def _expand(self, slot: str, rng: np.random.Generator) -> str:
        lines = self.expansions[slot]
        return _SLOT.sub(lambda match: self._expand(match[1], rng), lines[int(rng.integers(len(lines)))])

    def _starts_with_vowel(self, word: str) -> bool:
        return word in self.vocabulary.pronunciations and self.vocabulary.pronunciations[word][0][0][-1].isdigit()
