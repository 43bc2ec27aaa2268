"""One table for a family of architectures: learn one of them, hold the others against it, learn what differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from isa_learning.control_facts import ControlFacts, note_kinds
from isa_learning.effects import learn_effects
from isa_learning.enumerate_keys import first_words, more_words, patterns
from isa_learning.hidden import find_hidden
from isa_learning.learn import Learner, Log
from isa_learning.probe import Prober, probing_word
from isa_learning.ranges import Holder

from gwatch.errors import GWatchError
from gwatch.sass.arch import arch_by_name
from gwatch.sass.isa.lex import DESCRIPTOR, cut
from gwatch.sass.isa.model import Key, key_of

CHECKS_PER_KEY = 60
OTHERS = 7


class Source(NamedTuple):
    """Probing words that one project's compilers wrote for ``target``."""

    target: str
    project: str
    words: Set[int]


class Meant(NamedTuple):
    """Compiler words that say on a target what they say where they come from: whose they are (by probing word); those
    that were compiled for its own SM number; and the family's other words, which mean something else here."""

    projects: Mapping[int, Set[str]]
    native: Set[int]
    apart: Set[int]


Facts = Callable[[Set[int]], dict[int, ControlFacts]]
"""Control facts per key over all compiler words but those given."""


def meanings(probers: Sequence[Prober], sources: Sequence[Source]) -> dict[str, Meant]:
    """By target, which words of ``sources`` count as compilers' words there.

    The bits of a word of sm_103 may say less on sm_100, where compilers would not have set them: such a word tells
    nothing about the bits that are hidden there, nor about the opcode's scoreboards.
    """
    every = sorted({w for source in sources for w in source.words})
    texts = {p.arch: dict(zip(every, p.texts(every, True), strict=True)) for p in probers}
    out = {}
    for prober in probers:
        here = texts[prober.arch]
        number = arch_by_name(prober.arch).number
        projects: dict[int, set[str]] = defaultdict(set)
        native: set[int] = set()
        for source in sources:
            there = texts[source.target]
            same = [w for w in source.words if here[w] == there[w]]
            for word in same:
                projects[word].add(source.project)
            if arch_by_name(source.target).number == number:
                native.update(same)
        out[prober.arch] = Meant(projects, native, {w for w in every if w not in projects})
    return out


@dataclass
class Options:
    """How hard to try."""

    rounds: int = 4
    per_key: int = 80
    enumerate_all: bool = True
    effects: bool = True


@dataclass
class Home:
    """A target that was learned from: its prober, the models learned there, and who else has each opcode so."""

    prober: Prober
    models: dict[int, Key]
    shared: dict[int, set[str]]


