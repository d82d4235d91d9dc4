"""A slow network on one machine: a proxy that delays every byte by half a round trip.

Each connection has at most ``window`` bytes in flight, as over a real network: Linux's default
limit on receive memory (6 MiB, of which half is announced) makes one stream slow at high latency.
Opening a connection costs one round trip too.

    python benchmarks/delay.py --to 127.0.0.1:8080 --rtt 0.02
"""

from __future__ import annotations

import argparse
import asyncio
from collections import deque

WINDOW_BYTES = 3 << 20
PIECE_BYTES = 256 << 10


class Line(asyncio.BufferedProtocol):
    """One connection of the proxy; ``peer`` is the connection on the other side."""

    def __init__(self, delay: float, window: int) -> None:
        self.delay, self.window = delay, window
        self.loop = asyncio.get_running_loop()
        self.buffer = bytearray(PIECE_BYTES)
        self.queue: deque[tuple[float, bytes]] = deque()
        self.under_way, self.waiting, self.held = 0, False, False
        self.transport: asyncio.Transport | None = None
        self.peer: Line | None = None
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=1 << 20)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.queue.append((self.loop.time() + self.delay, bytes(memoryview(self.buffer)[:nbytes])))
        self.under_way += nbytes
        if self.under_way >= self.window and self.transport:
            self.transport.pause_reading()
        self.pump()

    def pump(self) -> None:
        """Forward the bytes that have been delayed long enough."""
        if self.waiting or self.peer is None or self.peer.transport is None:
            return
        now = self.loop.time()
        while self.queue and self.queue[0][0] <= now + 0.0002 and not self.peer.held:
            _, data = self.queue.popleft()
            self.peer.transport.write(data)
            self.loop.call_later(self.delay, self.told, len(data))
        if self.queue and not self.peer.held:
            self.waiting = True
            self.loop.call_at(self.queue[0][0], self.again)
        elif self.ended and not self.queue:
            self.peer.transport.close()

    def told(self, count: int) -> None:
        """Handle the acknowledgement of these bytes: free that much of the window."""
        before, self.under_way = self.under_way, self.under_way - count
        if before >= self.window > self.under_way and self.transport:
            self.transport.resume_reading()

    def again(self) -> None:
        self.waiting = False
        self.pump()

    def pause_writing(self) -> None:
        self.held = True

    def resume_writing(self) -> None:
        self.held = False
        if self.peer is not None:
            self.peer.pump()

    def eof_received(self) -> bool:
        self.ended = True
        self.pump()
        return True

    def connection_lost(self, exn: Exception | None) -> None:
        self.ended = True
        self.pump()
        if self.peer is not None and self.peer.transport is not None and not self.queue:
            self.peer.transport.close()


class Arrival(Line):
    """The client's connection; opens the server's one round trip later."""

    def __init__(self, place: tuple[str, int], delay: float, window: int) -> None:
        super().__init__(delay, window)
        self.place = place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.task = self.loop.create_task(self.connect())

    async def connect(self) -> None:
        await asyncio.sleep(2 * self.delay)
        make = lambda: Line(self.delay, self.window)  # noqa: E731
        _, other = await self.loop.create_connection(make, *self.place)
        self.peer, other.peer = other, self
        # The client's bytes waited for the connection; now they are delayed by half a round trip.
        now = self.loop.time() + self.delay
        self.queue = deque((now, data) for _, data in self.queue)
        self.pump()


async def serve(port: int, place: tuple[str, int], rtt: float, window: int) -> None:
    """Listen on loopback forever."""
    loop = asyncio.get_running_loop()
    make = lambda: Arrival(place, rtt / 2, window)  # noqa: E731
    server = await loop.create_server(make, "127.0.0.1", port)
    await server.serve_forever()


def run(port: int, place: tuple[str, int], rtt: float, window: int = WINDOW_BYTES) -> None:
    """Run the proxy until the process ends."""
    asyncio.run(serve(port, place, rtt, window))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--rtt", type=float, default=0.02, help="seconds (default 0.02)")
    parser.add_argument("--window", type=int, default=WINDOW_BYTES, help="bytes per connection")
    chosen = parser.parse_args()
    host, _, number = chosen.to.rpartition(":")
    run(chosen.port, (host, int(number)), chosen.rtt, chosen.window)
