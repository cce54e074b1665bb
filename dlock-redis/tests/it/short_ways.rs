//! Two scripts have short ways, which make none of the functions that the rest needs, three a form for many
//! requests at once, and most leases are renewed by a script of their own. They have to do what the rest
//! would do: here all run side by side, on the same requests, and their answers, what they tell, and all that
//! they leave behind are compared after each. What is left has to be as `state.lua` says, too.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_testkit::{Connection, RedisServer, Value};

const SHARED: &str = include_str!("../../src/scripts/state.lua");
const MINT: &str = include_str!("../../src/scripts/mint.lua");
const ACQUIRE: &str = include_str!("../../src/scripts/acquire.lua");
const RELEASE: &str = include_str!("../../src/scripts/release.lua");
const ABANDON: &str = include_str!("../../src/scripts/abandon.lua");
const RENEW: &str = include_str!("../../src/scripts/renew.lua");
const CONVERT: &str = include_str!("../../src/scripts/convert.lua");
const EACH: &str = include_str!("../../src/scripts/each.lua");
const ACQUIRES: &str = include_str!("../../src/scripts/acquires.lua");
const RELEASES: &str = include_str!("../../src/scripts/releases.lua");
const LOOK: &str = include_str!("../../src/scripts/look.lua");
const EXTEND: &str = include_str!("../../src/scripts/extend.lua");
const RAISE: &str = include_str!("../../src/scripts/raise.lua");
const TEND: &str = include_str!("../../src/scripts/tend.lua");

/// Where each is among the scripts of a side.
const ACQUIRING: usize = 0;
const RELEASING: usize = 1;
const ABANDONING: usize = 2;
const RENEWING: usize = 3;
const CONVERTING: usize = 4;
const LOOKING: usize = 5;
const RAISING: usize = 6;
const TENDING: usize = 7;
const EXTENDING: usize = 8;
/// No script: the last token of a bucket is another one than its clock would have made it.
const COUNTING: usize = 9;
/// No script either: some have waited in vain long ago, and the next arrivals are those that look for them.
const FORGETTING: usize = 10;

/// The names, each with its bucket.
const NAMES: [(&str, &str); 5] = [("00", "x"), ("00", "y"), ("01", "z"), ("02", "u"), ("03", "v")];

/// How many runs there are, and how many of them at the same time.
const SEEDS: usize = 60;
const AT_ONCE: usize = 6;

/// How far apart the sides may be, which run one after the other, in milliseconds.
const APART: i64 = 40_000;

/// What a script begins its short ways with, and what keeps it from them.
const SHORT: [(&str, &str, &str); 2] = [
    (
        ACQUIRE,
        "local there = ARGV[4]:byte() == 120",
        "local there = false",
    ),
    (
        RELEASE,
        "if keep == 0 then\n  local call",
        "if false then\n  local call",
    ),
];

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Short,
    Long,
    Many,
}

/// The scripts of one side by their hashes, on names with its prefix.
struct Side {
    prefix: String,
    form: Form,
    hashes: Vec<String>,
}

impl Side {
    fn new(c: &mut Connection, prefix: String, form: Form) -> Self {
        let whole = |text: &str| text.replace("--state\n", SHARED).replace("--mint\n", MINT);
        let mut scripts: Vec<_> = SHORT
            .iter()
            .map(|(text, begins, never)| {
                let short_ways = text.matches(begins).count();
                assert_eq!(short_ways, 1, "the short ways begin otherwise now: {begins}");
                match form {
                    Form::Long => whole(&text.replace(begins, never)),
                    _ => whole(text),
                }
            })
            .collect();
        scripts.extend([ABANDON, RENEW, CONVERT, LOOK, RAISE, TEND, EXTEND].map(whole));
        if form == Form::Many {
            for (script, simple) in scripts.iter_mut().zip([ACQUIRES, RELEASES, ""]) {
                *script = EACH.replace("--one\n", script).replace("--simple\n", simple);
            }
        }
        let mut load = |text| c.ask(&["SCRIPT", "LOAD", text]).unwrap().text();
        let hashes = scripts.iter().map(|text| load(text)).collect();
        Self { prefix, form, hashes }
    }

