"""A sample of mutations.py: what changes between two calls of a replayed function is noticed."""

import collections
import random

import mutations
import mutations_around
import pytest

SEED = 0
SAMPLE = 12


def sample(pairs, part):
    chosen = list(pairs)
    random.Random(SEED).shuffle(chosen)
    return chosen[SAMPLE * part : SAMPLE * (part + 1)]


def check(chosen):
    found = {str(pair): mutations.run(pair) for pair in chosen}
    assert not {name: one.stale for name, one in found.items() if one.stale}
    # What is refused is right, but shows nothing.
    replayed = collections.Counter(one.replayed for one in found.values())
    assert replayed[True] >= len(chosen) * 3 // 4, {n: o.reason for n, o in found.items()}


@pytest.mark.parametrize("part", range(4))
def test_of_what_it_reads(part):
    check(sample(mutations.pairs(), part))


def test_around_it():
    check(sample(mutations_around.pairs(), 0))


@pytest.mark.parametrize("thing", ["host", "ordered", "object", "linear"])
def test_all_changes_of_a_thing(thing):
    """Those that were missed most often, from a place each."""
    places = list(mutations.WAYS)
    chosen = [pair for pair in mutations.pairs() if pair.thing == thing]
    check([pair for i, pair in enumerate(chosen) if i % len(places) == i // len(places) % 7])
