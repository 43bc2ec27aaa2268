"""The learning loop: real words, single flips around seeds, enumerations, then rounds of guess and check."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from isa_learning.control_facts import ASYNC, note_control
from isa_learning.derive import derive_shapes
from isa_learning.fit import PROBED_BITS, Fitter, Samples
from isa_learning.probe import CONTROL_MASK, GUARD, PROBE_CONTROL, Prober, is_relative, probing_word

from gwatch.errors import GWatchError
from gwatch.sass.isa import tree
from gwatch.sass.isa.lex import Cut, cut, pieces
from gwatch.sass.isa.model import KEY_BIT, Choice, Form, Key, key_of

SWEEP = 1200
SEEDS = 14
OPCODE_BITS = 0x1FF
"""An opcode's lower bits; the others of its key say of which kinds its operands are."""
MODIFIERS = ((1 << 105) - (1 << 72)) & ~(1 << KEY_BIT)
BORROWING = 2
POLICY_BIT = 101
"""An access whose descriptor nvdisasm hides has a cache policy of its own where this bit is set."""
WIDE = 16
FORMS, CROWDED = 16, 40
"""Opcodes of more forms than this get so many more guesses for each: LDGSTS has 48, of which compilers write 9."""
Log = Callable[[str], None]


@dataclass
class State:
    """What the loop knows about one key."""

    samples: Samples
    model: Key | None = None
    stale: bool = True
    tried: set[tuple[int, ...]] = field(default_factory=set)
    wrong: int = 0
    checked: int = 0
    missed: int = 0
    impure: int = 0
    unfitted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[tuple[str, str | None]] = field(default_factory=list)


