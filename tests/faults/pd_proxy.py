#!/usr/bin/env python3
"""Stands between a gateway and its workers and breaks their streams to a plan, frame by frame.

usage: pd_proxy.py --faults FILE --seed N WORKER_SOCKET=OWN_SOCKET...

The plan's lines are `FAULT CHANCE MS`, as those of faulty_transport.h (who does not know these):
  frame.delay  a frame comes up to MS later, and so do all after it
  frame.cut    the connection ends in the middle of a frame
  frame.lost   the frame and all after it are lost; the connection ends up to MS later
A single frame is never lost: under a stream of bytes that can't happen.
"""
import argparse
import asyncio
import random
import signal
import struct


class Proxy:
    def __init__(self, faults, seed):
        self.faults, self.rng = faults, random.Random(seed)
        self.rows = {}

    async def refresh(self):
        while True:
            try:
                with open(self.faults) as file:
                    rows = [line.split() for line in file]
                self.rows = {row[0]: (int(row[1]), int(row[2])) for row in rows}
            except OSError:
                pass
            await asyncio.sleep(0.1)

    def strikes(self, fault):
        chance, _ = self.rows.get(fault, (0, 0))
        return self.rng.randrange(1_000_000) < chance

    def delay(self, fault):
        return self.rng.randrange(self.rows[fault][1] + 1) / 1000 if fault in self.rows else 0

    async def pass_on(self, reader, writer):
        """Frames of one direction, until a fault or an end ends it."""
        while True:
            head = await reader.readexactly(4)
            frame = head + await reader.readexactly(struct.unpack("<I", head)[0])
            if self.strikes("frame.lost"):
                await asyncio.sleep(self.delay("frame.lost"))
                return
            if self.strikes("frame.delay"):
                await asyncio.sleep(self.delay("frame.delay"))
            if self.strikes("frame.cut"):
                writer.write(frame[:self.rng.randrange(1, len(frame))])
                return
            writer.write(frame)
            await writer.drain()

    async def serve(self, worker, reader, writer):
        ends = [writer]
        try:
            worker_reader, worker_writer = await asyncio.open_unix_connection(worker)
            ends.append(worker_writer)
            ways = [asyncio.ensure_future(self.pass_on(reader, worker_writer)),
                    asyncio.ensure_future(self.pass_on(worker_reader, writer))]
            _, others = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in others:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in ends:
                end.close()


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("sockets", nargs="+")
    options = parser.parse_args()
    proxy = Proxy(options.faults, options.seed)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    servers = []
    for pair in options.sockets:
        worker, own = pair.split("=")
        servers.append(await asyncio.start_unix_server(
            lambda r, w, worker=worker: proxy.serve(worker, r, w), own))
    refreshing = asyncio.ensure_future(proxy.refresh())
    await stop.wait()
    refreshing.cancel()


asyncio.run(main())
