"""Decide how much of what clients ask is kept at a time: whose calls wait, and which of them has to go.

A request is counted from its first byte until it is answered, as large as it is when it is unpacked. What a connection asks
beyond its share waits as it came, packed, and its window is not given back until some of its calls have ended: clients know
how to wait for a window, and whatever else they say is still heard. Nobody waits for another's calls alone: a connection of
which nothing runs may run one call. Where all together take too much, the connection that has most loses what does not run.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.broker.calls import Call
    from ister.broker.http2.connection import Connection

CONNECTION_BYTES_MAX: Final = 128 * 1024 * 1024
"""What the requests of one connection may take before some wait; the largest message that can be allowed fits twice. Of those
that do not run it may have twice that, because a client may send many at a time, of which none is complete for long."""
SERVER_BYTES_MAX: Final = 256 * 1024 * 1024
"""What all requests may take before each connection has to do with one message at a time; at twice that, some must go."""
SMALL_BYTES_MAX: Final = 64 * 1024
"""What a connection may ask even then."""


class Share:
    """What the requests of one connection take."""

    __slots__ = ("bytes", "connection", "peer", "pending", "pending_bytes", "waiting")

    def __init__(self, connection: Connection, peer: str) -> None:
        self.connection = connection
        self.peer = peer
        self.bytes = 0
        self.pending: dict[Call, None] = {}
        """Calls that do not run, the oldest first: what is not complete, what waits, and what is not read of an exchange."""
        self.pending_bytes = 0
        self.waiting: deque[Call] = deque()
        """Those of them that are complete; some may be over already."""


class Room:
    """What the requests of all connections take."""

    def __init__(self, message_bytes_max: int) -> None:
        self.bytes = 0
        self.shares: set[Share] = set()
        """Of every connection that is there."""
        self.stalled: dict[Share, None] = {}
        """Of those that are held back."""
        self._message_bytes_max = message_bytes_max

    # --- counting -----------------------------------------------------------------------------------------------------

    def admit(self, call: Call, size: int) -> bool:
        """Count a request that came in one piece, and tell whether it can be run without another thought."""
        share = call.share
        call.size = size
        share.bytes += size
        self.bytes += size
        return share.bytes <= CONNECTION_BYTES_MAX and self.bytes <= SERVER_BYTES_MAX and not share.waiting

    def gather(self, call: Call, size: int) -> None:
        """Count a part of a request."""
        share = call.share
        share.pending[call] = None
        share.pending_bytes += size
        call.size += size
        share.bytes += size
        self.bytes += size

    def scatter(self, call: Call, size: int) -> None:
        """Let go of a part that was read."""
        share = call.share
        size = min(size, call.size)  # all of it may have been let go of before
        call.size -= size
        share.pending_bytes -= size
        self._let_go(share, size)
        if not call.size:
            share.pending.pop(call, None)

    def grow(self, call: Call, size: int) -> None:
        """Count what a call that runs takes more, now that it is unpacked."""
        call.size += size
        call.share.bytes += size
        self.bytes += size

    def wait(self, call: Call) -> None:
        """Have a request that is complete wait for its turn."""
        share = call.share
        if call not in share.pending:
            share.pending[call] = None
            share.pending_bytes += call.size
        share.waiting.append(call)

    def release(self, call: Call) -> None:
        """Let go of all that was counted of a call."""
        size, call.size = call.size, 0
        share = call.share
        if share.pending and call in share.pending:
            del share.pending[call]
            share.pending_bytes -= size
        self._let_go(share, size)

    def _let_go(self, share: Share, size: int) -> None:
        share.bytes -= size
        self.bytes -= size

    def lend(self, call: Call) -> Callable[[], None]:
        """Have what was counted of a call outlast it; return what lets go of it."""
        size, call.size = call.size, 0
        share = call.share

        def give_back() -> None:
            self._let_go(share, size)

        return give_back

    # --- deciding -----------------------------------------------------------------------------------------------------

    def next_of(self, share: Share) -> Call | None:
        """Return the next call of a connection that has waited long enough; it counts as running from now on."""
        while share.waiting:
            call = share.waiting[0]
            if call in share.pending:
                if not self._may_run(call, share.bytes - share.pending_bytes):
                    return None
                del share.pending[call]
                share.pending_bytes -= call.size
                share.waiting.popleft()
                return call
            share.waiting.popleft()  # it did not wait
        return None

    def _may_run(self, call: Call, running: int) -> bool:
        size = call.method.limit if call.body and call.body[0] else call.size  # packed: it may become that large
        if self.bytes > 2 * SERVER_BYTES_MAX:
            return running + size <= SMALL_BYTES_MAX
        most = CONNECTION_BYTES_MAX if self.bytes <= SERVER_BYTES_MAX else self._message_bytes_max
        return not running or running + size <= most

    def excess(self, share: Share) -> Call | None:
        """Return a call that has to go, if one has to: of the connection with most that does not run, or of this one."""
        if self.bytes > 2 * SERVER_BYTES_MAX:
            most = max(self.shares, key=lambda one: one.pending_bytes, default=share)
            if most.pending:
                return max(most.pending, key=lambda call: call.size)
        if share.pending_bytes > 2 * CONNECTION_BYTES_MAX:
            return next(reversed(share.pending))  # the newest, so that the others can be completed
        return None

    def settle(self, share: Share) -> None:
        """Hold a connection back that has too much, and let it go on when it has not, or when nothing of it would end."""
        if share.bytes > share.pending_bytes and (share.waiting or share.bytes > CONNECTION_BYTES_MAX):
            share.connection.held_back = True
            self.stalled[share] = None
        elif share in self.stalled:
            del self.stalled[share]
            share.connection.let_go_on()

    def forget(self, share: Share) -> None:
        """Forget a connection that has gone; what still runs for it is counted until it ends."""
        self.shares.discard(share)
        self.stalled.pop(share, None)
