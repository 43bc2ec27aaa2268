"""Learn reads and writes: words with well-separated registers, nvdisasm's life ranges, one tree per operand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from isa_learning.control_facts import ASYNC
from isa_learning.fit import bit_matrix
from isa_learning.grow import Grower
from isa_learning.learn import Learner, State
from isa_learning.probe import probing_word
from isa_learning.ranges import Holder, Marks

from gwatch.errors import EncodeError
from gwatch.sass.isa import tree
from gwatch.sass.isa.effects import (
    BRANCHES,
    DESCRIPTORS,
    FILES,
    PREDICATE_TARGETS,
    REGISTER_TARGET,
    guess,
    positions,
    warpgroup_counts,
)
from gwatch.sass.isa.lex import Cut, cut, pieces
from gwatch.sass.isa.model import Choice, Form, Key, Rule
from gwatch.sass.isa.values import Field

PER_FORM = 40
MASK_BITS = 8
FLOW_WORDS = 2
MASK_BASES = 4
UNMET_BASES = 4
_SPREAD = {"R": (96, (16, 32, 48, 64, 80)), "U": (48, (8, 16, 24, 32, 40)), "P": (0, (1, 2, 3, 4, 5)),
           "Q": (0, (1, 2, 3, 4, 5))}
_LOW_TARGETS = {16, 81}
Registers: TypeAlias = set[tuple[str, int]]


@dataclass
class _Case:
    """One word, which values it shows (position -> file, number)."""

    word: int
    numbers: dict[int, tuple[str, int]]


def learn_effects(learner: Learner, holder: Holder) -> dict[str, int]:
    """Give every form its rules; returns counts for the report."""
    counts: dict[str, int] = defaultdict(int)
    chosen: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, state in sorted(learner.states.items()):
        if state.model is None or _name(state.model) in BRANCHES:
            continue
        for label, form in enumerate(state.model.forms):
            if _name(state.model) in ASYNC:
                _warpgroup_rules(state.model, form, state, label)
                counts["warpgroup forms by rule"] += 1
                continue
            words = _pick(learner, state, label)
            chosen[number, label] = [(w, _spread_out(form, w, zeros)) for w in words for zeros in (False, True)]
    asked = sorted({new for pairs in chosen.values() for _, new in pairs})
    texts = dict(zip(asked, learner.prober.texts(asked), strict=True))
    cases: dict[tuple[int, int], list[_Case]] = {}
    for (number, label), pairs in chosen.items():
        model = learner.states[number].model
        assert model is not None
        group: dict[int, _Case] = {}
        for word, new in pairs:
            good = texts.get(new) is not None and tree.lookup(model.select, new) == label \
                and model.opcode_text(new) == model.opcode_text(word)
            case = _case(model.forms[label], new if good else word)
            if _apart(case):
                group.setdefault(case.word, case)
        cases[number, label] = list(group.values())
    flat = [case.word for group in cases.values() for case in group]
    marks = dict(zip(flat, holder.marks(flat), strict=True))
    more = _mask_cases(learner, cases, marks)
    flat = [case.word for group in more.values() for case in group]
    marks |= zip(flat, holder.marks(flat), strict=True)
    for (number, label), group in cases.items():
        group += more.get((number, label), [])
        model = learner.states[number].model
        assert model is not None
        form = model.forms[label]
        seen = [(c, m) for c in group if (m := marks[c.word]) is not None]
        if not seen:
            counts["forms without life ranges"] += 1
            form.rules, form.implicit, form.proved = [], [], False
            continue
        _rules(model, form, seen, counts, learner.zero)
    for _, state in sorted(learner.states.items()):
        if state.model is not None and _name(state.model) in BRANCHES:
            for form in state.model.forms:
                _branch_rules(state.model, form, state)
                counts["branch forms by rule"] += 1
    read_only_predicates(learner.models())
    _note_flow(learner.models(), holder)
    counts["forms disproved"] = disprove(learner.models(), holder, learner.zero)
    counts["runs"] = holder.runs
    return dict(counts)


def _mask_cases(learner: Learner, cases: dict[tuple[int, int], list[_Case]], marks: dict[int, Marks | None]
                ) -> dict[tuple[int, int], list[_Case]]:
    """Every value of the short numbers (component masks) of the forms in which some operand has several counts."""
    trials: dict[tuple[int, int], list[int]] = {}
    for (number, label), group in cases.items():
        model = learner.states[number].model
        assert model is not None
        form = model.forms[label]
        seen = [(case, found) for case in group if (found := marks[case.word]) is not None]
        counts = defaultdict(set)
        for case, found in seen:
            for n, pair in _runs(found, case.numbers)[0].items():
                counts[n].add(pair)
        if all(len(pairs) < 2 for pairs in counts.values()):
            continue
        bases: dict[str | None, int] = {}
        for case, _ in seen:
            bases.setdefault(model.opcode_text(case.word), case.word)
        for value in form.values:
            short = [f for f in value.fields if value.kind == "I" and value.name is None and f.top <= MASK_BITS]
            for place in short:
                trials.setdefault((number, label), []).extend(
                    base & ~place.mask | bits for base in list(bases.values())[:MASK_BASES]
                    for bits in _fillings(place) if not place.signed)
    asked = sorted({word for words in trials.values() for word in words})
    texts = dict(zip(asked, learner.prober.texts(asked), strict=True))
    out: dict[tuple[int, int], list[_Case]] = {}
    for (number, label), words in trials.items():
        model = learner.states[number].model
        assert model is not None
        known = {case.word for case in cases[number, label]}
        good = [w for w in dict.fromkeys(words) if texts[w] is not None and w not in known
                and tree.lookup(model.select, w) == label]
        out[number, label] = [case for w in good if _apart(case := _case(model.forms[label], w))]
    return out


def _fillings(place: Field) -> list[int]:
    """The bits of every number that a field can hold: of some only the odd ones."""
    out = []
    for number in range(1 << place.top):
        try:
            out.append(place.put(number))
        except EncodeError:
            continue
    return out


def _note_flow(models: Sequence[Key], holder: Holder) -> None:
    """Write nvdisasm's attributes of each opcode into ``extra["flow"]``: control-flow, subroutine-call and the like."""
    words = [(m, probing_word(w)) for m in models for form in m.forms
             for w in (*form.shapes, *form.probes)[:FLOW_WORDS]]
    flow: dict[int, set[str]] = defaultdict(set)
    for (model, _), attributes in zip(words, holder.attributes([w for _, w in words]), strict=True):
        flow[model.key].update(name for name, value in (attributes or {}).items() if value == "True")
    for model in models:
        if flow[model.key]:
            model.extra["flow"] = sorted(flow[model.key])


