//! Two scripts have short ways, which make none of the functions that the rest needs, and three a form for
//! many requests at once. They have to do what the rest would do: here all run side by side, on the same
//! requests, and their answers and all that they leave behind are compared after each.

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
    prefix: &'static str,
    form: Form,
    hashes: Vec<String>,
}

impl Side {
    fn new(c: &mut Connection, prefix: &'static str, form: Form) -> Self {
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
        scripts.extend([ABANDON, RENEW, CONVERT, LOOK].map(whole));
        if form == Form::Many {
            for (script, simple) in scripts.iter_mut().zip([ACQUIRES, RELEASES, ""]) {
                *script = EACH.replace("--one\n", script).replace("--simple\n", simple);
            }
        }
        let mut load = |text| c.ask(&["SCRIPT", "LOAD", text]).unwrap().text();
        let hashes = scripts.iter().map(|text| load(text)).collect();
        Self { prefix, form, hashes }
    }

    fn key(&self, rest: &str) -> String {
        format!("{}{{00}}:{rest}", self.prefix)
    }

    fn run(&self, c: &mut Connection, op: &Op) -> (String, Vec<i64>) {
        let mut words = vec![
            "EVALSHA".to_owned(),
            self.hashes[op.script].clone(),
            "2".to_owned(),
        ];
        words.extend([self.key("1:x"), self.key("t")]);
        words.extend(op.args.iter().cloned());
        let many = self.form == Form::Many && op.script < 3;
        if many {
            // What all have in common comes first.
            words.resize(9, "0".to_owned());
            words[5..].rotate_left(1);
        }
        let answer = c.ask(&words).map(|answer| match answer {
            Value::List(mut answers) if many => answers.remove(0),
            answer => answer,
        });
        let answer = match answer {
            // A word alone says what a list says in which nothing else is to be told.
            Ok(Value::Bytes(token)) if op.script == 0 => Value::List(vec![
                Value::Bytes(b"G".to_vec()),
                Value::Bytes(token),
                Value::Number(op.args[1].parse().unwrap()),
                c.ask(&["TIME"]).map(|now| millis(&now)).unwrap(),
                Value::Number(0),
            ]),
            Ok(Value::Bytes(word)) => Value::List(vec![Value::Bytes(word), Value::Number(0)]),
            Ok(answer) => answer,
            Err(e) => Value::Error(e.to_string()),
        };
        (shown(&answer), times(&answer))
    }

    /// All that it has written, but for times and tokens.
    fn left(&self, c: &mut Connection) -> (Vec<String>, Vec<i64>) {
        let (mut left, mut lives) = (Vec::new(), Vec::new());
        for (suffix, command) in [
            ("1:x", &["GET"][..]),
            ("1:x:e", &["HGETALL"]),
            ("1:x:q", &["ZRANGE", "0", "-1", "WITHSCORES"]),
            ("1:x:s", &["ZRANGE", "0", "-1"]),
        ] {
            let key = self.key(suffix);
            let mut words = vec![command[0], &key];
            words.extend(&command[1..]);
            let value = c.ask(&words).unwrap();
            // Of a queue, the places to the digit.
            let text = match (suffix, &value) {
                ("1:x:q", _) => format!("{:?}", words_of(&value)),
                (_, Value::List(items)) => {
                    let mut pairs: Vec<_> = items.chunks(2).map(|pair| pair.iter().map(shown)).collect();
                    let mut pairs: Vec<_> = pairs.drain(..).map(|pair| pair.collect::<Vec<_>>()).collect();
                    pairs.sort();
                    format!("{pairs:?}")
                }
                _ => shown(&value),
            };
            let life = c.ask(&["PTTL", &key]).unwrap().number().unwrap();
            left.push(format!("{suffix} {text}"));
            lives.push(life);
        }
        (left, lives)
    }
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

/// The times in an answer, in milliseconds.
fn times(value: &Value) -> Vec<i64> {
    match value {
        Value::List(items) => items.iter().flat_map(times).collect(),
        Value::Number(n) if *n > 100 => vec![*n],
        _ => Vec::new(),
    }
}

/// The one side ran a moment after the other.
fn about_the_same(times: [&Vec<i64>; 2]) -> bool {
    times[0].len() == times[1].len() && times[0].iter().zip(times[1]).all(|(a, b)| (a - b).abs() < 500)
}

/// Without times and tokens: those are the long numbers.
fn shown(value: &Value) -> String {
    match value {
        Value::List(items) => format!("{:?}", items.iter().map(shown).collect::<Vec<_>>()),
        Value::Number(n) if *n > 100 => "a time".to_owned(),
        Value::Number(n) => n.to_string(),
        Value::Nothing => "nothing".to_owned(),
        other => {
            let mut text = String::new();
            let mut digits = String::new();
            for c in other.text().chars().chain(['\n']) {
                if c.is_ascii_digit() {
                    digits.push(c);
                    continue;
                }
                text.push_str(if digits.len() > 12 { "#" } else { &digits });
                digits.clear();
                text.push(c);
            }
            text
        }
    }
}

#[derive(Debug)]
struct Op {
    script: usize,
    args: Vec<String>,
    /// Something of it runs out at once.
    brief: bool,
}

struct Dice(u64);

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

