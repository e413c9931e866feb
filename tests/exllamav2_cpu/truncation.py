"""The truncating samplers of the extension over the candidates of one sequence.

After `exllamav2_ext/cpp/sampling.cpp`: the same rules in the same order over the same two arrays,
because the order in which candidates lie decides which one a random number picks. What looks wrong
here is wrong there, and is named where it happens.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SMALLEST_SORTED = 1e-8
SMALLEST_TOP_P = 1e-6


@dataclass
class Candidates:
    """Probabilities (float32) and token ids; only the first `count` are in the running.

    What lies behind them is what a sampler before dropped. The arrays are one longer than the
    vocabulary, because `keep` and `xtc` look one too far.
    """

    probs: NDArray[np.float32]
    ids: NDArray[np.int64]
    count: int

    def replace(self, probs: NDArray[np.float32], ids: NDArray[np.int64]) -> None:
        """Put these first and let nothing else run."""
        self.count = len(probs)
        self.probs[: self.count] = probs
        self.ids[: self.count] = ids

    def swap(self, a: NDArray[np.int64] | int, b: NDArray[np.int64] | int) -> None:
        for values in (self.probs, self.ids):
            values[a], values[b] = values[b].copy(), values[a].copy()

    def normalize(self) -> None:
        running = self.probs[: self.count]
        running *= np.float32(1) / running.sum()

    def keep(self, threshold: float) -> None:
        """Those at or above the threshold, swapped to the front from both ends.

        Where the two ends meet behind a kept candidate, the loop goes one step too far: the one
        after it is kept as well, before it, whatever its probability.
        """
        good = self.probs[: self.count] >= np.float32(threshold)
        kept = int(good.sum())
        left = np.flatnonzero(~good[:kept])
        right = np.flatnonzero(good[kept:])[::-1] + kept
        self.swap(left, right)
        met = right[-1] == kept and left[-1] < kept - 1 if len(left) else kept == self.count > 0
        if met:
            self.swap(kept, kept - 1)
            kept += 1
        self.count = kept

    def drop_tiny(self) -> int:
        """Swap those under 1e-8 to the end of the running ones, and count the others."""
        good = self.probs[: self.count] >= np.float32(SMALLEST_SORTED)
        kept = int(good.sum())
        self.swap(np.flatnonzero(~good[:kept]), np.flatnonzero(good[kept:])[::-1] + kept)
        return kept

    def sort(self) -> int:
        """Most probable first; the number of those that are not tiny."""
        kept = self.drop_tiny()
        order = np.argsort(-self.probs[:kept], kind="stable")
        self.probs[:kept] = self.probs[:kept][order]
        self.ids[:kept] = self.ids[:kept][order]
        return kept

    # ---------------------------------------------------------------------------------------------

    def top_k(self, k: int, likeliest: int) -> None:
        """The `k` most probable of all tokens, most probable first.

        Of equals at the border the heap keeps the last ones it met before it was full of them.
        """
        if k == 1:
            self.swap(0, likeliest)
            self.count = 1
            return
        probs = self.probs[: self.count]
        border = np.partition(probs, -k)[-k]
        met = np.flatnonzero(probs >= border)[:k]
        above = np.flatnonzero(probs > border)
        equal = met[probs[met] == border]
        chosen = np.concatenate((above, equal[len(equal) - (k - len(above)) :]))
        # Pairs of probability and id, the larger first.
        chosen = chosen[np.lexsort((-self.ids[chosen], -probs[chosen]))]
        self.replace(probs[chosen], self.ids[chosen])

    def top_p(self, p: float) -> None:
        """The largest whose sum stays within `p`, at least one.

        Where most definitions keep the token that crosses `p`, this does not; and a token that is
        met after a larger one was dropped may fill the gap.
        """
        heap: list[tuple[float, int]] = []
        total = 0.0
        running = np.flatnonzero(self.probs[: self.count] >= np.float32(SMALLEST_TOP_P))
        for prob, token in zip(
            self.probs[running].tolist(), self.ids[running].tolist(), strict=True
        ):
            if total > p and prob < heap[0][0]:
                continue
            heapq.heappush(heap, (prob, token))
            total += prob
            while total > p and len(heap) > 1:
                total -= heapq.heappop(heap)[0]
        heap.sort(reverse=True)
        self.replace(
            np.array([prob for prob, _ in heap], np.float32), np.array([token for _, token in heap])
        )

    def top_a(self, a: float) -> None:
        top = self.probs[: self.count].max()
        self.keep(np.float32(a) * top * top)

    def min_p(self, p: float) -> None:
        self.keep(self.probs[: self.count].max() * np.float32(p))

    def tail_free(self, z: float) -> None:
        if self.count < 3:
            return
        kept = self.sort()
        probs = self.probs[:kept]
        bends = np.abs(-probs[:-2] + 2 * probs[1:-1] - probs[2:])
        self.count = 1 + int((np.cumsum(bends / bends.sum()) <= np.float32(z)).sum())

    def typical(self, mass: float) -> None:
        """Those nearest to the expected surprise, without the one that reaches `mass`.

        Log probabilities are written `x + log x` there.
        """
        kept = self.drop_tiny()
        probs, ids = self.probs[:kept].copy(), self.ids[:kept].copy()
        surprise = probs + np.log(probs + np.float32(1e-10))
        order = np.argsort(np.abs(surprise - (probs * surprise).sum()), kind="stable")
        below = int((np.cumsum(probs[order]) < np.float32(mass)).sum())
        self.replace(probs[order], ids[order])
        self.count = max(below, 1)

    def mirostat(self, mu: float) -> None:
        kept = self.sort()
        above = self.probs[1:kept] >= np.float32(2.0**-mu)
        self.count = 1 + (int(np.argmin(above)) if not above.all() else len(above))

    def temperature(
        self, temperature: float, lowest: float, highest: float, exponent: float
    ) -> None:
        """Sharpen or flatten; by the entropy's share of its maximum where a range is given."""
        probs = self.probs[: self.count]
        if highest > lowest:
            some = probs[probs > 0]
            entropy = -(some * np.log(some)).sum() / (np.log(np.float32(self.count)) or 1)
            temperature = lowest + (highest - lowest) * float(entropy) ** exponent
        probs **= np.float32(1 / temperature)
        self.normalize()

    def xtc(self, mask: NDArray[np.bool_], probability: float, threshold: float) -> None:
        """Scale those over the threshold by `1 - probability`, all but the least of them.

        Which one is the least is told by the next candidate's probability, so that it holds only
        for sorted candidates (after top-k, top-p and others); among unsorted ones, tokens before
        a likely one are scaled instead.
        """
        probs, allowed = self.probs[: self.count], mask[self.ids[: self.count]]
        over = allowed & (probs >= np.float32(threshold))
        if over.sum() <= 1:
            return
        mass = probs[over].sum() - probs[over].min()
        following = self.probs[1 : self.count + 1] >= np.float32(threshold)
        grown = np.float32(1 + probability * mass / (1 - mass))
        probs *= np.where(allowed & following, np.float32(1 - probability), grown)

    def pick(self, point: float) -> None:
        """Swap the candidate where the summed probabilities reach `point` to the front."""
        sums = np.cumsum(self.probs[: self.count], dtype=np.float32)
        index = int(np.searchsorted(sums, np.float32(point)))
        if index == self.count:
            index -= 1
            while index > 0 and self.probs[index] == 0:
                index -= 1
        self.swap(0, index)