def _name(model: Key) -> str:
    return model.opcode[0].labels[0].split(".")[0]


def _warpgroup_rules(model: Key, form: Form, state: State, label: int) -> None:
    """Register counts of a warpgroup product by the shape in its opcode, as trees over the opcode's bits.

    Life ranges can't tell: groups of up to 128 registers overlap whatever else a probe uses. D stands first and is
    written, everything else is read.
    """
    words = [w for w in sorted(state.samples.index) if tree.lookup(model.select, w) == label]
    known = [(w, c) for w in words if (text := model.opcode_text(w)) is not None
             and (c := warpgroup_counts(text, form)) is not None]
    form.rules, form.implicit, form.proved = [], [], bool(known)
    opcode_bits = 0
    for choice in model.opcode:
        opcode_bits |= tree.tested_bits(choice.node)
    candidates = [b for b in range(16, 105) if opcode_bits >> b & 1]
    bits = bit_matrix([w for w, _ in known]) if known else None
    for n in sorted(known[0][1]) if known else ():
        labels = [f"0,{c[n][1]}" if n == 0 else f"{c[n][1]},0" for _, c in known]
        names = sorted(set(labels))
        assert bits is not None
        grower = Grower(bits, np.array([names.index(t) for t in labels], dtype=np.int64), candidates, ())
        form.rules.append(Rule(n, known[0][1][n][0], Choice(names, grower.grow())))
        form.proved &= not grower.impure


