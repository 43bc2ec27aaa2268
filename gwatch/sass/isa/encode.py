"""From text to a word: find the form, take the bits the compiler uses for it, put the numbers in, decode back.

Bits that a text does not show come from compiler words of the same shape (form, opcode words, attachments). Where
compilers write several values for the same shape the line is refused as ambiguous; for a shape no compiler word has,
the trees are solved and the bits they leave open are taken from similar compiler words, if those agree. Whatever comes
out is decoded again, and only a word whose text is the text given is returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gwatch.errors import EncodeError
from gwatch.sass.control import CONTROL_MASK
from gwatch.sass.isa import tree, values
from gwatch.sass.isa.lex import Cut
from gwatch.sass.isa.model import GUARD_SHIFT, KEY_BIT, Choice, Form, Key, key_of
from gwatch.sass.isa.table import Table
from gwatch.sass.isa.tree import Node

SOLUTIONS = 64
_FIXED = 0xFFF | 1 << KEY_BIT | 0xF << GUARD_SHIFT | CONTROL_MASK
_STEPS = 4000


@dataclass(slots=True)
class Plan:
    """How one shape is encoded in one form: starting words, whether compilers use it."""

    key: Key
    form: Form
    bases: list[int]
    compiled: bool
    problem: EncodeError | None = None


class Encoder:
    """Encodes the part of a line between guard and control word; ``zero`` gives RZ, URZ, PT and UPT."""

    def __init__(self, table: Table, zero: dict[str, int]) -> None:
        self.table = table
        self.zero = zero
        self._plans: dict[tuple[tuple[str, ...], str, tuple[str, ...]], list[Plan]] = {}
        self._names: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._modifiers: dict[int, int] = {}
        self._masks: dict[int, list[tuple[int, int]]] = {}
        self._shapes: dict[int, dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]]] = {}

    def encode(self, cut: Cut, body: str) -> int:
        """The word (guard and control bits 0) whose text is ``body``.

        Raises EncodeError: ``[mnemonic-unknown]``, ``[form-unknown]``, ``[modifier-unknown]``, ``[operand-range]``,
        ``[register-range]``, ``[nan-payload]``, ``[encode-ambiguous]``, ``[encode-unproved]``.
        """
        for kind, text in cut.values:
            if kind == "F" and text.strip().endswith("NAN"):
                raise EncodeError("nan-payload", f"{text.strip()} in {body!r} stands for many bit patterns",
                                  "give the whole word, or another number")
        problems: list[EncodeError] = []
        found: dict[int, bool] = {}
        for plan in self.plans(cut):
            if found and not plan.compiled:
                break
            try:
                words = self._try(plan, cut, body)
            except EncodeError as error:
                problems.append(error)
                continue
            for word in words:
                found[word] = plan.compiled
        if len(found) > 1 and not any(found.values()):
            found = self._canonical(cut, found)
        if len(found) == 1:
            return next(iter(found))
        if found:
            differing = 0
            first, *rest = found
            for word in rest:
                differing |= first ^ word
            bits = [b for b in range(128) if differing >> b & 1]
            raise EncodeError("encode-ambiguous", f"{body!r} stands for {len(found)} known words",
                              f"they differ in bits {bits} that the text does not show; give the whole word")
        if problems:
            raise problems[0]
        raise self._unknown(cut, body)

    def plans(self, cut: Cut) -> list[Plan]:
        """All ways to encode the shape of ``cut``, those that compilers use first."""
        shape = (cut.opcode, cut.skeleton, cut.attachments)
        plans = self._plans.get(shape)
        if plans is None:
            plans = []
            for number in self.table.mnemonics.get(cut.opcode[0], ()):
                key = self.table.key(number)
                assert key is not None
                for form in key.forms:
                    if form.skeleton != cut.skeleton:
                        continue
                    bases = self.shapes(key, form).get((cut.opcode, cut.attachments))
                    if bases:
                        plans.append(Plan(key, form, bases, True))
                    else:
                        try:
                            solved = self._solve(key, form, cut)
                        except EncodeError as error:
                            plans.append(Plan(key, form, [], False, error))
                            continue
                        if solved:
                            plans.append(Plan(key, form, solved, False))
            plans.sort(key=lambda p: not p.compiled)
            for plan in plans:
                rival = None if plan.compiled or plan.problem else self._rival(plan.key, cut)
                if rival is not None:
                    plan.problem = EncodeError(
                        "encode-ambiguous", f"{'.'.join(cut.opcode)} {cut.skeleton} is in no compiler word, and "
                        f"opcodes {plan.key.key:04x} and {rival.key:04x} may both print it", "give the whole word")
            self._plans[shape] = plans
        return plans

    def _rival(self, key: Key, cut: Cut) -> Key | None:
        """Another opcode of the mnemonic that nothing in its fixed words tells apart from ``key`` for this text."""
        for number in self.table.mnemonics.get(cut.opcode[0], ()):
            other = self.table.key(number)
            if other is None or other is key or all(f.skeleton != cut.skeleton for f in other.forms):
                continue
            words = {w for choice in other.opcode for label in choice.labels for w in label.split(".")}
            if other.constant_words() <= set(cut.opcode) <= words:
                return other
        return None

    def shapes(self, key: Key, form: Form) -> dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]]:
        """Compiler words of a form by (opcode words, attachments)."""
        known = self._shapes.get(id(form))
        if known is None:
            known = {}
            for word in form.shapes:
                opcode = key.opcode_text(word)
                attached = [a.get(word) for a in form.attachments]
                if opcode is not None and None not in attached:
                    known.setdefault((tuple(opcode.split(".")), tuple(a or "" for a in attached)), []).append(word)
            self._shapes[id(form)] = known
        return known

    def _canonical(self, cut: Cut, found: dict[int, bool]) -> dict[int, bool]:
        """Of several words for a text that no compiler word has, those whose differing bits are the compilers'.

        Only bits that have one value in all compiler words of the form (with these modifiers, else in general) decide.
        """
        keys = {key_of(word) for word in found}
        key = self.table.key(keys.pop()) if len(keys) == 1 else None
        forms = [f for f in key.forms if f.skeleton == cut.skeleton] if key else []
        if key is None or not forms:
            return found
        differing = 0
        first, *rest = found
        for word in rest:
            differing |= first ^ word
        for pool in list(self._pools(key, forms[0], cut))[:2]:
            values = {row[0] & differing for row in pool}
            if len(values) == 1:
                value = values.pop()
                return {w: f for w, f in found.items() if w & differing == value} or found
        return found

    def _try(self, plan: Plan, cut: Cut, body: str) -> list[int]:
        if plan.problem is not None:
            raise plan.problem
        words: list[int] = []
        last: EncodeError | None = None
        others: list[str] = []
        for base in plan.bases:
            # The fields that the starting word itself uses come first; others hold where a value chooses the field.
            for own in (True, False):
                try:
                    texts = [(w, plan.key.body(w, self.zero)) for w in self._filled(plan, base, cut, own)]
                except EncodeError as error:
                    last = error
                    continue
                good = [w for w, text in texts if text == body]
                others += [text for _, text in texts if text is not None and text != body]
                words += good[:1]
                if good:
                    break
        if not words:
            nearest = f"nearest: {others[0]}" if others else "the tables do not cover this combination of operands"
            raise last or EncodeError("encode-unproved", f"no word reads back as {body!r}", nearest)
        return sorted(set(words))

    def _filled(self, plan: Plan, base: int, cut: Cut, own: bool) -> Iterator[int]:
        """``base`` with the values of ``cut`` put in, in every way that fits."""
        words = [base]
        problem: EncodeError | None = None
        for value, (kind, text) in zip(plan.form.values, cut.values, strict=True):
            following: list[int] = []
            if value.name is not None:
                if text not in value.name.labels:
                    raise EncodeError("name-unknown", f"{text!r} is not known here",
                                      "known: " + " ".join(value.name.labels[:12]))
                label = value.name.labels.index(text)
                for word in words:
                    for mask, bits in self._name_paths(value.name, label):
                        following.append(word & ~mask | bits)
                        if len(following) >= SOLUTIONS:
                            break
            else:
                places = value.fields
                if own and len(places) > 1:
                    place = value.field_of(base)
                    places = [place] if place is not None else []
                for place in places:
                    try:
                        number = self._number(kind, place.kind, text)
                        if number is None:
                            continue
                        bits = place.put(number)
                    except EncodeError as error:
                        problem = EncodeError(error.code, f"{text} in {plan.key.opcode_text(base)}: {error.message}",
                                              error.hint)
                        continue
                    following += [word & ~place.mask | bits for word in words]
            if not following:
                raise problem or EncodeError("operand-range", f"{text} does not fit {plan.key.opcode_text(base)}")
            words = following[:SOLUTIONS]
        yield from words

    def _name_paths(self, name: Choice, label: int) -> list[tuple[int, int]]:
        ways = self._names.get((id(name), label))
        if ways is None:
            ways = self._names[id(name), label] = list(tree.paths(name.node, label))
        return ways

    def _number(self, kind: str, place: str, text: str) -> int | None:
        if kind == "F":
            bits = values.float_bits(text, place)
            if bits is None:
                raise EncodeError("operand-range", f"{text.strip()} is not exactly a {place} number")
            return bits
        return values.parse_number(kind, text, self.zero)

    def _solve(self, key: Key, form: Form, cut: Cut) -> list[int]:
        """Starting words for a shape that no compiler word has.

        Trees and values fix some bits. Every other bit takes the value it has in the compiler words that do not fix it
        either: words of the same form, else of the same opcode, else of the same mnemonic. Empty when a way through
        the trees does not exist; raises EncodeError ``[encode-ambiguous]`` when those words disagree or there are none.
        """
        chosen: list[tuple[Node, int]] = [(key.select, key.forms.index(form))]
        labels = _assign(key.opcode, cut.opcode)
        if labels is None:
            return []
        chosen += [(choice.node, label) for choice, label in zip(key.opcode, labels, strict=True)]
        for choice, text in zip(form.attachments, cut.attachments, strict=True):
            if text not in choice.labels:
                return []
            chosen.append((choice.node, choice.labels.index(text)))
        out: list[int] = []
        for fields in product(*(range(len(v.fields)) if v.name is None else (-1,) for v in form.values)):
            filled = 0
            choices = list(chosen)
            for value, number in zip(form.values, fields, strict=True):
                if value.name is not None:
                    filled |= tree.tested_bits(value.name.node)
                else:
                    filled |= value.fields[number].mask
                    choices.append((value.node, number))
            for mask, bits in _intersect([self._ways(key, node, label) for node, label in choices]):
                hidden = ~(mask | filled | _FIXED) & (1 << 105) - 1
                word = key.key & 0xFFF | key.key >> 12 << KEY_BIT
                out.append(word & ~mask | bits | self._hidden_bits(key, form, hidden, cut))
        return list(dict.fromkeys(out))[:SOLUTIONS]

    def _ways(self, key: Key, node: Node, label: int) -> list[tuple[int, int]]:
        """Ways through a tree to ``label``: those that compiler words of the opcode take, else all."""
        ways = list(tree.paths(node, label))
        if len(ways) < 2:
            return ways
        words = [w for form in key.forms for w in form.shapes if tree.lookup(node, w) == label]
        return [(mask, bits) for mask, bits in ways if any(w & mask == bits for w in words)] or ways

    def _hidden_bits(self, key: Key, form: Form, hidden: int, cut: Cut) -> int:
        """What compiler words have in the ``hidden`` bits."""
        known = 0
        bits = 0
        sensitive = self._modifier_bits(key)
        for number, pool in enumerate(self._pools(key, form, cut)):
            ones = zeros = 0
            # Bits of modifiers are believed only from words with the very same modifiers.
            trusted = hidden & ~known & ~(sensitive if number else 0)
            for word, determined in pool:
                free = trusted & ~determined
                ones |= word & free
                zeros |= ~word & free
            if ones & zeros:
                clash = [b for b in range(128) if (ones & zeros) >> b & 1]
                raise EncodeError("encode-ambiguous", f"{'.'.join(cut.opcode)} {cut.skeleton} is in no compiler word, "
                                  f"and similar ones differ in bits {clash} that the text does not show",
                                  "give the whole word")
            bits |= ones
            known |= ones | zeros
            if not hidden & ~known:
                return bits
        open_bits = hidden & ~known
        if not any(f.shapes for f in key.forms):
            # An opcode no compiler word has: what was proved not to matter stays 0.
            open_bits &= int(key.extra.get("sensitive", f"{open_bits:x}"), 16)
            if not open_bits:
                return bits
        missing = [b for b in range(128) if open_bits >> b & 1]
        raise EncodeError("encode-ambiguous", f"{'.'.join(cut.opcode)} {cut.skeleton} is in no compiler word, and no "
                          f"similar one shows bits {missing}", "give the whole word")

    def _modifier_bits(self, key: Key) -> int:
        """Bits that matter to ``key`` and are no operand's (nor an operand's sign or negation) in any of its forms."""
        mask = self._modifiers.get(key.key)
        if mask is None:
            mask = int(key.extra.get("sensitive", "0"), 16)
            for form in key.forms:
                for value in form.values:
                    mask &= ~value.mask
                for choice in form.attachments:
                    mask &= ~tree.tested_bits(choice.node)
            self._modifiers[key.key] = mask
        return mask

    def _pools(self, key: Key, form: Form, cut: Cut) -> Iterator[list[tuple[int, int]]]:
        """(word, bits it determines) of compiler words: same form and modifiers, form, opcode, mnemonic."""
        alike = self._determined(key, [form])
        yield [row for row in alike if key.opcode_text(row[0]) == ".".join(cut.opcode)]
        yield alike
        yield self._determined(key, key.forms)
        siblings: list[tuple[int, int]] = []
        for number in self.table.mnemonics.get(key.opcode[0].labels[0].split(".")[0], ()):
            other = self.table.key(number)
            if other is not None and other is not key:
                siblings += self._determined(other, other.forms)
        yield siblings

    def _determined(self, key: Key, forms: list[Form]) -> list[tuple[int, int]]:
        out = []
        for form in forms:
            rows = self._masks.get(id(form))
            if rows is None:
                rows = []
                for word in form.shapes:
                    mask = tree.pinned_bits(key.select, word)
                    for choice in (*key.opcode, *form.attachments):
                        mask |= tree.pinned_bits(choice.node, word)
                    for value in form.values:
                        place = value.field_of(word)
                        mask |= (place.mask if place else 0) | tree.pinned_bits(value.node, word)
                        if value.name is not None:
                            mask |= tree.pinned_bits(value.name.node, word)
                    rows.append((word, mask))
                self._masks[id(form)] = rows
            out += rows
        return out

    def _unknown(self, cut: Cut, body: str) -> EncodeError:
        mnemonic = cut.opcode[0]
        keys = [self.table.key(n) for n in self.table.mnemonics.get(mnemonic, ())]
        if not keys:
            near = _nearest(mnemonic, list(self.table.mnemonics))
            return EncodeError("mnemonic-unknown", f"mnemonic {mnemonic!r} in {body!r} is not in the {self.table.name} "
                               "table", f"nearest: {near}")
        words = {w for key in keys if key for c in key.opcode for label in c.labels for w in label.split(".")}
        for word in cut.opcode:
            if word not in words:
                return EncodeError("modifier-unknown", f"{mnemonic} has no modifier .{word} (in {body!r})",
                                   f"nearest: .{_nearest(word, sorted(words - {mnemonic, ''}))}")
        skeletons = sorted({f.skeleton for key in keys if key for f in key.forms})
        if cut.skeleton not in skeletons:
            return EncodeError("form-unknown", f"{mnemonic} does not take operands like {cut.skeleton!r} ({body!r})",
                               f"nearest form: {_nearest(cut.skeleton, skeletons)}")
        return EncodeError("form-unknown", f"{mnemonic} has no form with these modifiers and operand marks: {body!r}",
                           "known opcode words: " + " ".join(sorted(words))[:200])


def _assign(choices: list[Choice], opcode: tuple[str, ...]) -> list[int] | None:
    """Which label each slot must show so that together they print ``opcode``."""

    def go(slot: int, position: int) -> list[int] | None:
        if slot == len(choices):
            return [] if position == len(opcode) else None
        order = sorted(range(len(choices[slot].labels)), key=lambda n: -len(choices[slot].labels[n]))
        for number in order:
            label = choices[slot].labels[number]
            words = tuple(label.split(".")) if label else ()
            if opcode[position:position + len(words)] == words:
                rest = go(slot + 1, position + len(words))
                if rest is not None:
                    return [number, *rest]
        return None

    return go(0, 0)


def _intersect(wanted: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Consistent (mask, value) combinations, one path of every list; at most SOLUTIONS."""
    wanted = sorted(wanted, key=len)
    out: list[tuple[int, int]] = []
    steps = 0

    def go(depth: int, mask: int, value: int) -> None:
        nonlocal steps
        steps += 1
        if len(out) >= SOLUTIONS or steps > _STEPS:
            return
        if depth == len(wanted):
            out.append((mask, value))
            return
        for more, bits in wanted[depth]:
            if (value ^ bits) & mask & more == 0:
                go(depth + 1, mask | more, value | bits)

    go(0, 0, 0)
    return out


def _nearest(word: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, known, 3, 0.4)
    return " ".join(close) if close else (" ".join(known[:3]) or "none")
