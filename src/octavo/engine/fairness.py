"""Who is served next: virtual token counters of tenants, and the order of those who wait.

A tenant's counter rises with the tokens it is given, a prompt's when it starts; the tenant with the lowest is served first
(Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). With one tenant all this comes to: longest stored
prefix first, then age.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Sequence
from typing import Final

from octavo.engine.request import Request

MAX_PASSED_OVER_S: Final = 2.0
"""A request that waited this long goes before all others of its tenant."""

_NUM_COMPARED: Final = 32
"""Waiting requests of a tenant whose stored prefixes are compared: the oldest."""

_NUM_REMEMBERED: Final = 4096
"""Tenants without requests whose counters are kept."""


class TenantCounters:
    """Tokens each tenant was given. A tenant that comes back is lifted to the lowest of those that are here."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, float] = OrderedDict()
        self._num_requests: Counter[str] = Counter()

    def __getitem__(self, tenant: str) -> float:
        """The tokens given to a tenant so far."""
        return self._tokens[tenant]

    def enter(self, tenant: str) -> None:
        """Note that a request of the tenant begins to wait."""
        if not self._num_requests[tenant]:
            lowest = min((self._tokens[t] for t in self._num_requests if t != tenant), default=0.0)
            self._tokens[tenant] = max(self._tokens.get(tenant, 0.0), lowest)
            self._tokens.move_to_end(tenant)
        self._num_requests[tenant] += 1

    def leave(self, tenant: str) -> None:
        """Note that one of its requests ended."""
        self._num_requests[tenant] -= 1
        if not self._num_requests[tenant]:
            del self._num_requests[tenant]
            if len(self._tokens) > len(self._num_requests) + _NUM_REMEMBERED:
                forgotten = next(t for t in self._tokens if t not in self._num_requests)
                del self._tokens[forgotten]

    def charge(self, tenant: str, num_tokens: float) -> None:
        """Add tokens that it was given."""
        self._tokens[tenant] += num_tokens


class WaitingOrder:
    """The order of the waiting requests within one call of the scheduler: priority, tenant's counter, own order.

    A tenant's own order: who waited MAX_PASSED_OVER_S, then the longest stored prefix, then age.
    """

    def __init__(
        self,
        waiting: Sequence[Request],
        counters: TenantCounters,
        match_length: Callable[[Request], int],
        now_s: float,
    ) -> None:
        """`waiting` is sorted by rank. `match_length` gives the tokens stored of a request's beginning."""
        self._by_tenant: dict[str, list[Request]] = {}
        for request in waiting:
            self._by_tenant.setdefault(request.tenant, []).append(request)
        self._counters = counters
        self._match_length = match_length
        self._now_s = now_s
        self._picked: dict[str, Request] = {}

    def key(self, request: Request) -> tuple[int, float]:
        """What comes first is served first, whether it waits or runs."""
        return request.priority, self._counters[request.tenant]

    def first(self) -> Request | None:
        """Who is to be started next."""
        picks = [self._pick(tenant) for tenant in self._by_tenant]
        return min(picks, key=lambda r: (self.key(r), r.rank), default=None)

    def first_of_others(self, tenants: Container[str]) -> Request | None:
        """The same among the tenants that are not among these."""
        picks = [self._pick(tenant) for tenant in self._by_tenant if tenant not in tenants]
        return min(picks, key=lambda r: (self.key(r), r.rank), default=None)

    def drop(self, request: Request) -> None:
        """Look at a request no more in this call."""
        of_tenant = self._by_tenant[request.tenant]
        of_tenant.remove(request)
        if not of_tenant:
            del self._by_tenant[request.tenant]
        self._picked.pop(request.tenant, None)

    def _pick(self, tenant: str) -> Request:
        picked = self._picked.get(tenant)
        if picked is None:
            picked = self._picked[tenant] = self._choose(self._by_tenant[tenant])
        return picked

    def _choose(self, requests: Sequence[Request]) -> Request:
        oldest = requests[0]
        if len(requests) == 1 or self._now_s - oldest.waiting_since_s >= MAX_PASSED_OVER_S:
            return oldest
        compared = [r for r in requests[:_NUM_COMPARED] if r.priority == oldest.priority]
        return max(compared, key=self._match_length)  # of equal ones the first
