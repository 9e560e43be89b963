"""Admission control: bounds the memory of unanswered requests; decides which calls wait and which are shed.

A request is counted from its first byte until its answer, by its decompressed size. Beyond a connection's budget, requests
wait as they came, compressed, and the connection window is withheld until calls end; other frames are still processed. A
connection without a running call may always run one, so none waits for other connections alone. If the total is exceeded,
the connection with the most waiting bytes loses requests.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.transport.call import Call
    from ister.transport.http2.connection import Http2Connection

CONNECTION_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of one connection's requests before some wait: two of the largest messages. Those that do not run may have twice
that, because a client may send many at a time, none of them complete for long."""
SERVER_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of all requests before each connection is limited to one message at a time; at twice that, requests are shed."""
SMALL_BYTES_MAX: Final = 64 * 1024
"""Bytes of running requests that each connection may have even then."""


class RequestBudget:
    """The requests of all connections."""

    def __init__(self, message_bytes_max: int) -> None:
        self.bytes = 0
        self.stalled: dict[ConnectionBudget, None] = {}
        """Connections whose window is withheld."""
        self._connections: set[ConnectionBudget] = set()
        self._message_bytes_max = message_bytes_max

    def connect(self, connection: Http2Connection) -> ConnectionBudget:
        """Return the budget of a new connection."""
        budget = ConnectionBudget(self, connection)
        self._connections.add(budget)
        return budget

    def disconnect(self, budget: ConnectionBudget) -> None:
        """Remove a closed connection; what still runs for it is counted until it ends."""
        self._connections.discard(budget)
        self.stalled.pop(budget, None)

    def add(self, size: int) -> int:
        """Count bytes, a negative number to release them; return the total."""
        self.bytes += size
        return self.bytes

    def may_run(self, size: int, running: int) -> bool:
        """Return True if a connection with `running` bytes in execution may run a waiting request of `size` bytes."""
        if self.bytes > 2 * SERVER_BYTES_MAX:
            return running + size <= SMALL_BYTES_MAX
        most = CONNECTION_BYTES_MAX if self.bytes <= SERVER_BYTES_MAX else self._message_bytes_max
        return not running or running + size <= most

    def find_excess(self, budget: ConnectionBudget) -> Call | None:
        """Return a call to shed, if any: of the connection with the most pending bytes, or of this one."""
        if self.bytes > 2 * SERVER_BYTES_MAX:
            largest = max(self._connections, key=lambda one: one.pending_bytes, default=budget).largest_pending()
            if largest is not None:
                return largest
        return budget.newest_excess()


class ConnectionBudget:
    """The requests of one connection."""

    __slots__ = ("_bytes", "_connection", "_pending", "_sizes", "_total", "_waiting", "pending_bytes")

    def __init__(self, total: RequestBudget, connection: Http2Connection) -> None:
        self.pending_bytes = 0
        self._total = total
        self._connection = connection
        self._bytes = 0
        self._sizes: dict[Call, int] = {}
        self._pending: dict[Call, None] = {}
        """Calls that do not run, oldest first: incomplete and waiting ones, and unread parts of bidirectional streams."""
        self._waiting: deque[Call] = deque()
        """The complete ones of them; some may have ended already."""

    # --- counting -----------------------------------------------------------------------------------------------------

    def admit(self, call: Call, size: int) -> bool:
        """Count a request that came in one piece; return True if it may run at once."""
        self._sizes[call] = size
        self._bytes += size
        total = self._total.add(size)
        return self._bytes <= CONNECTION_BYTES_MAX and total <= SERVER_BYTES_MAX and not self._waiting

    def add_part(self, call: Call, size: int) -> int:
        """Count a part of a pending request; return the request's size."""
        self._pending[call] = None
        self.pending_bytes += size
        self.grow(call, size)
        return self._sizes[call]

    def remove_part(self, call: Call, size: int) -> None:
        """Release a part that was read."""
        present = self._sizes.get(call, 0)
        size = min(size, present)  # all of it may have been released before
        self._sizes[call] = present - size
        self.pending_bytes -= size
        self._free(size)
        if size == present:
            del self._sizes[call]
            self._pending.pop(call, None)

    def grow(self, call: Call, size: int) -> None:
        """Count more bytes of a call, such as those that decompression adds."""
        self._sizes[call] = self._sizes.get(call, 0) + size
        self._bytes += size
        self._total.add(size)

    def wait(self, call: Call) -> None:
        """Queue a complete request."""
        if call not in self._pending:
            self._pending[call] = None
            self.pending_bytes += self._sizes[call]
        self._waiting.append(call)

    def release(self, call: Call) -> None:
        """Release all that is counted for a call."""
        size = self._sizes.pop(call, 0)
        if self._pending and call in self._pending:
            del self._pending[call]
            self.pending_bytes -= size
        self._bytes -= size
        self._total.add(-size)

    def detach(self, call: Call) -> Callable[[], None]:
        """Keep what is counted for a call beyond its end; return the function that releases it."""
        size = self._sizes.pop(call, 0)
        return lambda: self._free(size)

    def _free(self, size: int) -> None:
        self._bytes -= size
        self._total.add(-size)

    # --- decisions ----------------------------------------------------------------------------------------------------

    def next_runnable(self) -> Call | None:
        """Return the next waiting call that may run; it counts as running from now on."""
        while self._waiting:
            call = self._waiting[0]
            if call in self._pending:
                size = self._sizes[call]
                # A compressed request may expand up to the method's limit.
                needed = call.method.limit if call.body and call.body[0] else size
                if not self._total.may_run(needed, self._bytes - self.pending_bytes):
                    return None
                del self._pending[call]
                self.pending_bytes -= size
                self._waiting.popleft()
                return call
            self._waiting.popleft()  # it has ended
        return None

    def waiting(self) -> list[Call]:
        """Return the complete requests that do not run yet."""
        return [call for call in self._waiting if call in self._pending]

    def largest_pending(self) -> Call | None:
        """Return the largest call that does not run."""
        return max(self._pending, key=self._sizes.__getitem__, default=None)

    def newest_excess(self) -> Call | None:
        """Return the newest pending call if the connection exceeds its budget; the older ones can then be completed."""
        return next(reversed(self._pending)) if self.pending_bytes > 2 * CONNECTION_BYTES_MAX else None

    def settle(self) -> None:
        """Withhold the window of a connection over its budget; grant it when under, or when nothing of it would end."""
        if self._bytes > self.pending_bytes and (self._waiting or self._bytes > CONNECTION_BYTES_MAX):
            self._connection.pause_window()
            self._total.stalled[self] = None
        elif self in self._total.stalled:
            del self._total.stalled[self]
            self._connection.resume_window()