    fn op(&mut self) -> Op {
        let id = format!("{:a>24}", ["b", "c", "d", "e", "f", "g"][self.below(6) as usize]);
        let brief = self.below(12) == 0;
        let window = match brief {
            true => self.of(&["2", "20000"]),
            false => self.of(&["20000", "20000", "60000"]),
        };
        let window = window.to_owned();
        let ttl = if brief && self.below(2) == 0 { "1" } else { "30000" }.to_owned();
        let queue_ttl = if brief {
            "1"
        } else {
            self.of(&["0", "20000", "20000", "20000", "40000"])
        };
        let mode = self.of(&["x:0", "x:0", "x:0", "x:0", "x:0", "x:0", "s:0", "s:2"]);
        let (script, args) = match self.below(20) {
            0..9 => {
                let (priority, channel) = (
                    self.of(&["5", "5", "5", "1"]),
                    self.of(&["live", "live", "live", "dead"]),
                );
                let rest = format!("{mode}:{queue_ttl}:{priority}:{window}:{channel}");
                let owner = self.of(&["", "", "somebody: at work"]).to_owned();
                (0, vec![id, ttl, owner, rest])
            }
            9..15 => match self.below(8) {
                0 => (1, vec![id, window, "9000".into(), "0".into()]),
                1 => (1, vec![id, window, "0".into(), "1".into()]),
                _ => (1, vec![id, window]),
            },
            15 => (2, vec![id, window]),
            16 | 17 => (3, vec![window, id, self.of(&["0", "1"]).into(), "30000".into()]),
            18 => (4, vec![id, window, self.of(&["s", "x"]).into(), "0".into()]),
            _ => (
                5,
                vec![
                    window,
                    self.of(&["0", "0", "20000", "-1"]).into(),
                    self.of(&["0", "0", "1"]).into(),
                ],
            ),
        };
        Op { script, args, brief }
    }
}

#[test]
fn the_short_ways_do_what_the_long_ones_do() {
    let server = RedisServer::start().unwrap();
    let mut listening = server.connection().unwrap();
    listening.ask(&["SUBSCRIBE", "live"]).unwrap();
    let mut c = server.connection().unwrap();
    let sides = [("short", Form::Short), ("long", Form::Long), ("many", Form::Many)];
    let sides = sides.map(|(prefix, form)| Side::new(&mut c, prefix, form));
    for seed in 1..=60_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut done = Vec::new();
        for _ in 0..40 {
            let op = dice.op();
            let mut answers = sides.each_ref().map(|side| side.run(&mut c, &op));
            if op.brief {
                // What runs out in two milliseconds may have one of them left, or none.
                for (answer, _) in &mut answers {
                    *answer = answer.replace(['0', '1', '2'], "few");
                }
            }
            done.push(op);
            // What runs out at once has done so before the next request, on both sides.
            if done.iter().any(|op| op.brief) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let left = sides.each_ref().map(|side| side.left(&mut c));
            for other in 1..sides.len() {
                for (what, times) in [
                    ("answers", [&answers[0].1, &answers[other].1]),
                    ("lives of keys", [&left[0].1, &left[other].1]),
                ] {
                    let alike = about_the_same(times);
                    assert!(alike, "seed {seed}: {what}: {times:?}, after {done:#?}");
                }
                assert_eq!(
                    answers[0].0, answers[other].0,
                    "seed {seed}, {other}, after {done:#?}"
                );
                assert_eq!(left[0].0, left[other].0, "seed {seed}, {other}, after {done:#?}");
            }
        }
        c.ask(&["FLUSHDB"]).unwrap();
    }
}
