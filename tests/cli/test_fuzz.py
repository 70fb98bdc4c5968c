"""Whatever the bytes: a status, no traceback, and output that is a valid stream."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.running import Ran, reconstituted, run

STATUSES = {0, 1, 2, 3, 4}
RESTRICTIONS = ["R0", "R1", "R2", "R3", "R4"]
VALUES = ["0", "-1", "7", "null", "true", "1.5", '"x"', "[]", "{}", "1e400", "NaN", "9" * 19]


def well_behaved(result: Ran, text: bytes, *argv: str) -> Ran:
    assert result.status in STATUSES, (argv, text, result.err)
    assert "Traceback" not in result.err, (argv, text, result.err)
    return result


def judge(text: bytes, *options: str) -> None:
    """Gives ``text`` to every command that reads; the output of a merge must be valid."""
    result = well_behaved(run("merge", *options, "-", stdin=text), text, "merge", *options)
    assert result.status in (0, 2, 3)
    reconstituted(result.out)
    for command in (["tdb", "-"], ["check", "-"], ["check", "--keyed", "-"]):
        well_behaved(run(*command, stdin=text), text, *command)


def mutated(text: str, rng: random.Random) -> bytes:
    """``text`` with a few of its lines, numbers or bytes changed."""
    lines = text.splitlines(keepends=True)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(lines))
        kind = rng.randrange(8)
        if kind == 0:
            del lines[at]
            lines = lines or ["\n"]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines)), lines[at])
        elif kind == 2:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 3:
            digits = [i for i, c in enumerate(lines[at]) if c.isdigit()]
            if digits:
                i = rng.choice(digits)
                lines[at] = lines[at][:i] + rng.choice("0123456789-") + lines[at][i + 1 :]
        elif kind == 4:
            head, colon, _ = lines[at].rpartition(":")
            lines[at] = f"{head}{colon}{rng.choice(VALUES)}}}\n"
        elif kind == 5:
            name, op = rng.choice("abcd"), rng.choice(["attach", "detach"])
            lines.insert(at, f'{{"in":"{name}","op":"{op}","from":{rng.randint(0, 400)}}}\n')
        elif kind == 6:
            lines[at] = lines[at].replace('"in":"a"', '"in":"b"')
        else:
            i = rng.randrange(len(lines[at]))
            lines[at] = lines[at][:i] + chr(rng.randrange(256)) + lines[at][i + 1 :]
    return "".join(lines).encode("latin-1")


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_mutations_of_valid_input_never_end_in_a_traceback(restriction: str) -> None:
    for seed in range(24):
        rng = random.Random(f"{restriction} {seed}")
        text = run("gen", "--elements", "60", "--live", "6", "--stable-freq", "0.1",
                   "--infinite", "0.1", "--payload-size", "1", "--lag", str(seed),
                   "--restriction", restriction, "--seed", str(seed)).out  # fmt: skip
        options = ["--restriction", restriction]
        options += rng.choice([[], ["--trace"]])
        options += rng.choice([[], ["--strict"], ["--allow-gaps"], ["--feedback"]])
        options += ["--divergence", rng.choice(["report", "quarantine", "majority"])]
        if restriction in ("R3", "R4"):
            policies = ["first", "leader", "half_frozen", "final", "quorum(0.6)"]
            options += ["--insert-policy", rng.choice(policies)]
            options += ["--adjust-policy", rng.choice(["lazy", "eager"])]
            options += ["--stable-lag", rng.choice(["0", "0", "5"])]
        judge(mutated(text, rng), *options)


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_bytes_never_end_in_a_traceback(text: bytes) -> None:
    judge(text)


SMALL = st.integers(-2, 6)
ENDS = st.one_of(st.just("null"), SMALL.map(str))


@st.composite
def arrival(draw: st.DrawFn) -> str:
    """A line that is well formed; whether it makes sense is another question."""
    stream, payload = draw(st.sampled_from("abc")), draw(st.sampled_from(['"p"', '{"q":[1]}']))
    vs, end, old = draw(SMALL), draw(ENDS), draw(ENDS)
    return draw(
        st.sampled_from(
            [
                f'{{"in":"{stream}","op":"insert","vs":{vs},"ve":{end},"payload":{payload}}}',
                f'{{"in":"{stream}","op":"insert","vs":{vs},"ve":{vs + 3},"payload":{payload}}}',
                f'{{"in":"{stream}","op":"adjust","vs":{vs},"vold":{old},"ve":{end},'
                f'"payload":{payload}}}',
                f'{{"in":"{stream}","op":"stable","vc":{end}}}',
                f'{{"in":"{stream}","op":"attach","from":{vs}}}',
                f'{{"in":"{stream}","op":"detach"}}',
            ]
        )
    )


@given(
    st.lists(arrival(), max_size=25),
    st.sampled_from(RESTRICTIONS),
    st.lists(st.sampled_from(["--trace", "--allow-gaps", "--feedback", "--strict"]), unique=True),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nonsense_in_good_form_never_ends_in_a_traceback(
    lines: list[str], restriction: str, options: list[str]
) -> None:
    judge("\n".join(lines).encode(), "--restriction", restriction, *options)


@pytest.mark.parametrize("extension", ["parquet", "arrow"])
def test_damaged_tables_never_end_in_a_traceback(tmp_path: Path, extension: str) -> None:
    whole, damaged = tmp_path / f"w.{extension}", tmp_path / f"d.{extension}"
    run("gen", "--elements", "40", "--live", "5", "--payload-size", "1", "-o", str(whole))
    data = whole.read_bytes()
    rng = random.Random(extension)
    for _ in range(60):
        at, size = rng.randrange(len(data)), rng.randint(1, 4)
        damaged.write_bytes(data[:at] + rng.randbytes(size) + data[at + size :])
        for command in ("merge", "tdb", "check"):
            result = well_behaved(run(command, str(damaged)), damaged.read_bytes(), command)
            if command == "merge":
                reconstituted(result.out)