    fn key(&self, name: usize, rest: &str) -> String {
        let (bucket, name) = NAMES[name];
        match rest {
            "t" => format!("{}{{{bucket}}}:t", self.prefix),
            _ => format!("{}{{{bucket}}}:1:{name}{rest}", self.prefix),
        }
    }

    fn ask(&self, c: &mut Connection, script: usize, keys: Vec<String>, args: Vec<String>) -> Value {
        let mut words = vec!["EVALSHA".to_owned(), self.hashes[script].clone()];
        words.push(keys.len().to_string());
        words.extend(keys);
        words.extend(args);
        c.ask(&words).unwrap_or_else(|e| Value::Error(e.to_string()))
    }

    fn keys(&self, names: &[(usize, String)]) -> Vec<String> {
        let both = |(name, _): &(usize, String)| [self.key(*name, ""), self.key(*name, "t")];
        names.iter().flat_map(both).collect()
    }

    /// What each of its requests is answered.
    fn run(&self, c: &mut Connection, op: &Op) -> Vec<Seen> {
        if op.script == COUNTING {
            c.ask(&["SET", &self.key(op.of[0].0, "t"), &op.args[0]]).unwrap();
            return Vec::new();
        }
        if op.script == FORGETTING {
            let keys = [":e", ":q"].map(|rest| self.key(op.of[0].0, rest));
            c.ask(&["EVAL", FORGOTTEN, "2", &keys[0], &keys[1], &op.args[0]])
                .unwrap();
            return Vec::new();
        }
        let ids = op.of.iter().map(|(_, id)| id.clone());
        let answers = match op.script {
            ACQUIRING | RELEASING | ABANDONING if self.form == Form::Many => {
                // What all have in common comes first.
                let mut args = op.args.clone();
                args.resize(3, "0".to_owned());
                args.extend(ids);
                self.ask(c, op.script, self.keys(&op.of), args).list().unwrap()
            }
            ACQUIRING | RELEASING | ABANDONING | CONVERTING | RAISING => {
                let one = |one: &(usize, String)| {
                    let args = [std::slice::from_ref(&one.1), &op.args[..]].concat();
                    self.ask(c, op.script, self.keys(std::slice::from_ref(one)), args)
                };
                op.of.iter().map(one).collect()
            }
            EXTENDING => self.extended(c, op),
            RENEWING => {
                let renew = |id| [id, op.args[1].clone(), op.args[2].clone()];
                let args = [op.args[0].clone()].into_iter().chain(ids.flat_map(renew));
                self.ask(c, RENEWING, self.keys(&op.of), args.collect())
                    .list()
                    .unwrap()
            }
            _ => vec![self.ask(c, op.script, self.keys(&op.of[..1]), op.args.clone())],
        };
        let tell = |answer| match answer {
            // A word alone says what a list says in which nothing else is to be told.
            Value::Bytes(token) if op.script == ACQUIRING => seen(&Value::List(vec![
                Value::Bytes(b"G".to_vec()),
                Value::Bytes(token),
                Value::Number(op.args[0].parse().unwrap()),
                c.ask(&["TIME"]).map(|now| millis(&now)).unwrap(),
                Value::Number(0),
            ])),
            Value::Bytes(word) => seen(&Value::List(vec![Value::Bytes(word), Value::Number(0)])),
            // A place in the queue lasts as long as was asked for, from the time that was told.
            Value::List(parts) if op.script == ACQUIRING && parts[0].text() == "Q" => {
                let (name, id) = &op.of[0];
                let queue_ttl: i64 = op.args[2].split(':').nth(2).unwrap().parse().unwrap();
                let entry = c.ask(&["HGET", &self.key(*name, ":e"), id]).unwrap().text();
                let ends = entry.split(':').nth(4).map(|ends| ends.parse::<i64>().unwrap());
                let told = parts[2].number().unwrap() + queue_ttl;
                assert!(op.of.len() > 1 || ends == Some(told), "{entry}, {told}");
                seen(&Value::List(parts))
            }
            // Those who began to share in one moment are told in no order.
            Value::List(mut parts) if op.script == LOOKING => {
                if let Value::List(holders) = &mut parts[5] {
                    holders.sort_by_key(|holder| words_of(holder)[0].clone());
                }
                seen(&Value::List(parts))
            }
            answer => seen(&answer),
        };
        answers.into_iter().map(tell).collect()
    }

