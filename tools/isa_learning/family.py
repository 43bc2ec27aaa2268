"""One table for a family of architectures: learn one of them, hold the others against it, learn what differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain

from isa_learning.control_facts import ControlFacts, note_kinds
from isa_learning.effects import learn_effects
from isa_learning.enumerate_keys import first_words, more_words, patterns
from isa_learning.hidden import find_hidden
from isa_learning.learn import Learner, Log, probing_word
from isa_learning.probe import Prober
from isa_learning.ranges import Holder

from gwatch.errors import GWatchError
from gwatch.sass.arch import arch_by_name
from gwatch.sass.isa.lex import DESCRIPTOR, cut
from gwatch.sass.isa.model import Key, key_of

CHECKS_PER_KEY = 60
OTHERS = 7


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

    def learn(self, prober: Prober, real: Iterable[int], native: Iterable[int], facts: dict[int, ControlFacts],
              projects: Mapping[int, Set[str]]) -> None:
        """Add a target: compiler words of the whole family and those of this target, control facts, and by probing
        word the projects whose words they are.

        Keys that are different on a later target are learned from that target's words, and from those of the others
        that say the same there in a shape which that target's lack.
        """
        words = sorted(set(real))
        plain = sorted({probing_word(w) for w in words})
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
            words = self.native_words(prober, set(native), words, wanted)
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
        learner.finish(words, projects)
        note_kinds(learner.models(), facts)
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

    def native_words(self, prober: Prober, native: set[int], words: Sequence[int], wanted: set[int]) -> list[int]:
        """The target's own compiler words, and of the family's others of the keys ``wanted`` those to lend."""
        first = self.homes[0].prober
        lent = [w for w in words if w not in native and key_of(w) in wanted]
        own = [w for w in native if key_of(w) in wanted]
        plain = sorted({probing_word(w) for w in (*lent, *own)})
        here, there = (dict(zip(plain, p.texts(plain), strict=True)) for p in (prober, first))
        met = {_shape(here[probing_word(w)]) for w in own}
        return sorted(native | {w for w in lent if (text := here[probing_word(w)]) is not None
                                and text == there[probing_word(w)] and _shape(text) not in met})

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