class Learner:
    """Learns all keys of one architecture, or ``only`` some. ``seed`` makes every choice repeatable."""

    def __init__(self, prober: Prober, zero: dict[str, int], log: Log, only: Iterable[int] | None = None,
                 seed: int = 1) -> None:
        self.prober = prober
        self.zero = zero
        self.log = log
        self.only = None if only is None else frozenset(only)
        self.random = random.Random(seed)
        self.rounds = 0
        self.states: dict[int, State] = {}

    def state(self, key: int) -> State:
        """The state of ``key``, made on first use."""
        if key not in self.states:
            self.states[key] = State(Samples(key))
        return self.states[key]

    def feed(self, words: Iterable[int], real: bool = False, mostly_valid: bool = False) -> int:
        """Probe words and add them to their keys; returns how many valid ones were new."""
        todo = sorted(set(words) if self.only is None else {w for w in words if key_of(w) in self.only})
        fresh = 0
        for word, text in zip(todo, self.prober.texts(todo, mostly_valid), strict=True):
            if text is None and key_of(word) not in self.states:
                continue
            state = self.state(key_of(word))
            known = len(state.samples.words)
            try:
                state.samples.add(word, text)
            except GWatchError as error:
                state.samples.unread.append(str(error))
                continue
            if real and word in state.samples.index:
                state.samples.real.add(word)
            if len(state.samples.words) > known:
                fresh += 1
                # A model that already says the right thing about the newcomer need not be fitted again.
                if not state.stale and (state.model is None or state.model.body(word, self.zero) != text):
                    state.stale = True
        return fresh

    def feed_real(self, words: Iterable[int], per_shape: int = 12) -> None:
        """Add compiler words: all shapes, at most ``per_shape`` words of each (spread over the sorted list)."""
        plain = sorted({probing_word(w) for w in words})
        shapes: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for word, text in zip(plain, self.prober.texts(plain, True), strict=True):
            if text is None or (self.only is not None and key_of(word) not in self.only):
                continue
            try:
                c = cut(text)
            except GWatchError as error:
                self.state(key_of(word)).samples.unread.append(str(error))
                continue
            shapes[key_of(word), c.opcode, c.skeleton, c.attachments].append(word)
        chosen: list[int] = []
        for members in shapes.values():
            step = max(1, len(members) // per_shape)
            chosen += members[::step][:per_shape]
        self.log(f"{len(plain)} compiler words, {len(shapes)} shapes, {len(chosen)} kept")
        self.feed(chosen, real=True)

    def borrow(self) -> int:
        """Try modifiers of compiler words in the keys that are the same opcode with operands of other kinds; returns
        how many words were new."""
        siblings: dict[int, list[int]] = defaultdict(list)
        for key in sorted(self.states):
            siblings[key & OPCODE_BITS].append(key)
        words: set[int] = set()
        for keys in siblings.values():
            modifiers = sorted({word & MODIFIERS for key in keys for word in self.states[key].samples.real})
            for key in keys:
                samples = self.states[key].samples
                bases = sorted(samples.index, key=lambda w: (w not in samples.real, w))[:BORROWING]
                words.update(base & ~MODIFIERS | bits for base in bases for bits in modifiers)
        return self.feed(words)

    def seeds(self, samples: Samples, limit: int, times: int = 2) -> list[int]:
        """Words to flip, so that every skeleton, opcode word and attachment is met ``times`` times."""
        order = sorted(samples.index, key=lambda w: (w not in samples.real, w))
        met: Counter[object] = Counter()
        for word in samples.flipped:
            met.update(_features(samples.cuts[samples.index[word]]))
        chosen: list[int] = []
        for word in order:
            if len(chosen) >= limit:
                break
            if word in samples.flipped:
                continue
            features = _features(samples.cuts[samples.index[word]])
            if any(met[f] < times for f in features):
                met.update(features)
                chosen.append(word)
        return chosen

    def flips(self, limit: int, keys: Iterable[int] | None = None) -> None:
        """Flip every bit of up to ``limit`` seeds of each key."""
        words = []
        for key in sorted(self.states if keys is None else keys):
            samples = self.states[key].samples
            for seed in self.seeds(samples, limit if samples.real else limit // 3):
                samples.flipped.add(seed)
                words += [seed ^ 1 << bit for bit in PROBED_BITS]
        self.feed(words)

    def explore(self, rounds: int, per_key: int) -> None:
        """Flip seeds, fit, try combinations of modifier bits, then guess and check until ``rounds`` are over."""
        self.flips(SEEDS)
        self.log(f"flips done, {self.prober.count} asked")
        self.fit()
        self.log("first fit")
        found = self.sweep(SWEEP, SWEEP // 10)
        self.flips(SEEDS // 2)
        self.fit()
        self.log(f"sweep: {found} new words; {self.prober.count} asked")
        found = self.corners()
        self.fit()
        self.log(f"corners: {found} new words; {self.prober.count} asked")
        for number in range(rounds):
            checked, wrong, unknown = self.round(per_key)
            self.flips(SEEDS // 2)
            self.fit()
            self.log(f"round {number + 1}: {checked} checked, {wrong} wrong, {unknown} unknown; "
                     f"{self.prober.count} asked")
        if self.prober.hidden:
            found = self.feed(word ^ 1 << POLICY_BIT for key in sorted(self.states) if key in self.prober.hidden
                              for word in self.states[key].samples.words)
            self.fit()
            self.log(f"cache policies: {found} new words; {self.prober.count} asked")

    def finish(self, words: Iterable[int], projects: Mapping[int, Set[str]]) -> None:
        """Everything that needs the final models; ``projects``: whose words they are, by probing word."""
        self.note_guards()
        self.mark_relative()
        self.note_shapes(words, projects)
        share_attachments(self.models())
        kept = {m.key for m in drop_unproved(self.models(), self.prober, self.zero, self.log)}
        for key, state in self.states.items():
            if key not in kept:
                state.model = None
        close_scoreboards(self.models(), self.prober)
        self.log(f"{derive_shapes(self.models(), self.prober, self.zero)} shapes derived from compiler words")
        note_reuse(self.models(), self.prober)
        self.note_sensitive()
        note_control(self.models(), self.prober)

    def models(self) -> list[Key]:
        """The keys that have at least one form."""
        return [s.model for _, s in sorted(self.states.items()) if s.model is not None]

    def report(self) -> dict[str, dict[str, object]]:
        """Counts per key, for reading."""
        out: dict[str, dict[str, object]] = {}
        for key, state in sorted(self.states.items()):
            samples = state.samples
            if state.model is None and not samples.unread:
                continue
            out[f"{key:04x}"] = {
                "mnemonic": samples.cuts[0].opcode[0] if samples.cuts else "", "valid": len(samples.words),
                "real": len(samples.real), "invalid": len(samples.invalid),
                "forms": len(state.model.forms) if state.model else 0, "checked": state.checked,
                "wrong": state.wrong, "missed": state.missed, "impure": state.impure, "unfitted": state.unfitted,
                "unread": samples.unread[:3], "notes": state.notes[:6], "failures": state.failures[-6:]}
        return out

    def sweep(self, real: int, other: int) -> int:
        """Combinations of the bits that are no operand's and matter when flipped; single flips from valid words miss
        modifiers that need two bits at once. Up to ``real`` words for opcodes of compilers, ``other`` for the rest."""
        words: set[int] = set()
        for key, state in sorted(self.states.items()):
            samples = state.samples
            if state.model is None or not samples.flipped:
                continue
            rng = random.Random(key)
            owned = 0
            for form in state.model.forms:
                for value in form.values:
                    owned |= value.mask
            bits = [b for b in PROBED_BITS if not owned >> b & 1 and self._matters(samples, b)]
            limit = real if samples.real else other
            seeds = sorted(samples.flipped, key=lambda w: (w not in samples.real, w))
            if not samples.real:
                words |= self.undefined_alone(seeds, bits)
            if len(bits) <= 10:
                mask = sum(1 << b for b in bits)
                for seed in seeds[:2]:
                    for number in range(1 << len(bits)):
                        words.add(seed & ~mask | sum((number >> n & 1) << b for n, b in enumerate(bits)))
                continue
            for number in range(limit):
                word = seeds[number % len(seeds)]
                chosen = bits if number % 4 == 0 else rng.sample(bits, min(len(bits), rng.randint(2, 4)))
                for bit in chosen:
                    if number % 4 or rng.getrandbits(1):
                        word ^= 1 << bit
                words.add(word)
        return self.feed(words)

    def undefined_alone(self, seeds: Iterable[int], bits: Collection[int]) -> set[int]:
        """Words with two neighbouring bits flipped of which each alone leaves no instruction: ``.RZ`` is 3 where 1
        and 2 are no rounding."""
        cache = self.prober.cache
        return {seed ^ 3 << bit for seed in seeds for bit in bits if bit + 1 in bits
                and cache.get(seed ^ 1 << bit, "") is None and cache.get(seed ^ 2 << bit, "") is None}

    def corners(self, real: int = 4, other: int = 1) -> int:
        """Numbers at the ends of their ranges: aliases like IMAD.SHL hang on one value of an operand."""
        words: set[int] = set()
        for _, state in sorted(self.states.items()):
            if state.model is None:
                continue
            left: Counter[int] = Counter()
            seen: set[tuple[int, str | None]] = set()
            for word in sorted(state.samples.index, key=lambda w: (w not in state.samples.real, w)):
                label = tree.lookup(state.model.select, word)
                shape = (label, state.model.opcode_text(word))
                if label < 0 or shape in seen or left[label] >= (real if state.samples.real else other):
                    continue
                seen.add(shape)
                left[label] += 1
                for value in state.model.forms[label].values:
                    place = value.field_of(word)
                    for low, width, _ in place.runs if place is not None else ():
                        top, mask = 1 << width - 1, (1 << width) - 1
                        for number in (0, 1, 2, top, top - 1, top >> 1, mask, mask - 1) if width >= 5 else ():
                            words.add(word & ~(mask << low) | number << low)
            words |= self._decimals(state)
            words |= _with_zeros(state)
        return self.feed(words)

    def _decimals(self, state: State, opcodes: int = 40) -> set[int]:
        """Decimal operands under every opcode text: which of them are halves, singles or doubles hangs on it."""
        words: set[int] = set()
        seen: set[tuple[str, ...]] = set()
        rng = random.Random(state.samples.key)
        for word in sorted(state.samples.index, key=lambda w: (w not in state.samples.real, w)):
            parts = state.samples.cuts[state.samples.index[word]]
            if parts.opcode in seen or len(seen) >= opcodes or not any(kind == "F" for kind, _ in parts.values):
                continue
            seen.add(parts.opcode)
            some = (rng.getrandbits(32) for _ in range(4))
            for number in (0x3F800000, 0xC0080000, 0x40080000, 0x3FF00000, 0x3C003C00, *some):
                words.add(word & ~(0xFFFFFFFF << 32) | number << 32)
        return words

    def _matters(self, samples: Samples, bit: int) -> bool:
        for word in samples.flipped:
            other = word ^ 1 << bit
            if other not in self.prober.cache:
                continue
            if self.prober.cache[other] != self.prober.cache.get(word):
                return True
        return False

    def neighbours(self) -> list[int]:
        """Words that differ by one modifier bit from a flipped word of each opcode text: another target may read what
        this one does not."""
        words: set[int] = set()
        for state in self.states.values():
            seen: set[tuple[str, ...]] = set()
            for word in sorted(state.samples.flipped, key=lambda w: (w not in state.samples.real, w)):
                opcode = state.samples.cuts[state.samples.index[word]].opcode
                if opcode not in seen:
                    seen.add(opcode)
                    words.update(word ^ 1 << bit for bit in _bit_list(MODIFIERS))
        return sorted(words)

    def fit(self) -> None:
        """Refit every key whose samples changed."""
        for _, state in sorted(self.states.items()):
            if state.stale and state.samples.words:
                fitter = Fitter(state.samples, self.zero)
                state.model = fitter.fit()
                state.impure = fitter.report.impure
                state.unfitted = fitter.report.unfitted
                state.notes = fitter.report.notes
                state.stale = False

    def round(self, per_key: int, enumerate_bits: int = 8) -> tuple[int, int, int]:
        """Guess texts of mutated words, check them; returns (checked, wrong, unknown) over valid words."""
        words: set[int] = set()
        self.rounds += 1
        for key, state in sorted(self.states.items()):
            if state.model is not None:
                rng = random.Random(self.rounds << 16 | key)  # what one key learns must not change another's guesses
                many = CROWDED * max(0, len(state.model.forms) - FORMS)
                words |= set(self._mutations(state, per_key + many if state.samples.real else per_key // 3, rng))
                words |= set(self._enumerations(state, enumerate_bits, rng))
                words |= _negations(state)
        todo = sorted(w for w in words if w not in self.prober.cache)
        checked = wrong = unknown = 0
        again: list[int] = []
        for word, text in zip(todo, self.prober.texts(todo), strict=True):
            if text is None:
                continue
            state = self.state(key_of(word))
            guess = state.model.body(word, self.zero) if state.model else None
            checked += 1
            state.checked += 1
            if guess != text:
                wrong += guess is not None
                unknown += guess is None
                state.wrong += guess is not None
                state.missed += guess is None
                again.append(word)
                if len(state.failures) < 40:
                    state.failures.append((text, guess))
        self.feed(todo)
        per: Counter[int] = Counter()
        flips: list[int] = []
        for word in again:
            per[key_of(word)] += 1
            samples = self.state(key_of(word)).samples
            if per[key_of(word)] <= 4 and word in samples.index and word not in samples.flipped:
                samples.flipped.add(word)
                flips += [word ^ 1 << bit for bit in PROBED_BITS]
        self.feed(flips)
        return checked, wrong, unknown

    def _mutations(self, state: State, count: int, rand: random.Random) -> list[int]:
        model, samples = state.model, state.samples
        assert model is not None
        by_form: dict[str, list[int]] = defaultdict(list)
        for i, c in enumerate(samples.cuts):
            by_form[c.skeleton].append(samples.words[i])
        names = sorted(by_form)
        free: list[list[int]] = []
        owned = 0
        for form in model.forms:
            for value in form.values:
                owned |= value.mask
        for choice in [*model.opcode, *(a for f in model.forms for a in f.attachments)]:
            bits = _bit_list(tree.tested_bits(choice.node) & ~owned)
            if bits and bits not in free:
                free.append(bits)
        out = []
        for _ in range(count):
            base = rand.choice(by_form[rand.choice(names)])
            word = base
            form = model.form_of(base)
            if rand.random() < 0.6 and free:
                for bits in rand.sample(free, min(len(free), rand.randint(1, 3))):
                    for bit in bits:
                        word ^= rand.getrandbits(1) << bit
            for value in form.values if form else ():
                roll = rand.random()
                for place in value.fields:
                    for low, width, _ in place.runs:
                        mask = (1 << width) - 1
                        if roll < 0.3:
                            new = rand.getrandbits(width)
                        elif roll < 0.4:
                            new = mask
                        elif roll < 0.5:
                            new = 0
                        elif roll < 0.55:
                            new = 1 << rand.randrange(width)
                        else:
                            continue
                        word = word & ~(mask << low) | new << low
            if rand.random() < 0.25:
                for _ in range(rand.randint(1, 2)):
                    word ^= 1 << rand.choice(PROBED_BITS)
            out.append(probing_word(word))
        return out

    def _enumerations(self, state: State, limit: int, rand: random.Random) -> list[int]:
        model = state.model
        assert model is not None
        out: list[int] = []
        choices: list[tuple[Choice, int]] = [(c, -1) for c in model.opcode]
        for n, form in enumerate(model.forms):
            choices += [(a, n) for a in form.attachments]
            choices += [(v.name, n) for v in form.values if v.name is not None]
        words = sorted(state.samples.index)
        for choice, n in choices:
            bits = _bit_list(tree.tested_bits(choice.node))
            if not 1 < len(bits) <= limit:
                continue
            mark = (n, *bits)
            if mark in state.tried:
                continue
            state.tried.add(mark)
            pool = words
            if n >= 0:
                skeleton = model.forms[n].skeleton
                pool = [w for w in words if state.samples.cuts[state.samples.index[w]].skeleton == skeleton]
            mask = sum(1 << b for b in bits)
            for base in rand.sample(pool, min(len(pool), 2 if len(bits) < 6 else 1)):
                for number in range(1 << len(bits)):
                    value = sum((number >> p & 1) << b for p, b in enumerate(bits))
                    out.append(base & ~mask | value)
        return out

    def note_shapes(self, real: Iterable[int], projects: Mapping[int, Set[str]]) -> None:
        """Give every form the compiler words of its shapes (all hidden bits seen), which of them one project alone
        writes, and probes where there are none."""
        for state in self.states.values():
            for form in state.model.forms if state.model else ():
                form.shapes = []
                form.probes = []
        kept: dict[tuple[int, int], dict[tuple[object, ...], int]] = defaultdict(dict)
        owners: dict[int, set[str]] = {}
        for word in sorted({probing_word(w) for w in real}):
            state = self.state(key_of(word))
            if state.model is None:
                continue
            label = tree.lookup(state.model.select, word)
            if label < 0 or state.model.body(word, self.zero) != self.prober.cache.get(word):
                continue
            form = state.model.forms[label]
            hidden = word
            for value in form.values:
                place = value.field_of(word)
                hidden &= ~(place.mask if place else tree.tested_bits(value.name.node) if value.name else 0)
            shape = (state.model.opcode_text(word), *(a.get(word) for a in form.attachments), hidden)
            first = kept[key_of(word), label].setdefault(shape, word & ~CONTROL_MASK)
            owners.setdefault(first, set()).update(projects.get(word, ()))
        for (key, label), shapes in kept.items():
            model = self.states[key].model
            assert model is not None
            model.forms[label].shapes = sorted(shapes.values())
            model.forms[label].lone = {w: next(iter(owners[w])) for w in shapes.values() if len(owners[w]) == 1}
        for state in self.states.values():
            if state.model is None:
                continue
            for word in sorted(state.samples.index):
                label = tree.lookup(state.model.select, word)
                if label >= 0 and not state.model.forms[label].shapes and not state.model.forms[label].probes \
                        and state.model.body(word, self.zero) is not None:
                    state.model.forms[label].probes = [word & ~CONTROL_MASK]

    def note_sensitive(self) -> None:
        """Note the bits of each key that matter: flipped alone they change the text or leave no instruction.

        Such a bit must not be filled in from words with other modifiers: it may belong to a modifier of two bits of
        which the trees saw only one.
        """
        for _, state in sorted(self.states.items()):
            if state.model is not None:
                mask = sum(1 << bit for bit in PROBED_BITS if self._matters(state.samples, bit))
                state.model.extra["sensitive"] = f"{mask:x}"

    def note_guards(self) -> None:
        """Learn which predicate file guards each key."""
        words = {key: min(state.samples.real or state.samples.index) & ~GUARD
                 for key, state in self.states.items() if state.model is not None}
        asked = sorted(words.values())
        text = dict(zip(asked, self.prober.texts(asked), strict=True))
        for key, word in words.items():
            model = self.states[key].model
            assert model is not None
            model.uniform_guard = (text[word] or "").startswith("@UP")

    def mark_relative(self) -> None:
        """Note which keys print a pc-relative target."""
        for state in self.states.values():
            if state.model is None:
                continue
            with_target: list[set[str]] = []
            without: list[set[str]] = []
            for word, parts in zip(state.samples.words, state.samples.cuts, strict=True):
                text = self.prober.cache.get(word)
                (with_target if text and is_relative(text) else without).append(set(parts.opcode))
            if with_target and without:
                telling = set.intersection(*with_target) - set.union(*without)
                state.model.relative = min(telling) if telling else None
            elif with_target:
                state.model.relative = ""


def _with_zeros(state: State, marked: int = 8) -> set[int]:
    """Zero registers beside every mark of an operand, and beside every power of two: IMAD.SHL, IMAD.MOV and IMAD print
    the same opcode, and which it is hangs on several operands at once."""
    model, samples = state.model, state.samples
    assert model is not None
    words: set[int] = set()
    left: Counter[int] = Counter()
    met: set[tuple[object, ...]] = set()
    for word in sorted(samples.index, key=lambda w: (w not in samples.real, w)):
        label = tree.lookup(model.select, word)
        parts = samples.cuts[samples.index[word]]
        if label < 0 or (shape := (label, parts.opcode, parts.attachments)) in met:
            continue
        places = [place for value in model.forms[label].values if (place := value.field_of(word)) is not None]
        zeros = {place.mask for place in places if place.kind in "RU"}
        every = reduce(or_, zeros, 0)
        if zeros and left[label] < marked:
            words |= {word | zero for zero in zeros}
            left[label] += 1
            met.add(shape)
        if (shape := (label, parts.opcode)) not in met and word in samples.real:
            met.add(shape)
            for place in places:
                for low, width, _ in place.runs if place.kind == "I" else ():
                    for bit in range(width) if width >= WIDE else ():
                        one = word & ~((1 << width) - 1 << low) | 1 << low + bit
                        words |= {one, *(one | zero for zero in zeros), one | every}
    return words


def _negations(state: State, per_form: int = 2) -> set[int]:
    """Predicates with the bit that negates them, in some words of every form: PT may be left out where !PT is shown."""
    model, samples = state.model, state.samples
    assert model is not None
    words: set[int] = set()
    left: Counter[int] = Counter()
    for word in sorted(samples.index, key=lambda w: (w not in samples.real, w)):
        label = tree.lookup(model.select, word)
        if label < 0 or left[label] >= per_form:
            continue
        left[label] += 1
        for value in model.forms[label].values:
            place = value.field_of(word)
            if place is not None and place.kind in "PQ" and len(place.runs) == 1:
                words |= corner_predicates(word, *place.runs[0][:2])
    return words


def corner_predicates(word: int, low: int, width: int) -> set[int]:
    """``word`` with the first and the last predicate in the field, the bit behind it clear and set."""
    negate = low + width
    if negate not in PROBED_BITS:
        return set()
    mask = (1 << width) - 1
    rest = word & ~(mask << low | 1 << negate)
    return {rest | number << low | bit << negate for number in (0, mask) for bit in (0, 1)}


def note_reuse(models: Iterable[Key], prober: Prober) -> None:
    """Learn which register field each operand-cache bit marks, form by form, from the words that the forms keep.

    Sparse matrix instructions take the bits only together with the fourth, so each is tried alone and with it. What a
    word prints without any of them is its own mark.
    """
    trials: list[tuple[Form, int, int, int]] = []
    for model in models:
        for form in model.forms:
            words = form.shapes or form.probes
            step = max(1, len(words) // 4)
            for word in words[::step][:4]:
                base = word & ~CONTROL_MASK | PROBE_CONTROL
                for bit in range(4):
                    trials += [(form, word, bit, base | mark << 122) for mark in sorted({1 << bit, 1 << bit | 8})]
    asked = sorted({word for *_, word in trials} | {word & ~(15 << 122) for *_, word in trials})
    text = dict(zip(asked, prober.texts(asked), strict=True))
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for form, plain, bit, word in trials:
        answer = text[word]
        bare = text[word & ~(15 << 122)]
        own = cut(bare).reuse if bare is not None else ()
        alone = text.get(plain & ~CONTROL_MASK | PROBE_CONTROL | 8 << 122)
        for position in cut(answer).reuse if answer is not None else ():
            if position in own:
                continue
            place = form.values[position].field_of(plain)
            if bit == 3 or alone is None or position not in cut(alone).reuse:
                found[id(form), bit].add(place.runs[0][0] if place is not None else -1)
    for model in models:
        for form in model.forms:
            marks = tuple(low.pop() if len(low := set(found[id(form), bit])) == 1 else -1 for bit in range(4))
            form.reuse = marks if max(marks) >= 0 else ()


def close_scoreboards(models: Iterable[Key], prober: Prober) -> None:
    """Make words of warpgroup products with an undefined scoreboard unknown: only none (7) and gsb0 (0) print.

    The trees can't see it, for undefined enumerators are no samples; an encoder that has to choose would choose one.
    A key is closed only if nvdisasm refuses all other values in all words tried.
    """
    mask = 7 << 84
    for model in models:
        if model.opcode[0].labels[0].split(".")[0] not in ASYNC:
            continue
        bases = [probing_word(w) & ~mask for form in model.forms for w in form.shapes[:4]]
        asked = [base | value << 84 for base in bases for value in range(8)]
        texts = prober.texts(asked)
        if bases and all((text is not None) == (n % 8 in (0, 7)) for n, text in enumerate(texts)):
            model.select = ("eq", mask, mask, model.select, ("eq", mask, 0, model.select, tree.UNKNOWN))


def share_attachments(models: Iterable[Key]) -> None:
    """Let a form without offset use what its sibling with offset shows about the same operands.

    ``[R.64+UR]`` may be all that compilers show of a form whose register can also be ``.U32``; the sibling
    ``[R+UR+I]`` knows the bit. A sibling's tree is taken only if it says what the form's own words show.
    """
    for model in models:
        by_skeleton = {form.skeleton: form for form in model.forms}
        for form in model.forms:
            for skeleton, other in by_skeleton.items():
                at = skeleton.find("+I")
                if at < 0 or skeleton[:at] + skeleton[at + 2:] != form.skeleton:
                    continue
                names = pieces(skeleton)
                before = 0
                for name in names[:names.index("I")] if names.count("I") == 1 else ():
                    before += 2 if name[0].isupper() else 1 if name[0].islower() or name[0] == "]" else 0
                if names.count("I") != 1:
                    continue
                theirs = other.attachments[:before] + other.attachments[before + 2:]
                words = form.shapes or form.probes
                for n, (own, choice) in enumerate(zip(form.attachments, theirs, strict=True)):
                    if len(own.labels) < len(choice.labels) and all(choice.get(w) == own.get(w) for w in words):
                        form.attachments[n] = choice


def drop_unproved(models: Iterable[Key], prober: Prober, zero: dict[str, int], log: Log,
                  trials: int = 100) -> list[Key]:
    """The models, without those that no compiler uses and that say a wrong text of some random mutation.

    In opcodes that compilers use, only the forms that they do not use are made unknown.
    """
    tests: dict[int, list[int]] = {}
    kept = []
    for model in models:
        kept.append(model)
        rng = random.Random(model.key)
        seeds = [word for form in model.forms for word in form.probes]
        tests[model.key] = []
        for _ in range(trials if seeds else 0):
            word = rng.choice(seeds)
            for low, width in ((16, 8), (24, 8), (32, 8), (64, 8), (81, 3), (87, 3)):
                if rng.random() < 0.3:
                    mask = (1 << width) - 1
                    word = word & ~(mask << low) | rng.choice((0, mask, rng.getrandbits(width))) << low
            for bit in rng.sample(PROBED_BITS, rng.randrange(3)):
                word ^= 1 << bit
            tests[model.key].append(probing_word(word))
    asked = sorted({w for words in tests.values() for w in words})
    text = dict(zip(asked, prober.texts(asked), strict=True))
    out = []
    for model in kept:
        wrong = [w for w in tests.get(model.key, ())
                 if (t := text[w]) is not None and (g := model.body(w, zero)) is not None
                 and g != t]
        if wrong and any(form.shapes for form in model.forms):
            for form in {id(f): f for w in wrong if (f := model.form_of(w)) is not None and not f.shapes}.values():
                log(f"dropped {model.key:04x} {model.opcode[0].labels[0]} {form.skeleton}")
                form.attachments[0] = Choice([""], tree.UNKNOWN)
                form.rules, form.probes, form.proved = [], [], False
            out.append(model)
        elif wrong:
            log(f"dropped {model.key:04x} {model.opcode[0].labels[0]}: {len(wrong)} of {trials} words read wrongly")
        else:
            out.append(model)
    return out


def _features(parts: Cut) -> set[object]:
    features: set[object] = {("form", parts.skeleton)}
    features |= {("word", w) for w in parts.opcode}
    features |= {(parts.skeleton, n, a) for n, a in enumerate(parts.attachments) if a}
    return features


def _bit_list(mask: int) -> list[int]:
    return [b for b in range(128) if mask >> b & 1]