def read_only_predicates(models: Iterable[Key]) -> None:
    """Life ranges mark LDGSTS' fill predicate as written, too; a predicate outside the target fields is only read."""
    for model in models:
        for form in model.forms:
            places = positions(form)
            for rule in form.rules:
                place = places[rule.value]
                target = set(place.low_bits) & set(PREDICATE_TARGETS)
                if place.kind in "PQ" and not target and rule.counts.labels == ["1,1"]:
                    rule.counts = Choice(["1,0"], 0)


def _pick(learner: Learner, state: State, label: int) -> list[int]:
    """Words of one form: every opcode text first, then attachments; sampled words before shapes made from others."""
    model = state.model
    assert model is not None
    seen: set[object] = set()
    words = []
    samples = state.samples
    shapes = [w for w in map(probing_word, model.forms[label].shapes) if w not in samples.index]
    texts = dict(zip(shapes, learner.prober.texts(shapes), strict=True))
    known: list[tuple[int, Cut]] = []
    for word in [*sorted(samples.index, key=lambda w: (w not in samples.real, w)), *shapes]:
        if tree.lookup(model.select, word) == label and (word in samples.index or texts[word] is not None):
            known.append((word, samples.cuts[samples.index[word]] if word in samples.index else cut(texts[word] or "")))
    for word, parts in known:
        if parts.opcode not in seen:
            seen.add(parts.opcode)
            words.append(word)
    most = len(words) + PER_FORM * 4
    for word, parts in known:
        short = [(n, text) for n, (kind, text) in enumerate(parts.values)
                 if kind == "N" or (kind == "I" and len(text) < 5)]
        for name in (*enumerate(parts.attachments), ("v", *short)):
            if name not in seen:
                seen.add(name)
                words.append(word)
                break
        if len(words) >= most:
            break
    return words + _unmet(learner, model, label, known)


def _unmet(learner: Learner, model: Key, label: int, known: Sequence[tuple[int, Cut]]) -> list[int]:
    """Words that show the attachments which no known word of the form shows: its trees may be those of a sibling."""
    trials: dict[tuple[int, str], list[int]] = defaultdict(list)
    form = model.forms[label]
    bases = [_spread_out(form, word, True) for word, _ in known[:UNMET_BASES]]  # RZ.64 is no register
    for n, choice in enumerate(form.attachments):
        met = {parts.attachments[n] for _, parts in known}
        for number, text in enumerate(choice.labels):
            for mask, bits in tree.paths(choice.node, number) if text not in met else ():
                trials[n, text] += [probing_word(word & ~mask | bits) for word in bases]
    asked = sorted({word for words in trials.values() for word in words})
    texts = dict(zip(asked, learner.prober.texts(asked), strict=True))
    out: list[int] = []
    for (n, text), words in trials.items():
        out += [word for word in words if tree.lookup(model.select, word) == label and texts[word] is not None
                and cut(texts[word] or "").attachments[n] == text][:UNMET_BASES]
    return out


def _spread_out(form: Form, word: int, zeros: bool) -> int:
    """``word`` with its registers moved far apart; zero registers are kept unless ``zeros``."""
    used: dict[str, int] = defaultdict(int)
    new = word
    for value in form.values:
        place = value.field_of(word)
        if place is None or place.kind not in _SPREAD:
            continue
        first, others = _SPREAD[place.kind]
        if place.runs and place.runs[0][0] in _LOW_TARGETS:
            number = first
        else:
            number = others[used[place.kind] % len(others)]
            used[place.kind] += 1
        if place.mask and number < 1 << place.top and (zeros or place.get(word) != (1 << place.top) - 1):
            try:
                new = new & ~place.mask | place.put(number)
            except EncodeError:
                continue
    return probing_word(new)


