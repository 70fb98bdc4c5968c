"""Golden transcripts: what comes in, line by line, and everything that goes out because of it.

A transcript is text. A line that is not indented is an arrival, and the indented lines after it
are all that it causes, in order; an arrival without any causes nothing. ``∞`` is infinity.

    a: insert A [6, 20)            a: adjust A [6, 20 -> 30)     a: stable 11
    c: attach from 40              c: attach                     b: detach
    b: quarantine because          allow gap
        insert A [6, 20)               gap [10, 20)
        feedback b before 16           notice: quarantined b: a stable going back

A notice may leave out the end of its text. A stream that sends before it attaches is attached
from the beginning. Transcripts marked ``cli`` run through ``lmerge merge --trace`` as well.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmerge.cli.main import main
from lmerge.core.merge import Merge
from lmerge.core.output import Output
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
from lmerge.core.properties import StreamProperties
from lmerge.times import BEGINNING, INFINITY
from tests.drive import from_output, new_merge, to_batch
from tests.oracle.tdb import Reconstitution

FOLDER = Path(__file__).parent / "transcripts"
TIME = r"(-?\d+|-?∞)"
INSERT = re.compile(rf"insert (\S+) \[{TIME}, {TIME}\)")
ADJUST = re.compile(rf"adjust (\S+) \[{TIME}, {TIME} -> {TIME}\)")
STABLE = re.compile(rf"stable {TIME}")
ATTACH = re.compile(rf"attach(?: from {TIME})?")
QUARANTINE = re.compile(r"quarantine (.+)")
SKIPPED = re.compile(r"skipped before (\S+)")


@dataclass
class Transcript:
    """One story. ``statistics`` are checked at its end, by stream."""

    name: str
    transcript: str
    restriction: str = "R3"
    insert: str = "first"
    adjust: str = "lazy"
    lag: int = 0
    divergence: str = "report"
    feedback: bool = False
    insert_only: list[str] = field(default_factory=list)
    statistics: dict[str, dict[str, Any]] = field(default_factory=dict)
    cli: bool = False

    @property
    def policy(self) -> Policy:
        return Policy(
            InsertPolicy.parse(self.insert),
            AdjustPolicy(self.adjust),
            self.lag,
            DivergencePolicy(self.divergence),
        )

    def steps(self) -> list[tuple[str, list[str]]]:
        """Each arrival with what it must cause."""
        result: list[tuple[str, list[str]]] = []
        for line in self.transcript.splitlines():
            text = line.split("#")[0].rstrip()
            if text.startswith(" "):
                result[-1][1].append(text.strip())
            elif text:
                result.append((text, []))
        return result


def _load() -> dict[str, Transcript]:
    found: dict[str, Transcript] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        for entry in yaml.safe_load(path.read_text("utf-8")):
            transcript = Transcript(**entry)
            assert transcript.name not in found, transcript.name
            found[f"{path.stem}: {transcript.name}"] = transcript
    return found


TRANSCRIPTS = _load()


def _time(text: str) -> float:
    return float(text.replace("∞", "inf")) if "∞" in text else int(text)


def _show(t: float) -> str:
    if t in (float("inf"), INFINITY):
        return "∞"
    return "-∞" if t in (float("-inf"), BEGINNING) else str(t)


def _element(text: str) -> tuple[Any, ...] | None:
    """The element that a line stands for, if it is one."""
    if match := INSERT.fullmatch(text):
        p, vs, ve = match.groups()
        return ("insert", p, _time(vs), _time(ve))
    if match := ADJUST.fullmatch(text):
        p, vs, vold, ve = match.groups()
        return ("adjust", p, _time(vs), _time(vold), _time(ve))
    if match := STABLE.fullmatch(text):
        return ("stable", _time(match.group(1)))
    return None


def _line(element: tuple[Any, ...]) -> str:
    """The inverse of :func:`_element`, and gaps."""
    kind, *rest = element
    if kind == "stable":
        return f"stable {_show(rest[0])}"
    if kind == "gap":
        return f"gap [{_show(rest[0])}, {_show(rest[1])})"
    p, vs, *ends = rest
    return f"{kind} {p} [{_show(vs)}, {' -> '.join(_show(end) for end in ends)})"


# -- the core, arrival by arrival


def _arrive(merge: Merge, transcript: Transcript, text: str) -> list[Output]:
    if text == "allow gap":
        return [merge.allow_gap()]
    stream, _, what = text.partition(": ")
    properties = None
    if stream in transcript.insert_only:
        properties = StreamProperties(insert_only=True, keyed=True)
    if match := ATTACH.fullmatch(what):
        since = match.group(1)
        return [merge.attach(stream, None if since is None else int(_time(since)), properties)]
    if what == "detach":
        return [merge.detach(stream)]
    if match := SKIPPED.fullmatch(what):
        merge.skipped(stream, int(_time(match.group(1))))
        return []
    if match := QUARANTINE.fullmatch(what):
        return [merge.quarantine(stream, match.group(1))]
    element = _element(what)
    assert element is not None, f"cannot read {text!r}"
    before = [] if stream in merge.streams() else [merge.attach(stream, None, properties)]
    return [*before, merge.apply(stream, to_batch([element]))]


def _told(output: Output) -> list[str]:
    lines = [_line(element) for element in from_output(output)]
    lines += [f"feedback {f.stream} before {_show(f.before)}" for f in output.feedback]
    for notice in output.notices:
        who = "" if notice.stream is None else f" {notice.stream}"
        reason = notice.text.split(" is quarantined: ")[-1]
        lines.append(f"notice: {notice.kind.value}{who}: {reason}")
    return lines


def _same(expected: str, found: str) -> bool:
    return found == expected or (expected.startswith("notice: ") and found.startswith(expected))


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_the_core_answers_each_arrival_as_the_transcript_says(name: str) -> None:
    transcript = TRANSCRIPTS[name]
    merge = new_merge(transcript.restriction, transcript.policy, feedback=transcript.feedback)
    output = Reconstitution(transcript.restriction)
    for number, (text, expected) in enumerate(transcript.steps(), 1):
        outputs = _arrive(merge, transcript, text)
        found = [line for each in outputs for line in _told(each)]
        where = f"{name}, step {number}: {text}"
        agree = len(found) == len(expected) and all(map(_same, expected, found))
        assert agree, "\n".join([where, "expected:", *expected, "found:", *found])
        for line in found:
            if (element := _element(line)) is not None:
                output.apply(element)
        merge.check()
    statistics = {s.name: asdict(s) for s in merge.statistics().streams}
    for stream, wanted in transcript.statistics.items():
        assert {key: statistics[stream][key] for key in wanted} == wanted, f"{name}: {stream}"


# -- the command line, with --trace


def _json(text: str) -> dict[str, Any]:
    stream, _, what = text.partition(": ")
    if match := ATTACH.fullmatch(what):
        since = match.group(1)
        return {"in": stream, "op": "attach"} | ({} if since is None else {"from": int(since)})
    if what == "detach":
        return {"in": stream, "op": "detach"}
    element = _element(what)
    assert element is not None, f"not for the command line: {text!r}"
    times = [None if t == float("inf") else t for t in element[2:]]
    if element[0] == "stable":
        vc = None if element[1] == float("inf") else element[1]
        return {"in": stream, "op": "stable", "vc": vc}
    names = ("vs", "ve") if element[0] == "insert" else ("vs", "vold", "ve")
    head = {"in": stream, "op": element[0], **dict(zip(names, times, strict=True))}
    return {**head, "payload": element[1]}


def _from_json(line: dict[str, Any]) -> str:
    def time(name: str) -> float:
        return float("inf") if line[name] is None else line[name]

    if line["op"] == "feedback":
        return f"feedback {line['to']} before {_show(time('before'))}"
    if line["op"] == "stable":
        return _line(("stable", time("vc")))
    ends = [time(name) for name in ("vold", "ve") if name in line]
    return _line((line["op"], line["payload"], line["vs"], *ends))


@pytest.mark.parametrize("name", [name for name, t in TRANSCRIPTS.items() if t.cli])
def test_the_command_line_traces_what_the_transcript_says(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transcript = TRANSCRIPTS[name]
    steps = transcript.steps()
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f"{json.dumps(_json(text))}\n" for text, _ in steps), "utf-8")
    options = [
        "merge", "--trace", "--restriction", transcript.restriction,
        "--insert-policy", transcript.insert, "--adjust-policy", transcript.adjust,
        "--stable-lag", str(transcript.lag), "--divergence", transcript.divergence,
        *(["--feedback"] if transcript.feedback else []), str(source),
    ]  # fmt: skip
    assert main(options) == 0
    printed = capsys.readouterr()
    found: dict[int, list[str]] = {}
    for line in map(json.loads, printed.out.splitlines()):
        found.setdefault(line["at"], []).append(_from_json(line))
    for number, (text, expected) in enumerate(steps, 1):
        elements = [line for line in expected if not line.startswith("notice: ")]
        assert found.get(number, []) == elements, f"{name}, line {number}: {text}"
        for notice in set(expected) - set(elements):
            said = notice.split(": ", 2)[-1] if notice.count(": ") > 1 else ""
            lines = [line for line in printed.err.splitlines() if f"in.jsonl:{number}: " in line]
            assert any(said in line for line in lines), f"{name}, line {number}: {printed.err}"
