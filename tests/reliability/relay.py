"""TCP relays between actors and a learner that can stall or reset all connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from seedcli.net.addresses import machine_id

_RETRY_SECONDS = 0.2
_CHUNK = 65536
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST and drops unsent data

Address = tuple[str, int]


class Network:
    """The thread and event loop of all relays of a test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the thread; returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        """End the thread and every relay."""

        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.call(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


class Relay:
    """A local port that forwards to the learner, like a tunnel or a service's address.

    A connection is accepted at once and held until there is a learner, so that an absent learner looks like a stalled
    network, not like a refused connection.

    Args:
        network: in which it runs.
        learner: returns the learner's current address; None: there is none.
        folder: created, with an `address.json` that leads actors to this port.
        transport: "grpc" or "zmq".
    """

    def __init__(self, network: Network, learner: Callable[[], Address | None], folder: Path, transport: str) -> None:
        self._network = network
        self._learner = learner
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server = network.call(self._serve())
        port = self._server.sockets[0].getsockname()[1]
        folder.mkdir(parents=True)
        found = {"hosts": ["127.0.0.1"], "everywhere": False, "machine": machine_id(), transport: port}
        (folder / "address.json").write_text(json.dumps(found))

    def stall(self) -> None:
        """Stop forwarding, without closing connections."""
        self._network.call(self._set(False))

    def flow(self) -> None:
        """Forward again, including data received meanwhile."""
        self._network.call(self._set(True))

    def reset(self) -> int:
        """Reset every connection with an RST to both ends; returns the number of ends."""
        ends: int = self._network.call(self._reset())
        return ends

    async def _serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._relay, "127.0.0.1", 0)

    async def _set(self, flowing: bool) -> None:
        (self._flowing.set if flowing else self._flowing.clear)()

    async def _reset(self) -> int:
        for writer in self._writers:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        return len(self._writers)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        onward: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                while onward is None:
                    if writer.is_closing():
                        return
                    await self._flowing.wait()
                    if (address := self._learner()) is not None:
                        with contextlib.suppress(OSError):
                            back, onward = await asyncio.open_connection(*address)
                    if onward is None:
                        await asyncio.sleep(_RETRY_SECONDS)
                self._writers.add(onward)
                pumps = [asyncio.create_task(self._pump(*ends)) for ends in ((reader, onward), (back, writer))]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
            finally:
                for end in (writer, onward):
                    if end is not None:
                        self._writers.discard(end)
                        end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
            await self._flowing.wait()  # a stalled relay does not forward the end of a connection either
