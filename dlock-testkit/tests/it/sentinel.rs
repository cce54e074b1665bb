//! Redis under sentinels.

use dlock_testkit::{RedisSentinel, RedisServer, Value};

fn get(server: &RedisServer, key: &str) -> Value {
    server.ask(&["GET", key]).unwrap()
}

fn text(text: &str) -> Value {
    Value::Bytes(text.as_bytes().to_vec())
}

#[test]
fn the_sentinels_name_another_master_when_told_or_when_it_dies() {
    let all = RedisSentinel::start().unwrap();
    let first = all.leader().unwrap();
    // Of its own connection's writes only does `WAIT` tell whether replicas have them.
    let mut master = all.serving().unwrap().connection().unwrap();
    master.ask(&["SET", "kept", "v"]).unwrap();
    assert_eq!(master.ask(&["WAIT", "1", "10000"]).unwrap(), Value::Number(1));

    all.fail_over().unwrap();
    assert_eq!(all.leader().unwrap(), 1 - first);
    assert_eq!(all.standing_by().unwrap().info("role").unwrap(), "slave");
    assert_eq!(get(all.serving().unwrap(), "kept"), text("v"));

    all.crash_over().unwrap();
    assert_eq!(all.leader().unwrap(), first);
    assert_eq!(all.serving().unwrap().info("role").unwrap(), "master");
    assert_eq!(all.standing_by().unwrap().pid(), None);
    assert_eq!(get(all.serving().unwrap(), "kept"), text("v"));

    all.mend().unwrap();
    assert_eq!(all.standing_by().unwrap().info("role").unwrap(), "slave");

    let stale = all.crash_over_to_stale(|| all.serving().unwrap().ask(&["SET", "lost", "v"]).unwrap());
    assert_eq!(stale.unwrap(), text("OK"));
    assert_eq!(all.leader().unwrap(), 1 - first);
    let new = all.serving().unwrap();
    assert_eq!((get(new, "kept"), get(new, "lost")), (text("v"), Value::Nothing));
}
