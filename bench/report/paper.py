"""What the LMerge paper reports in its evaluation (§VI), figure by figure, in our words.

Its numbers are of StreamInsight on 8 cores at 2.33 GHz in 2011: what can be compared is the shape.
"""

from __future__ import annotations

from typing import Final

REPORTS: Final[dict[str, str]] = {
    "2": (
        "On ordered inputs LMR0, LMR1 and LMR2 need almost no memory and lie on one line. LMR3+"
        " needs somewhat more, and hardly more for more inputs, since these share the payloads."
        " LMR3-, which keeps an index for every input, needs far more, and linearly more with"
        " every input."
    ),
    "3": (
        "The simpler the variant, the faster it is. Of the two for R3, LMR3+ is much the faster"
        " one, for its data structure and its algorithm."
    ),
    "4": (
        "The adjusts that a sub-query outputs multiply as more of its input is late. A merge that"
        " adjusts only when a stable demands it outputs far fewer, for the intermediate ones need"
        " not be seen."
    ),
    "5": (
        "As one or two of three inputs fall behind, by up to 5 s where events last 40 s, the merge"
        " becomes faster, because it can drop what the laggards bring; more so with two laggards"
        " than with one."
    ),
    "6": (
        "From 0.001 % to 1 % stables, memory falls because state is freed sooner. The throughput"
        " of LMR3+ and LMR4 falls too, because they check compatibility more often; that of the"
        " simpler variants does not change."
    ),
    "7": (
        "Of 50 % disorder and 36 % adjusts: the memory of LMR3+ is almost independent of the"
        " number of inputs. Ordering each input first (C+LMR1) costs linearly more, nearly 7 times"
        " LMR3+ at 10 inputs; LMR3- grows linearly too. LMR3+ is faster than both, the more inputs"
        " the more so. Cleanse holds an event until it is fully frozen, which is orders of"
        " magnitude later than the 120 ms of LMR3+."
    ),
    "8": (
        "Four inputs of 5,000 elements/s with random delays come in bursts. The merged output is"
        " far smoother than any of them, because it follows whichever is best at the moment."
    ),
    "9": (
        "Three inputs of 5,000 elements/s are congested at different times, two of them at once"
        " around second 18: each falls to a low rate, then spikes. The output shows nothing of it."
    ),
    "10": (
        "Two plans of one selection, each dear for the other half of the values, on 200,000"
        " elements whose kind changes 9 times: alone they take 176 s and 163 s, merged about"
        " 163 s, merged with feedback about 34 s, which is nearly 5 times as fast (4.8)."
    ),
}