@dataclass
class Family:
    """Models learned so far and which targets each of them is true for."""

    zero: dict[str, int]
    log: Log
    options: Options
    homes: list[Home] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    checks: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    neighbours: list[int] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    reports: dict[str, dict[str, dict[str, object]]] = field(default_factory=dict)

    def learn(self, prober: Prober, meant: Meant, facts: Facts) -> None:
        """Add a target: compiler words as they are meant there, and control facts.

        Keys that are different on a later target are learned from that target's words, and from those of the others
        that say the same there in a shape which that target's lack.
        """
        words = sorted(meant.projects)
        plain = sorted(meant.projects.keys() | meant.apart)
        texts = dict(zip(plain, prober.texts(plain, True), strict=True))
        learner = Learner(prober, self.zero, self.log)
        rests = patterns((w for w in plain if texts[w] is not None), learner.random, 48)
        keys = {key_of(w) for w, t in texts.items() if t is not None}
        if not self.targets:
            if self.options.enumerate_all:
                self.tried = list(first_words(rests, learner.random))
                keys |= {key_of(w) for w, t in zip(self.tried, prober.texts(self.tried), strict=True) if t is not None}
                self.log(f"{prober.arch}: {len(keys)} keys; {prober.count} asked")
            self.tried += more_words(keys, rests, learner.random)
        tried = self.tried
        if self.homes:
            # Of what the first target does not know, some is tried again here; all of what it knows is.
            first = self.homes[0].prober.cache
            tried = [w for w in tried if first[w] is not None] + [w for w in tried if first[w] is None][::OTHERS]
        if arch_by_name(prober.arch).number not in {arch_by_name(t).number for t in self.targets}:
            tried += self.neighbours
        tried = [*tried, *chain(*self.checks.values())]
        prober.texts(tried)
        hidden = find_hidden(prober, list(prober.cache), lambda: holder(prober), self.log)
        prober.show(hidden)
        self.log(f"{prober.arch}: {len(hidden)} keys with a descriptor that nvdisasm hides")
        wanted = self._differing(prober, [*plain, *tried]) if self.targets else None
        self.targets.append(prober.arch)
        if wanted is not None and not wanted:
            return
        if wanted is not None:
            words = native_words(prober, meant, wanted)
            learner.only = frozenset(wanted)
        learner.feed_real(words)
        if wanted is not None:
            tried += more_words(wanted, rests, learner.random)
        home = Home(prober, {}, {key: {prober.arch} for key in (keys if wanted is None else wanted)})
        self.homes.append(home)
        found = learner.feed(tried)
        self.log(f"{prober.arch}: {found} words of {len(learner.states)} keys; {prober.count} asked")
        self.log(f"{prober.arch}: {learner.borrow()} words with borrowed modifiers; {prober.count} asked")
        learner.explore(self.options.rounds, self.options.per_key)
        learner.finish(words, meant.projects)
        note_kinds(learner.models(), facts(meant.apart))
        for model in learner.models():
            for form in model.forms if model.key in hidden else ():
                form.hidden = _hidden(form.skeleton)
        if self.options.effects:
            self.log(f"effects: {learn_effects(learner, holder(prober))}")
        for model in learner.models():
            home.models[model.key] = model
            home.shared[model.key] = {prober.arch}
        for key, state in learner.states.items():
            samples = [w for form in (state.model.forms if state.model else ()) for w in (*form.shapes, *form.probes)]
            pool = sorted(state.samples.index)
            samples += pool[::max(1, len(pool) // CHECKS_PER_KEY)][:CHECKS_PER_KEY]
            self.checks[key] = sorted({*self.checks[key], *map(probing_word, samples)})
        self.neighbours += learner.neighbours()
        self.reports[prober.arch] = learner.report()

    def _differing(self, prober: Prober, words: Sequence[int]) -> set[int]:
        """Finds for each key the home where every word has the same text; returns the keys that have none."""
        valid = sorted({w for w in words if prober.cache[w] is not None})
        texts: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for word in valid:
            texts[key_of(word)].append((word, prober.cache[word] or ""))
        for home in self.homes:
            home.prober.texts(valid)
        differing = set()
        for key, pairs in sorted(texts.items()):
            for home in self.homes:
                if key in home.shared and all(self._same(home, word, text) for word, text in pairs):
                    home.shared[key].add(prober.arch)
                    break
            else:
                differing.add(key)
                self.log(f"{prober.arch}: {key:04x} {pairs[0][1]} is " + (
                    "different" if any(key in home.shared for home in self.homes) else "new"))
        self.log(f"{prober.arch}: {len(texts)} keys, {len(differing)} of them not as in {self.targets}")
        return differing

    def _same(self, home: Home, word: int, text: str) -> bool:
        if home.prober.cache[word] == text:
            return True
        model = home.models.get(key_of(word))
        return model is not None and model.body(word, self.zero) == text

    def models(self) -> list[Key]:
        """All models, each naming its targets unless it is true for the whole family."""
        out = []
        for home in self.homes:
            for key, model in home.models.items():
                targets = home.shared[key]
                model.targets = () if targets == set(self.targets) else tuple(t for t in self.targets if t in targets)
                out.append(model)
        return out


def native_words(prober: Prober, meant: Meant, wanted: Set[int]) -> list[int]:
    """The target's own compiler words of the keys ``wanted``, and of the family's others those that show a shape which
    they lack."""
    words = sorted(w for w in meant.projects if key_of(w) in wanted)
    shapes = dict(zip(words, map(_shape, prober.texts(words)), strict=True))
    met = {shapes[w] for w in words if w in meant.native}
    return [w for w in words if w in meant.native or shapes[w] not in met | {None}]


def _shape(text: str | None) -> tuple[object, ...] | None:
    """What a text says besides its numbers."""
    if text is None:
        return None
    try:
        parts = cut(text)
    except GWatchError:
        return None
    return parts.opcode, parts.skeleton, parts.attachments


def holder(prober: Prober) -> Holder:
    """A cubin for life ranges on the prober's target."""
    return Holder(prober.arch, word_of(prober, "EXIT"), word_of(prober, "NOP"))


def word_of(prober: Prober, text: str) -> int:
    """A known word with exactly this text."""
    words = [word for word, answer in prober.cache.items() if answer == text and probing_word(word) == word]
    if not words:
        raise LookupError(text)
    return min(words)


def _hidden(skeleton: str) -> tuple[int, ...]:
    """Positions of the values that only :func:`~isa_learning.probe.with_descriptor` shows."""
    at = skeleton.find(DESCRIPTOR)
    return () if at < 0 else (sum(c.isupper() for c in skeleton[:at]),)
