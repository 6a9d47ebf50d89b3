"""Exact assignment on a sparse weight matrix, without scipy, which serving does not require."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt


def assign(weights: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The pairs with the largest total weight; each row and each column is in at most one pair.

    weights: (N, M), finite; pairs with a weight of 0 or less are not allowed. Returns the rows, ascending, and the
    columns, each (K,) int64.

    Method: the Hungarian method for maximum weight matching (Kuhn 1955) with Dijkstra's shortest augmenting paths
    over the positive weights (Edmonds and Karp 1972). Rows whose best column is free are assigned first; in tracking
    these are nearly all, so few paths are searched.
    """
    if not weights.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    best = weights.argmax(axis=1)
    top = weights[np.arange(len(weights)), best]
    matching = _Matching(weights, np.maximum(top, 0.0).tolist())
    columns = best.tolist()
    unassigned = []
    for row in np.argsort(-top, kind="stable").tolist():
        if top[row] <= 0.0:
            break
        if columns[row] in matching.row_of:
            unassigned.append(row)
        else:
            matching.pair(row, columns[row])
    for row in unassigned:
        matching.augment(row)
    rows = sorted(matching.column_of)
    return np.array(rows, np.int64), np.array([matching.column_of[row] for row in rows], np.int64)


class _Matching:
    """A matching and its dual variables, which prove that it is optimal for the rows added so far.

    Invariants: ``row_price[i] + column_price[j] >= weights[i, j]``, with equality for pairs; both prices are at least
    0, and 0 for every row and column without a pair (except rows that were not added yet).
    """

    def __init__(self, weights: npt.NDArray[np.floating], row_price: list[float]) -> None:
        self._weights = weights
        self._row_price = row_price
        self._column_price = [0.0] * weights.shape[1]
        self._edges: dict[int, list[tuple[int, float]]] = {}
        self.column_of: dict[int, int] = {}
        self.row_of: dict[int, int] = {}

    def pair(self, row: int, column: int) -> None:
        self.column_of[row], self.row_of[column] = column, row

    def augment(self, start: int) -> None:
        """Add a row: change pairs along the shortest path from it to a free column, or to a row that loses its pair.

        The length of a path is the total weight lost, compared with the prices.
        """
        distance = {start: 0.0}  # of rows in the tree
        reached: dict[int, float] = {}  # distance of columns in the tree
        parent: dict[int, int] = {}
        tentative: dict[int, float] = {}
        heap: list[tuple[float, int]] = []
        # The cheapest end found so far: the free column last_column or, if that is -1, last_row, which loses its pair.
        length, last_row, last_column = self._row_price[start], start, -1
        row, row_distance = start, 0.0
        while True:
            price = self._row_price[row]
            if row_distance + price < length:
                length, last_row = row_distance + price, row
            for column, weight in self._edges_of(row):
                step = row_distance + price + self._column_price[column] - weight
                if column not in reached and step < length and step < tentative.get(column, length):
                    tentative[column], parent[column] = step, row
                    heapq.heappush(heap, (step, column))
            while heap and heap[0][1] in reached:
                heapq.heappop(heap)
            if not heap or heap[0][0] >= length:
                break
            row_distance, column = heapq.heappop(heap)
            reached[column] = row_distance
            if column not in self.row_of:
                length, last_column = row_distance, column
                break
            row = self.row_of[column]
            distance[row] = row_distance
        for each, value in distance.items():
            self._row_price[each] -= max(length - value, 0.0)
        for each, value in reached.items():
            self._column_price[each] += max(length - value, 0.0)
        if last_column < 0:
            if last_row == start:
                return
            last_column = self.column_of.pop(last_row)
        column = last_column
        while True:
            row = parent[column]
            following = self.column_of.get(row, -1)
            self.pair(row, column)
            if row == start:
                return
            column = following

    def _edges_of(self, row: int) -> list[tuple[int, float]]:
        if row not in self._edges:
            columns = np.flatnonzero(self._weights[row] > 0.0)
            self._edges[row] = list(zip(columns.tolist(), self._weights[row, columns].tolist(), strict=True))
        return self._edges[row]
