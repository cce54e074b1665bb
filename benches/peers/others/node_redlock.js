// node-redlock at work, at the word of benches/peers: src/worker.rs has what is said.
"use strict";

const path = require("node:path");
const readline = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");
const Redis = require("ioredis");
const { default: Redlock } = require("redlock");

const TTL = 30_000; // milliseconds: nothing here lasts as long
const port = Number(process.argv[2]);
const clients = [];

const say = (word, ...numbers) => process.stdout.write([word, ...numbers].join(" ") + "\n");
const nanos = () => Number(process.hrtime.bigint());

// It tries eleven times and gives up, as it comes; a waiter of ours waits.
const client = () => new Redlock([new Redis(port)], { retryCount: -1 });

async function pair(redlock, millis) {
  const took = [];
  const until = nanos() + millis * 1e6;
  for (let at = nanos(); at < until; at = nanos()) {
    const lock = await redlock.acquire(["a-name-of-21-bytes-00"], TTL);
    await lock.release();
    took.push(nanos() - at);
  }
  say("times", ...took);
}

async function inflight(redlock, tasks, millis) {
  const began = nanos();
  const until = began + millis * 1e6;
  const task = async (n) => {
    const name = `inflight-${String(n).padStart(12, "0")}`;
    let done = 0;
    while (nanos() < until) {
      const lock = await redlock.acquire([name], TTL);
      await lock.release();
      done += 1;
    }
    return done;
  };
  const done = await Promise.all(Array.from({ length: tasks }, (_, n) => task(n)));
  say("rate", (done.reduce((a, b) => a + b) * 1e9) / (nanos() - began));
}

// As `crowd` in benches/src/redis/crowd.rs.
async function crowd(redlocks, tasks, holdMicros, thinkMicros, millis) {
  const starts = nanos() + (200 + tasks) * 1e6;
  const ends = starts + millis * 1e6;
  const gaps = [];
  const said = new Set();
  let held = 0;
  let before = null;
  const once = (word) => {
    if (!said.has(word)) {
      said.add(word);
      say(word);
    }
  };
  const task = async (n) => {
    const redlock = redlocks[n % redlocks.length];
    for (let times = 0; ; ) {
      const lock = await redlock.acquire(["a-crowd"], TTL);
      const now = nanos();
      const other = before;
      before = null;
      if (now >= starts && now < ends) {
        once("begin");
        times += 1;
        if (other && other.who !== n) gaps.push(now - other.at);
      }
      if (now >= ends) {
        once("end");
        await lock.release();
        return times;
      }
      if (holdMicros) await sleep(holdMicros / 1e3);
      const until = nanos();
      if (now >= starts) held += until - now;
      before = { who: n, at: until };
      await lock.release();
      if (thinkMicros) await sleep(thinkMicros / 1e3);
    }
  };
  const each = await Promise.all(Array.from({ length: tasks }, (_, n) => task(n)));
  say("each", ...each);
  say("gaps", ...gaps);
  say("held", held);
}

async function main() {
  // By its path: not every package lets its description be required by name.
  const version = (name) => require(path.join(process.env.NODE_PATH, name, "package.json")).version;
  const [redlock, ioredis] = ["redlock", "ioredis"].map(version);
  say("ready", `redlock ${redlock.replace(/^v/, "")} on ioredis ${ioredis}, Node ${process.versions.node}`);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [what, ...words] = line.split(" ");
    const numbers = words.map(Number);
    const wanted = what === "crowd" ? numbers.shift() : 1;
    while (clients.length < wanted) clients.push(client());
    if (what === "pair") await pair(clients[0], ...numbers);
    else if (what === "inflight") await inflight(clients[0], ...numbers);
    else await crowd(clients.slice(0, wanted), ...numbers);
    say("done");
  }
  process.exit();
}

main();
