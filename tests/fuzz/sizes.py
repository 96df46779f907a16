"""Programs whose inputs have other sizes in each step, with XLA_DYNAMIC_SIZES=poison.

A program runs with its own sizes first, then with others: the programs of buckets have NaN and wild
indices in all padding. The mode is read once, so a process of its own runs them (fuzz.Worker).
"""

import random
import re

import programs
import surfaces
from programs import Program

import torch_xla

MODE = {"XLA_DYNAMIC_SIZES": "poison", "XLA_RECOMPILE_WARNING": "0"}
# Of so many programs one is run with other sizes, too.
EVERY = 5
_STEPS = 4
# Of longer programs hardly one has only operators that generalize.
LENGTH = 6
_LARGEST = 9


def resized(program: Program, sizes: dict[int, int]) -> Program:
    """The program with other sizes of its inputs."""

    def shape(made: re.Match[str]) -> str:
        return f"make({re.sub(r'[0-9]+', lambda n: str(sizes.get(int(n[0]), n[0])), made[1])}, "

    return Program(
        [re.sub(r"\bmake\((\([^)]*\)), ", shape, line) for line in program.lines], program.errors
    )


def steps(program: Program, seed: int) -> list[Program]:
    """The program in the sizes of each step, without the lines that the CPU ever refuses."""
    drawn = random.Random(seed)
    given = [{}] + [
        dict(zip((2, 3, 4), drawn.sample(range(2, _LARGEST + 1), 3), strict=True))
        for _ in range(_STEPS - 1)
    ]
    kept = list(program.lines)
    while True:
        variants = [resized(Program(kept, [""] * len(kept)), sizes) for sizes in given]
        bad = {
            index
            for variant in variants
            for index, error in enumerate(variant.run(programs.environment("cpu", "cpu")))
            if error
        }
        if not bad:
            return variants
        kept = [line for index, line in enumerate(kept) if index not in bad]


def check(variants: list[Program]) -> str:
    """How some step differs from the CPU's; "" for not at all."""
    for number, variant in enumerate(variants):
        env = programs.environment("xla:0", "xla:0")
        errors = variant.run(env)
        torch_xla.sync()
        said = programs.check(variant, env, errors)
        if said and not programs.excused(said):
            if not programs.explained_by_rounding(variant, said):
                return f"step {number}: {said}"
    return ""


def failure(seed: int, length: int) -> tuple[int, str, str] | None:
    """Runs the seed's program in several sizes: how it differs, and a short program."""
    program = surfaces.plain(programs.write(seed, length))
    if not (said := check(steps(program, seed))):
        return None
    # A structure that was refused often is not tried again, so that this may find nothing shorter.
    short = programs.shrink(program, lambda candidate: bool(check(steps(candidate, seed))))
    lines = "\n\n".join("\n".join(step.lines) for step in steps(short, seed))
    return seed, said, f"# with the sizes of several steps\n{lines}"