def _case(form: Form, word: int) -> _Case:
    numbers = {}
    for n, value in enumerate(form.values):
        place = value.field_of(word)
        if place is not None and place.kind in FILES and place.kind != "B":
            numbers[n] = (FILES[place.kind], place.get(word))
    return _Case(word, numbers)


def _apart(case: _Case) -> bool:
    """Whether the registers of a case are far enough apart to tell whose marks are whose."""
    for a, (file, first) in case.numbers.items():
        for b, (other, second) in case.numbers.items():
            gap = 1 if file in ("P", "UP") else 8
            if a < b and file == other and abs(first - second) < gap:
                return False
    return True


def _runs(marks: Marks, numbers: dict[int, tuple[str, int]]) -> tuple[dict[int, tuple[int, int]], Marks]:
    """(reads, writes) counted from each value's register, and the marks nobody accounts for."""
    left = dict(marks)
    starts = set(numbers.values())
    out = {}
    for n, (file, first) in numbers.items():
        counts = []
        for kinds in ("vx", "^x"):
            length = 0
            while marks.get((file, first + length), "") in kinds and (file, first + length) in marks:
                if length and (file, first + length) in starts:
                    break
                left.pop((file, first + length), None)
                length += 1
            counts.append(length)
        out[n] = (counts[0], counts[1])
    return out, left


def _rules(model: Key, form: Form, seen: Sequence[tuple[_Case, Marks]], counts: dict[str, int],
           zeros: dict[str, int]) -> None:
    own_bits = 0
    for choice in model.opcode:
        own_bits |= tree.tested_bits(choice.node)
    opcode_bits = own_bits
    for choice in form.attachments:
        opcode_bits |= tree.tested_bits(choice.node)
    owned = 0
    for value in form.values:
        owned |= value.mask
    # Names (2D, CUBE) and short numbers (component masks) may decide how many registers an operand has.
    small = 0
    for value in form.values:
        if value.name is not None:
            small |= tree.tested_bits(value.name.node)
        elif value.kind == "I" and max((f.top for f in value.fields), default=9) <= 8:
            small |= value.mask
    bits = bit_matrix([c.word for c, _ in seen])
    found = [_runs(m, c.numbers) for c, m in seen]
    places = positions(form)
    at = _attachment_places(form)
    rules = []
    proved = True
    for n, value in enumerate(form.values):
        if value.kind == "B":
            written = places[n].low_bits[:1] == [REGISTER_TARGET]
            rules.append(Rule(n, "barrier", Choice(["0,1" if written else "1,0"], 0)))
            continue
        if value.kind not in FILES:
            continue
        shown = [i for i, (c, _) in enumerate(seen) if n in c.numbers and c.numbers[n][1] < zeros[value.kind]]
        role = ("descriptor" if places[n].bank in DESCRIPTORS else "address" if places[n].bank
                else "predicate" if value.kind in "PQ" else "data")
        if not shown:
            if not value.fields:
                continue
            proved = False
            continue
        labels = [f"{found[i][0][n][0]},{found[i][0][n][1]}" for i in shown]
        names = sorted(set(labels))
        if len(names) == 1:
            rules.append(Rule(n, role, Choice(names, 0)))
            continue
        number = {name: k for k, name in enumerate(names)}
        # What decides: of an address what stands around it, of data the opcode's words and small numbers; else all.
        beside = tree.tested_bits(form.attachments[at[n]].node) | tree.tested_bits(form.attachments[at[n] + 1].node)
        tiers = [beside, beside | own_bits] if places[n].bank else [own_bits & ~owned | small]
        tiers.append(opcode_bits & ~owned | small)
        groups = sorted({(low, width) for v in form.values for f in v.fields for low, width, _ in f.runs if width > 1})
        which = np.array([number[t] for t in labels], dtype=np.int64)
        for mask in tiers:
            grower = Grower(bits[shown], which, [b for b in range(16, 105) if mask >> b & 1], groups)
            node = grower.grow()
            if not grower.impure:
                break
        if grower.impure:
            proved = False
            counts["operands with unexplained counts"] += 1
        rules.append(Rule(n, role, Choice(names, node)))
    implicit = {tuple(sorted(left.items())) for _, left in found}
    form.rules = rules
    form.implicit = []
    if len(implicit) == 1:
        form.implicit = [[file, register, int(mark in "vx"), int(mark in "^x")]
                         for (file, register), mark in next(iter(implicit))]
    else:
        proved = False
        counts["forms with changing implicit registers"] += 1
    form.proved = proved
    counts["forms proved" if proved else "forms not proved"] += 1


