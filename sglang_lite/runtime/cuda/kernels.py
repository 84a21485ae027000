"""Triton kernels of sampling; imported only where Triton is."""

# mypy: disable-error-code="no-untyped-def,attr-defined"

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
PIVOTS: tl.constexpr = tl.constexpr(16)
# Tokens at most a ten-thousandth as probable as the best are looked at only if they matter.
CANDIDATE: tl.constexpr = tl.constexpr(1e-4)


@triton.jit(do_not_specialize=["vocab", "words"])
def mask_logits(logits, out, table, lines, by_row, vocab, words, BLOCK: tl.constexpr):
    """Copy rows of logits to ``out`` (it may be the same), -inf where their masks forbid.

    ``table`` int32[n, words] has packed masks, bit i % 32 of word i // 32 for token i; ``lines``
    int32[rows] says which is a row's, -1 = none.  Tokens beyond the words are forbidden.
    """
    row = tl.program_id(0)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    line = tl.load(lines + row)
    at = row.to(tl.int64) * by_row + token
    value = tl.load(logits + at, mask=token < vocab)
    if line >= 0:
        word = token // 32
        bits = tl.load(table + line.to(tl.int64) * words + word, mask=word < words, other=0)
        value = tl.where(((bits >> (token % 32)) & 1) != 0, value, float("-inf"))
    tl.store(out + row.to(tl.int64) * vocab + token, value, mask=token < vocab)


