"""The other side of plain.rs: redis-py's Lock, told what to do line by line. Each answer is one line."""

import sys

import redis

client = redis.Redis(port=int(sys.argv[1]))
lock = None
for line in sys.stdin:
    words = line.split()
    try:
        if words[0] == "lock":
            # lock NAME TTL(seconds, 0: none) WAIT(seconds, 0: try)
            name, ttl, wait = words[1], float(words[2]), float(words[3])
            lock = client.lock(name, timeout=ttl or None, sleep=0.001)
            got = lock.acquire(blocking=wait > 0, blocking_timeout=wait or None)
            answer = "got" if got else "held"
        elif words[0] == "enter":
            # What the lock is for: how many are inside, and how often anybody was.
            answer = str(client.incr("inside"))
            client.incr("times")
        elif words[0] == "leave":
            answer = str(client.decr("inside"))
        elif words[0] == "extend":
            lock.extend(float(words[1]), replace_ttl=True)
            answer = "extended"
        elif words[0] == "release":
            lock.release()
            answer = "released"
        else:
            answer = "what?"
    except redis.exceptions.LockError as e:
        answer = type(e).__name__
    print(answer, flush=True)