    /// A lease lasts for as long as was told, from before it was asked for.
    fn lasts(&self, c: &mut Connection, (name, id): &(usize, String), told: &Seen, before: i64) {
        let at = told
            .times
            .iter()
            .rposition(|time| told.clocks.first() == Some(time));
        let life = match at.map(|at| &told.times[..at]) {
            // No brief one, which is told in no such number.
            Some([.., life @ 100_000..1_000_000]) if ["[G", "[L"].contains(&&told.text[..2]) => *life,
            _ => return,
        };
        let ends = match c.ask(&["PTTL", &self.key(*name, "")]).unwrap().number().unwrap() {
            left @ 0.. => now(c) + left,
            _ => {
                let ends = c.ask(&["ZSCORE", &self.key(*name, ":s"), id]).unwrap();
                ends.text().parse().unwrap()
            }
        };
        assert!(
            ends >= before + life,
            "{id} ends {} ms too soon",
            before + life - ends
        );
    }

    /// By the script for what is extended as it was taken, and by the other one where that knows nothing.
    fn extended(&self, c: &mut Connection, op: &Op) -> Vec<Value> {
        let (window, ttl) = (op.args[0].clone(), op.args[1].clone());
        let mut answers = vec![Value::Number(0); op.of.len()];
        if self.form != Form::Long {
            let keys = op.of.iter().map(|(name, _)| self.key(*name, "")).collect();
            let args = [ttl.clone()]
                .into_iter()
                .chain(op.of.iter().map(|(_, id)| id.clone()));
            answers = self.ask(c, EXTENDING, keys, args.collect()).list().unwrap();
        }
        for (answer, one) in answers.iter_mut().zip(&op.of) {
            let now = c.ask(&["TIME"]).map(|now| millis(&now)).unwrap();
            *answer = match answer.number().unwrap() {
                0 => {
                    let args = vec![window.clone(), one.1.clone(), "0".to_owned(), ttl.clone()];
                    let renewed = self.ask(c, RENEWING, self.keys(std::slice::from_ref(one)), args);
                    renewed.list().unwrap().remove(0)
                }
                _ => Value::List(vec![
                    Value::Bytes(b"L".to_vec()),
                    Value::Number(ttl.parse().unwrap()),
                    now,
                    Value::Number(0),
                ]),
            };
        }
        answers
    }

    /// All that it has written at each of the names.
    fn left(&self, c: &mut Connection) -> Vec<Seen> {
        let all: Vec<_> = (0..NAMES.len()).map(|name| (name, String::new())).collect();
        let keys = self.keys(&all);
        let words = ["EVAL", ALL, "6"]
            .into_iter()
            .chain(keys.iter().map(String::as_str));
        let all = c.ask(&words.collect::<Vec<_>>()).unwrap().list().unwrap();
        all.into_iter().map(left).collect()
    }
}

/// All that stands at names: the time, the token, the hold, the three keys of others, and how long each has.
const ALL: &str = "\
    local all = {} \
    for i = 1, #KEYS, 2 do \
      local x, t, clock = KEYS[i], KEYS[i + 1], redis.call('TIME') \
      local lives = {} \
      for n, key in ipairs({t, x, x .. ':e', x .. ':q', x .. ':s'}) do \
        lives[n] = redis.call('PTTL', key) \
      end \
      all[#all + 1] = {clock, redis.call('GET', t), redis.call('GET', x), redis.call('HGETALL', x .. ':e'), \
        redis.call('ZRANGE', x .. ':q', 0, -1, 'WITHSCORES'), \
        redis.call('ZRANGE', x .. ':s', 0, -1, 'WITHSCORES'), lives} \
    end \
    return all";

/// Where somebody waits some are in line who could not be reached, and whose time is over, but for one.
const FORGOTTEN: &str = "\
    if redis.call('EXISTS', KEYS[2]) == 0 then return end \
    redis.call('HSET', KEYS[1], 'a', 7) \
    for n = 1, ARGV[1] do \
      local id, clock = string.rep('z', 23) .. n, redis.call('TIME') \
      local ends = string.format('%d', clock[1] * 1000 + (n == 3 and 300000 or -1000)) \
      redis.call('HSET', KEYS[1], id, '1qx:0:300000:0:' .. ends .. ':dead:') \
      redis.call('ZADD', KEYS[2], 4503599627370496 + n, id) \
    end \
    for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, 2000000) end";