@triton.jit
def _key(value):
    """Integers in the order of the numbers; both zeros are one."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _above(values, count, best, rate, at, BLOCK: tl.constexpr):
    """How many candidates are larger than key ``at``, their weight, how many are equal, and the
    weight of one of these."""
    larger = 0
    equal = 0
    weight = 0.0
    each = 0.0
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(values + i, mask=i < count, other=float("-inf"))
        key = _key(value)
        w = tl.exp2((value - best) * rate)
        is_larger = (key > at) & (i < count)
        is_equal = (key == at) & (i < count)
        larger += tl.sum(is_larger.to(tl.int32), 0)
        equal += tl.sum(is_equal.to(tl.int32), 0)
        weight += tl.sum(tl.where(is_larger, w, 0.0), 0)
        each = tl.maximum(each, tl.max(tl.where(is_equal, w, 0.0), 0))
    return larger, weight, equal, each


@triton.jit
def _threshold(
    values,
    count,
    best,
    rate,
    low,
    high,
    target,
    COUNT: tl.constexpr,
    OVER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest key from ``low`` on so that the candidates with at least it weigh ``target``.

    With OVER they must weigh more than it; with COUNT every candidate weighs 1.  The range of keys
    up to ``high`` is cut into seventeen pieces again and again, each time in one pass.
    """
    above = high + 1
    while above - low > 1:
        step = tl.maximum((above - low) // (PIVOTS + 1), 1)
        pivot = low + step * (1 + tl.arange(0, PIVOTS).to(tl.int64))
        sums = tl.zeros([PIVOTS], tl.float32)
        for start in range(0, count, BLOCK):
            i = start + tl.arange(0, BLOCK)
            value = tl.load(values + i, mask=i < count, other=float("-inf"))
            w = tl.where(i < count, 1.0 if COUNT else tl.exp2((value - best) * rate), 0.0)
            reached = _key(value)[:, None] >= pivot[None, :]
            sums += tl.sum(tl.where(reached, w[:, None], 0.0), 0)
        enough = (sums > target) if OVER else (sums >= target)
        passed = tl.sum(enough.to(tl.int32), 0)
        low += step * passed
        above = tl.where(passed < PIVOTS, tl.minimum(above, low + step), above)
    return low


@triton.jit
def _summary(logits, vocab, rate, BLOCK: tl.constexpr):
    """The best logit, its id, the weight of all tokens, and whether a logit is no finite number
    or -inf."""
    best = float("-inf")
    best_id = 0
    total = 0.0
    strange = 0
    for start in range(0, vocab, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(logits + i, mask=i < vocab, other=float("-inf"))
        no_number = (value != value) | (value == float("inf"))
        strange = tl.maximum(strange, tl.max(no_number.to(tl.int32), 0))
        top, where = tl.max(value, 0, return_indices=True, return_indices_tie_break_left=True)
        best_id = tl.where(top > best, start + where, best_id)
        larger = tl.maximum(best, top)
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2((value - base) * rate)
        total = total * tl.exp2((best - base) * rate) + tl.sum(weights, 0)
        best = larger
    return best, best_id, total, strange


@triton.jit
def _collect(logits, values, ids, vocab, least, best, rate, BLOCK: tl.constexpr):
    """Copy the tokens with logits from ``least`` on, in the order of their ids; how many they are,
    their weight, and the lowest logit among them."""
    count = 0
    covered = 0.0
    lowest = best
    for start in range(0, vocab, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(logits + i, mask=i < vocab, other=float("-inf"))
        chosen = (value >= least) & (value > float("-inf"))
        place = count + tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(values + place, value, mask=chosen)
        tl.store(ids + place, i, mask=chosen)
        count += tl.sum(chosen.to(tl.int32), 0)
        covered += tl.sum(tl.where(chosen, tl.exp2((value - best) * rate), 0.0), 0)
        lowest = tl.minimum(lowest, tl.min(tl.where(chosen, value, best), 0))
    return count, covered, lowest


@triton.jit
def _strong(values, count, best, rate, min_p, BLOCK: tl.constexpr):
    """How many candidates weigh ``min_p`` or more, their weight, and the lowest logit of them."""
    strong = 0
    mass = 0.0
    weakest = best
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(values + i, mask=i < count, other=float("-inf"))
        w = tl.exp2((value - best) * rate)
        is_strong = (w >= min_p) & (i < count)
        strong += tl.sum(is_strong.to(tl.int32), 0)
        mass += tl.sum(tl.where(is_strong, w, 0.0), 0)
        weakest = tl.minimum(weakest, tl.min(tl.where(is_strong, value, best), 0))
    return strong, mass, weakest


@triton.jit
def _pick(values, ids, count, at, rank, BLOCK: tl.constexpr):
    """The id of the candidate ``rank`` (from 0) among those with key ``at``."""
    token = 0
    before = 0
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(values + i, mask=i < count, other=float("-inf"))
        is_equal = ((_key(value) == at) & (i < count)).to(tl.int32)
        order = before + tl.cumsum(is_equal, 0) - 1
        picked = (is_equal > 0) & (order == rank)
        token += tl.sum(tl.where(picked, tl.load(ids + i, mask=i < count, other=0), 0), 0)
        before += tl.sum(is_equal, 0)
    return token


@triton.jit(do_not_specialize=["vocab"])
def sample_rows(
    logits,
    parameters,
    tokens,
    candidate_values,
    candidate_ids,
    by_row,
    vocab,
    BLOCK: tl.constexpr,
    SMALL: tl.constexpr,
):
    """One token of one row: int64 in ``tokens``, -1 if there is none or a logit is no number.

    ``parameters`` float32[rows, 5]: temperature (0 = greedy), top-k (0 = all), top-p, min-p, and
    the number in (0, 1) at which the distribution is inverted.  Tokens are in order of falling
    logits, then of rising ids.  ``candidate_*`` [rows, vocab] are scratch memory.
    """
    row = tl.program_id(0)
    given = parameters + row * 5
    temperature = tl.load(given)
    top_k = tl.load(given + 1).to(tl.int32)
    top_p = tl.load(given + 2)
    min_p = tl.load(given + 3)
    uniform = tl.load(given + 4)
    rate = LOG2_E / tl.where(temperature > 0, temperature, 1.0)
    logits += row.to(tl.int64) * by_row
    values = candidate_values + row.to(tl.int64) * vocab
    ids = candidate_ids + row.to(tl.int64) * vocab

    best, best_id, total, strange = _summary(logits, vocab, rate, BLOCK)
    if (strange > 0) | (best == float("-inf")):
        tl.store(tokens + row, tl.full([], -1, tl.int64))
        return
    if temperature <= 0:
        tl.store(tokens + row, best_id.to(tl.int64))
        return

    # Candidates in the order of their ids; all tokens, if the likely ones don't settle it.
    least = best + tl.log2(tl.full([], CANDIDATE, tl.float32)) / rate
    count = 0
    covered = 0.0
    lowest = best
    attempt = 0
    while attempt < 2:
        count, covered, lowest = _collect(logits, values, ids, vocab, least, best, rate, BLOCK)
        by_share = (top_p < 1.0) & (covered >= top_p * total)
        by_chance = (top_p >= 1.0) & (min_p <= 0.0) & (covered > uniform * total)
        settled = tl.where(top_k > 0, count >= top_k, by_share | by_chance | (min_p >= CANDIDATE))
        attempt = tl.where(settled, 2, attempt + 1)
        least = tl.where(settled, least, float("-inf"))
    # Other threads of this program read what was written.
    tl.debug_barrier()

    low = _key(lowest)
    high = _key(best)
    kept = vocab
    mass = total
    last = low
    if (top_k > 0) & (top_k < count):
        at = _threshold(
            values, count, best, rate, low, high, top_k.to(tl.float32), True, False, SMALL
        )
        larger, weight, equal, each = _above(values, count, best, rate, at, SMALL)
        kept = top_k
        mass = weight + (top_k - larger).to(tl.float32) * each
        last = at
    elif top_k > 0:
        mass = covered
        kept = count
    if top_p < 1.0:
        target = top_p * mass
        if covered >= target:
            at = _threshold(values, count, best, rate, low, high, target, False, False, SMALL)
            larger, weight, equal, each = _above(values, count, best, rate, at, SMALL)
            needed = tl.where(each > 0, tl.ceil((target - weight) / each), 1.0)
            taken = tl.minimum(tl.maximum(needed, 1.0), equal.to(tl.float32)).to(tl.int32)
            if larger + taken < kept:
                kept = larger + taken
                mass = weight + taken.to(tl.float32) * each
                last = at
    if min_p > 0.0:
        strong, strong_mass, weakest = _strong(values, count, best, rate, min_p, SMALL)
        if strong < kept:
            kept = strong
            mass = strong_mass
            last = _key(weakest)

    target = uniform * mass
    at = _threshold(values, count, best, rate, low, high, target, False, True, SMALL)
    # Rounding must not lead to a token that was cut off.
    at = tl.maximum(at, last)
    larger, weight, equal, each = _above(values, count, best, rate, at, SMALL)
    beyond = tl.where(each > 0, tl.floor((target - weight) / each), 0.0)
    rank = tl.minimum(tl.maximum(beyond, 0.0), equal.to(tl.float32) - 1.0).to(tl.int32)
    rank = tl.maximum(tl.minimum(rank, kept - 1 - larger), 0)
    token = _pick(values, ids, count, at, rank, SMALL)
    tl.store(tokens + row, token.to(tl.int64))
