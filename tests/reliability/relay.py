"""A network of one's own: TCP relays that can fall silent or break every connection, between actors and a learner."""

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
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST and throws away what waits

Address = tuple[str, int]


class Network:
    """The thread that all relays of a test run in."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something in the thread, and return what it gives."""
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
    """A port on this machine behind which the learner is, as a forwarded port or a service's address would be.

    A connection is accepted at once and held until there is a learner, so that an absent learner looks like a silent
    network and not like one that sends people away.

    Args:
        network: where it runs.
        learner: gives the learner's address at the moment; None: there is none.
        folder: made, with an `address.json` that leads actors here as that of a run leads them to its learner.
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
        """Let nothing through from now on, and tell nobody."""
        self._network.call(self._set(False))

    def flow(self) -> None:
        """Let everything through again, what has waited too."""
        self._network.call(self._set(True))

    def reset(self) -> int:
        """Break every connection, with an RST to both ends; returns how many ends."""
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
            await self._flowing.wait()  # the end of a connection is not heard of either