/// The same to be compared, after it was checked.
fn left(of: Value) -> Seen {
    let [clock, token, hold, fields, queue, sharing, lives] = &of.list().unwrap()[..] else {
        panic!("not all of it")
    };
    let now = millis(clock).number().unwrap();
    let [fields, queue, sharing] = [fields, queue, sharing].map(pairs);
    let end = |life: &String| {
        life.parse()
            .map(|life: i64| if life < 0 { life } else { now + life })
    };
    let ends: Vec<i64> = words_of(lives).iter().map(|life| end(life).unwrap()).collect();
    check(hold, &fields, [(&queue, ends[3]), (&sharing, ends[4])], ends[2]);
    // Of a queue, the places to the digit. How much longer a key lives than what is in it depends on when it
    // was prolonged: less than the new life was left, or just that.
    let kept: Vec<_> = ends.iter().map(|end| end.min(&0)).collect();
    let mut left = Seen {
        text: format!("{queue:?} {kept:?} "),
        times: vec![ends[1]],
        ..Seen::default()
    };
    left.add(token);
    left.add(hold);
    for (field, value) in &fields {
        // Of a hold that was claimed nobody needs to know the channel.
        let value = match &**field {
            "h" if !value.starts_with('p') => &value[..25],
            _ => value,
        };
        left.add(&Value::Bytes(format!("{field} {value}").into_bytes()));
    }
    for (id, ends) in &sharing {
        left.add(&Value::Bytes(format!("{id} until {ends}").into_bytes()));
    }
    left
}

/// What `state.lua` says of what stands at a name.
fn check(
    hold: &Value,
    fields: &BTreeMap<String, String>,
    members: [(&BTreeMap<String, String>, i64); 2],
    end: i64,
) {
    let what = format!("{hold:?} {fields:?} {members:?}, until {end}");
    let [(queue, _), (sharing, _)] = members;
    assert!(*hold == Value::Nothing || sharing.is_empty(), "two modes: {what}");
    let entries: BTreeSet<_> = fields.keys().filter(|f| f.len() == 24).collect();
    let known: BTreeSet<_> = queue.keys().chain(sharing.keys()).collect();
    assert_eq!(entries, known, "{what}");
    let mut shared = 0;
    for (members, its_end) in members {
        for id in members.keys() {
            let parts: Vec<_> = fields[id].split(':').collect();
            let kind = fields[id].as_bytes();
            assert_eq!(kind[1] == b'q', queue.contains_key(id), "{what}");
            shared += i64::from(kind[2] == b's');
            let ends = match kind[1] {
                b'q' => parts[4],
                _ => &sharing[id],
            };
            let ends: i64 = ends.parse().unwrap();
            assert!(ends <= end.min(its_end), "{id} outlives its key: {what}");
        }
    }
    let many: i64 = fields.get("n").map_or(0, |n| n.parse().unwrap());
    assert_eq!((many, many > 0), (shared, fields.contains_key("c")), "{what}");
    // Waiters and watchers must learn of the end of the hold.
    if let (Value::Bytes(hold), false) = (hold, fields.is_empty()) {
        let noted = fields.get("h").unwrap_or_else(|| panic!("no note: {what}"));
        assert_eq!(noted.as_bytes()[..25], hold[1..26], "{what}");
    }
    // Where it is not needed it is not there: acquire.lua and release.lua go by that.
    let needed = !entries.is_empty() || fields.contains_key("o");
    assert!(fields.is_empty() || needed, "{what}");
}

fn pairs(value: &Value) -> BTreeMap<String, String> {
    let words = words_of(value);
    words
        .chunks(2)
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect()
}

fn now(c: &mut Connection) -> i64 {
    millis(&c.ask(&["TIME"]).unwrap()).number().unwrap()
}

/// The server's time.
fn millis(now: &Value) -> Value {
    let parts = words_of(now);
    let part = |n: usize| parts[n].parse::<i64>().unwrap();
    Value::Number(part(0) * 1000 + part(1) / 1000)
}