def _attachment_places(form: Form) -> list[int]:
    """Per value: where the attachment before it stands in the form's list (the one behind it follows)."""
    out = []
    at = 0
    for piece in pieces(form.skeleton):
        if piece[0].isupper():
            out.append(at)
            at += 2
        elif piece[0] == "]" or piece[0].islower():
            at += 1
    return out


def _branch_rules(model: Key, form: Form, state: State) -> None:
    """Control transfers by rule: life ranges mix in what calls and jumps do elsewhere."""
    rules = []
    parts = next((c for c in state.samples.cuts if c.skeleton == form.skeleton), None)
    if parts is None:
        form.rules, form.proved = [], False
        return
    for n, write, role, count in guess(parts.opcode, form, parts.attachments):
        rules.append(Rule(n, role, Choice([f"0,{count}" if write else f"{count},0"], 0)))
    form.rules, form.implicit, form.proved = rules, [], True




def disprove(models: Sequence[Key], holder: Holder, zeros: dict[str, int]) -> int:
    """Hold the rules against life ranges of one word per form and opcode text or operand mark; forms that fail are not
    proved.

    Left out: UR0-UR3 and UR63 and above (never marked), predicates marked as written (loads mark one they only read),
    and words whose register groups no assembler would accept.
    """
    words: list[tuple[Key, Form, int]] = []
    for model in models:
        if _name(model) in BRANCHES | ASYNC:
            continue
        for form in model.forms:
            seen: set[object] = set()
            for word in form.shapes or form.probes if form.proved else ():
                shown = {model.opcode_text(word), *((n, a.get(word)) for n, a in enumerate(form.attachments))}
                if not shown <= seen:
                    seen |= shown
                    words.append((model, form, probing_word(word)))
    failed = 0
    for (_, form, word), marks in zip(words, holder.marks([w for *_, w in words]), strict=True):
        wanted = _registers(form, word, zeros)
        if marks is None or wanted is None or not form.proved:
            continue
        for kinds, own in zip(("vx", "^x"), wanted, strict=True):
            found = {register for register, mark in marks.items() if mark in kinds}
            odd = {(file, n) for file, n in found ^ own
                   if not (file == "UR" and (n < 4 or n >= 63)) and not (kinds == "^x" and file == "P")}
            if odd and form.proved:
                form.proved = False
                failed += 1
    return failed


def _registers(form: Form, word: int, zeros: dict[str, int]) -> tuple[Registers, Registers] | None:
    """(read, written) registers of ``word`` by the rules; None where they say nothing or groups are misaligned."""
    out: tuple[Registers, Registers] = (set(), set())
    for file, first, read, written in form.implicit:
        for flag, group in ((read, out[0]), (written, out[1])):
            if flag:
                group.add((file, first))
    for rule in form.rules:
        place = form.values[rule.value].field_of(word)
        counts = rule.get(word)
        if place is None or counts is None:
            return None
        first = place.get(word)
        if place.kind == "B" or first == zeros.get(place.kind):
            continue
        for count, group in zip(counts, out, strict=True):
            if count > 1 and (first % 2 or first + count > zeros[place.kind]):
                return None
            group.update((FILES[place.kind], first + n) for n in range(count))
    return out
