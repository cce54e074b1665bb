"""redis-py at work, at the word of benches/peers: src/worker.rs has what is said."""

import asyncio
import importlib.metadata
import sys
import time

import redis
import redis.asyncio

TTL = 30  # seconds: nothing here lasts as long


def say(word, *numbers):
    print(word, *numbers, flush=True)


def pair(client, millis):
    lock = client.lock("a-name-of-21-bytes-00", timeout=TTL)
    took, until = [], time.perf_counter_ns() + millis * 1_000_000
    while (at := time.perf_counter_ns()) < until:
        lock.acquire()
        lock.release()
        took.append(time.perf_counter_ns() - at)
    say("times", *took)


async def inflight(client, tasks, millis):
    began = time.perf_counter_ns()
    until = began + millis * 1_000_000

    async def task(n):
        lock, done = client.lock(f"inflight-{n:012}", timeout=TTL), 0
        while time.perf_counter_ns() < until:
            await lock.acquire()
            await lock.release()
            done += 1
        return done

    done = await asyncio.gather(*(task(n) for n in range(tasks)))
    say("rate", sum(done) * 1e9 / (time.perf_counter_ns() - began))


async def crowd(clients, tasks, hold_us, think_us, millis):
    """As `crowd` in benches/src/redis/crowd.rs."""
    starts = time.perf_counter_ns() + (200 + tasks) * 1_000_000
    ends = starts + millis * 1_000_000
    gaps, said, held, before = [], set(), 0, None

    def once(word):
        if word not in said:
            said.add(word)
            say(word)

    async def task(n):
        nonlocal held, before
        lock, times = clients[n % len(clients)].lock("a-crowd", timeout=TTL), 0
        while True:
            await lock.acquire()
            now = time.perf_counter_ns()
            other, before = before, None
            if starts <= now < ends:
                once("begin")
                times += 1
                if other is not None and other[0] != n:
                    gaps.append(now - other[1])
            if now >= ends:
                once("end")
                await lock.release()
                return times
            if hold_us:
                await asyncio.sleep(hold_us / 1e6)
            until = time.perf_counter_ns()
            if now >= starts:
                held += until - now
            before = (n, until)
            await lock.release()
            if think_us:
                await asyncio.sleep(think_us / 1e6)

    each = await asyncio.gather(*(task(n) for n in range(tasks)))
    say("each", *each)
    say("gaps", *gaps)
    say("held", held)


def main():
    port = int(sys.argv[1])
    blocking = redis.Redis(port=port)
    clients = []
    loop = asyncio.new_event_loop()
    python = ".".join(map(str, sys.version_info[:3]))
    say("ready", f"redis-py {importlib.metadata.version('redis')} with hiredis, Python {python}")
    for line in sys.stdin:
        what, *numbers = line.split()
        numbers = [int(n) for n in numbers]
        wanted = numbers.pop(0) if what == "crowd" else 1
        while len(clients) < wanted:
            clients.append(redis.asyncio.Redis(port=port))
        if what == "pair":
            pair(blocking, *numbers)
        elif what == "inflight":
            loop.run_until_complete(inflight(clients[0], *numbers))
        else:
            loop.run_until_complete(crowd(clients[:wanted], *numbers))
        say("done")


main()