fn words_of(value: &Value) -> Vec<String> {
    match value {
        Value::List(items) => items.iter().map(Value::text).collect(),
        other => vec![other.text()],
    }
}

/// What is to be the same, and times in milliseconds, which are about the same: a token is a time too.
#[derive(Debug, Default)]
struct Seen {
    text: String,
    times: Vec<i64>,
    /// Of those the ones that are the server's time.
    clocks: Vec<i64>,
}

fn seen(value: &Value) -> Seen {
    let mut seen = Seen::default();
    seen.add(value);
    seen
}

impl Seen {
    fn add(&mut self, value: &Value) {
        match value {
            Value::List(items) => {
                self.text.push('[');
                items.iter().for_each(|item| self.add(item));
                self.text.push(']');
            }
            Value::Number(n) if *n > 100 => {
                self.text += "time, ";
                self.times.push(*n);
                self.clocks.extend((*n > 1_000_000_000_000).then_some(*n));
            }
            Value::Nothing => self.text += "nothing, ",
            other => {
                let text = other.text();
                let mut rest = &*text;
                while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
                    let digits = rest[at..].find(|c: char| !c.is_ascii_digit());
                    let end = digits.map_or(rest.len(), |n| at + n);
                    let number = &rest[at..end];
                    self.text += &rest[..at];
                    match number.len() {
                        // Of a clock, in milliseconds or microseconds.
                        13 | 16 => {
                            self.text += "#";
                            self.times.push(number[..13].parse().unwrap());
                        }
                        // A life; or a number that is the same.
                        6 => {
                            self.text += "life";
                            self.times.push(number.parse().unwrap());
                        }
                        _ => self.text += number,
                    }
                    rest = &rest[end..];
                }
                self.text += rest;
                self.text += ", ";
            }
        }
    }

    /// The one side ran a moment after the other.
    fn is_like(&self, other: &Self) -> bool {
        let mut times = self.times.iter().zip(&other.times);
        self.text == other.text
            && self.times.len() == other.times.len()
            && times.all(|(a, b)| (a - b).abs() < APART)
    }
}

#[derive(Debug)]
struct Op {
    script: usize,
    /// At which names it asks, and for which requests.
    of: Vec<(usize, String)>,
    args: Vec<String>,
    /// Something of it runs out at once.
    brief: bool,
}

/// The state; the channel of who listens; and whether mostly many ask for names that are free.
struct Dice(u64, String, bool);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }

    fn one(&mut self, many: bool) -> (usize, String) {
        let id = format!("{:a>24}", ["b", "c", "d", "e", "f", "g"][self.below(6) as usize]);
        let name = match many {
            true => self.below(5),
            false => self.below(8).saturating_sub(5),
        };
        (name as usize, id)
    }

    fn op(&mut self) -> Op {
        if self.2 && self.below(8) > 0 {
            let of = (0..2 + self.below(4)).map(|_| self.one(true)).collect();
            let rest = format!("x:0:0:5:200000:{}", self.1);
            let (script, args) = match self.below(2) {
                0 => (ACQUIRING, vec!["300000".into(), String::new(), rest]),
                _ => (RELEASING, vec!["200000".into()]),
            };
            return Op {
                script,
                of,
                args,
                brief: false,
            };
        }
        let brief = !self.2 && self.below(12) == 0;
        let window = match brief {
            true => self.of(&["2", "200000"]),
            false => self.of(&["200000", "200000", "600000"]),
        };
        let window = window.to_owned();
        let ttl = if brief && self.below(2) == 0 {
            "1"
        } else {
            self.of(&["300000", "300000", "500000"])
        };
        let queue_ttl = if brief {
            "1"
        } else {
            self.of(&["0", "200000", "200000", "200000", "400000"])
        };
        let mode = self.of(&["x:0", "x:0", "x:0", "x:0", "x:0", "x:0", "s:0", "s:2"]);
        let (script, args) = match self.below(27) {
            0..9 => {
                let priority = self.of(&["5", "5", "5", "1"]);
                let channel = if self.below(4) == 0 {
                    "dead".to_owned()
                } else {
                    self.1.clone()
                };
                let rest = format!("{mode}:{queue_ttl}:{priority}:{window}:{channel}");
                let owner = self.of(&["", "", "somebody: at work"]).to_owned();
                (ACQUIRING, vec![ttl.to_owned(), owner, rest])
            }
            9..15 => match self.below(8) {
                0 => (RELEASING, vec![window, "900000".into(), "0".into()]),
                1 => (RELEASING, vec![window, "0".into(), "1".into()]),
                _ => (RELEASING, vec![window]),
            },
            15 => (ABANDONING, vec![window]),
            16 | 17 => (
                RENEWING,
                vec![window, self.of(&["0", "1"]).into(), "300000".into()],
            ),
            18 | 19 => (CONVERTING, vec![window, self.of(&["s", "x"]).into(), "0".into()]),
            20..23 => (
                EXTENDING,
                vec![window, self.of(&["300000", "300000", "500000"]).into()],
            ),
            23 => (TENDING, vec![window]),
            24 | 25 => match self.below(8) {
                3..8 => (FORGETTING, vec![self.of(&["1", "3"]).into()]),
                0 => (RAISING, vec![window, "9000000000000000".into()]),
                _ => (
                    COUNTING,
                    vec![self.of(&["7", "999999999999999", "8000000000000000"]).into()],
                ),
            },
            _ => (
                LOOKING,
                vec![
                    window,
                    self.of(&["0", "0", "200000", "-1"]).into(),
                    self.of(&["0", "0", "1"]).into(),
                ],
            ),
        };
        let many = match script {
            ACQUIRING | RELEASING | ABANDONING | RENEWING | EXTENDING if !brief && self.below(3) == 0 => {
                2 + self.below(3)
            }
            _ => 1,
        };
        let of = (0..many).map(|_| self.one(many > 1)).collect();
        Op {
            script,
            of,
            args,
            brief,
        }
    }
}

/// What is told on the channels that are listened to, until now.
fn told(c: &mut Connection, listening: &mut Connection, channel: &str) -> Vec<Seen> {
    c.ask(&["PUBLISH", channel, "that was it"]).unwrap();
    let mut told = Vec::new();
    loop {
        let message = listening.answer().unwrap().list().unwrap().pop().unwrap();
        if message.text() == "that was it" {
            return told;
        }
        told.push(seen(&message));
    }
}

/// What each costs the server in commands, with the time that this test asks for: the long way adds some.
#[test]
fn the_short_ways_are_taken() {
    let server = RedisServer::start().unwrap();
    let mut c = server.connection().unwrap();
    let mut listening = server.connection().unwrap();
    listening.ask(&["SUBSCRIBE", "live"]).unwrap();
    let side = Side::new(&mut c, "short".to_owned(), Form::Short);
    let many = Side::new(&mut c, "many".to_owned(), Form::Many);
    let of = |names: &[usize], id: &str| {
        names
            .iter()
            .map(|n| (*n, format!("{id:a>24}")))
            .collect::<Vec<_>>()
    };
    let acquire = |id: &str| {
        let args = ["30000", "", "x:0:20000:5:20000:live"]
            .map(str::to_owned)
            .to_vec();
        Op {
            script: ACQUIRING,
            of: of(&[0], id),
            args,
            brief: false,
        }
    };
    let release = |id: &str| Op {
        script: RELEASING,
        of: of(&[0], id),
        args: vec!["20000".into()],
        brief: false,
    };
    let extend = |id: &str| Op {
        script: EXTENDING,
        of: of(&[0], id),
        args: vec!["20000".into(), "30000".into()],
        brief: false,
    };
    let all = |op: Op| Op {
        of: of(&[0, 2, 3], "b"),
        ..op
    };
    let counts = [
        ("it is free", &side, acquire("b"), 5),
        ("somebody else has it", &side, acquire("c"), 13),
        ("another one waits", &side, acquire("d"), 11),
        ("who is next is not the only one", &side, release("b"), 12),
        ("it was handed over", &side, extend("c"), 6),
        ("it is held", &side, extend("c"), 3),
        ("nobody else waits", &side, release("c"), 12),
        ("nobody waits", &side, release("d"), 3),
        ("they have no tokens yet", &many, all(acquire("b")), 18),
        ("all are let go", &many, all(release("b")), 3),
        ("all are free", &many, all(acquire("b")), 10),
    ];
    let mut seen = Vec::new();
    for (what, side, op, _) in &counts {
        c.ask(&["CONFIG", "RESETSTAT"]).unwrap();
        let answers = side.run(&mut c, op);
        let stats = c.ask(&["INFO", "commandstats"]).unwrap().text();
        let calls = |line: &str| {
            let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let ours = !matches!(command, "config|resetstat" | "info" | "evalsha");
            ours.then(|| rest.split(',').next()?.parse::<u64>().ok())?
        };
        let calls: u64 = stats.lines().filter_map(calls).sum();
        seen.push((*what, calls, answers));
    }
    let expected = counts.map(|(what, _, _, commands)| (what, commands));
    let counted: Vec<_> = seen.iter().map(|(what, calls, _)| (*what, *calls)).collect();
    assert_eq!(counted, expected, "{seen:?}");
}

#[test]
fn the_short_ways_do_what_the_long_ones_do() {
    let server = RedisServer::start().unwrap();
    let next = AtomicUsize::new(1);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > SEEDS {
                        return;
                    }
                    if let Err(failure) = catch_unwind(|| compare(&server, seed)) {
                        // One is enough.
                        next.store(SEEDS + 1, Ordering::Relaxed);
                        resume_unwind(failure);
                    }
                }
            });
        }
    });
}

fn compare(server: &RedisServer, seed: usize) {
    let mut c = server.connection().unwrap();
    let sides = [("short", Form::Short), ("long", Form::Long), ("many", Form::Many)];
    let sides = sides.map(|(what, form)| Side::new(&mut c, format!("{what}{seed}"), form));
    let mut listening = server.connection().unwrap();
    let mut channels = vec![format!("live{seed}")];
    channels.extend(
        sides
            .iter()
            .flat_map(|side| (0..NAMES.len()).map(|name| side.key(name, ""))),
    );
    for channel in &channels {
        listening.ask(&["SUBSCRIBE", channel]).unwrap();
    }
    let mut dice = Dice(
        (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        format!("live{seed}"),
        seed.is_multiple_of(4),
    );
    let mut done: Vec<Op> = Vec::new();
    let mut brief = false;
    for _ in 0..40 {
        let mut op = dice.op();
        // That script does not remove other expired sharers.
        if op.script == EXTENDING && brief {
            op.script = LOOKING;
            op.args = vec!["200000".into(), "0".into(), "0".into()];
        }
        brief |= op.brief;
        let mut all = sides.each_ref().map(|side| {
            let before = now(&mut c);
            let answers = side.run(&mut c, &op);
            let clocks = answers.iter().flat_map(|answer| &answer.clocks);
            let (mut clocks, span) = (clocks, before..=now(&mut c));
            assert!(
                clocks.all(|now| span.contains(now)),
                "seed {seed}: {answers:?} at {span:?}"
            );
            for (answer, one) in answers.iter().zip(&op.of) {
                side.lasts(&mut c, one, answer, before);
            }
            let told = told(&mut c, &mut listening, &channels[0]);
            // A grant that is pushed begins now.
            let mut began = told.iter().filter_map(|message| match message.times[..] {
                [.., began, _] if message.text.starts_with('a') => Some(began),
                _ => None,
            });
            assert!(
                began.all(|began| span.contains(&began)),
                "seed {seed}: {told:?} at {span:?}"
            );
            (answers, told)
        });
        if op.brief {
            // What runs out in two milliseconds may have one of them left, or none.
            for answer in all.iter_mut().flat_map(|(answers, _)| answers) {
                answer.text = answer.text.replace(['0', '1', '2'], "few");
            }
        }
        done.push(op);
        // What runs out at once has done so before the next request, on both sides.
        if brief {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = sides.each_ref().map(|side| side.left(&mut c));
        for other in 1..sides.len() {
            for (what, seen) in [
                ("answers", [&all[0].0[..], &all[other].0]),
                ("messages", [&all[0].1, &all[other].1]),
                ("what is left", [&left[0], &left[other]]),
            ] {
                let mut both = seen[0].iter().zip(seen[1]);
                let alike = seen[0].len() == seen[1].len() && both.all(|(a, b)| a.is_like(b));
                assert!(alike, "seed {seed}, {other}: {what}: {seen:?}, after {done:#?}");
            }
        }
    }
}
