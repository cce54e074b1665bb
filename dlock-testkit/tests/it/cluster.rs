//! A Redis cluster.

use std::io;

use dlock_testkit::{RedisCluster, RedisOptions, Value};

fn text(text: &str) -> Value {
    Value::Bytes(text.as_bytes().to_vec())
}

fn begins(answer: io::Result<Value>, with: &str) {
    let said = answer.unwrap_err().to_string();
    assert!(said.starts_with(with), "{said}");
}

#[test]
fn a_slot_moves_by_ask_and_then_by_moved() {
    let cluster = RedisCluster::start().unwrap();
    let (first, second) = ("{here}1", "{here}2");
    let slot = cluster.slot(first).unwrap();
    assert_eq!(cluster.slot(second).unwrap(), slot);
    let from = cluster.master_of(slot).unwrap();
    let to = (from + 1) % 3;
    let [old, new] = [from, to].map(|n| &cluster.nodes()[n]);
    old.ask(&["SET", first, "v"]).unwrap();
    begins(
        new.ask(&["GET", first]),
        &format!("MOVED {slot} {}", old.address()),
    );

    let migration = cluster.migrate(slot, to).unwrap();
    assert_eq!((migration.from, migration.to), (from, to));
    let elsewhere = format!("ASK {slot} {}", new.address());
    // What is still there is answered, and what is not is asked for at the other.
    assert_eq!(old.ask(&["GET", first]).unwrap(), text("v"));
    begins(old.ask(&["GET", second]), &elsewhere);
    assert_eq!(migration.move_keys().unwrap(), 1);
    begins(old.ask(&["GET", first]), &elsewhere);
    let mut asking = new.connection().unwrap();
    begins(asking.ask(&["GET", first]), "MOVED");
    asking.ask(&["ASKING"]).unwrap();
    assert_eq!(asking.ask(&["GET", first]).unwrap(), text("v"));
    migration.finish().unwrap();
    begins(
        old.ask(&["GET", first]),
        &format!("MOVED {slot} {}", new.address()),
    );
    assert_eq!(cluster.master_of(slot).unwrap(), to);

    cluster.move_slot(slot, from).unwrap();
    assert_eq!(old.ask(&["GET", first]).unwrap(), text("v"));
    cluster.migrate(slot, to).unwrap().give_up().unwrap();
    assert_eq!(old.ask(&["GET", second]).unwrap(), Value::Nothing);

    // Nobody replaces a node without a replica: the cluster is down until it is back.
    new.crash().unwrap();
    cluster.wait_until_down().unwrap();
    begins(old.ask(&["GET", first]), "CLUSTERDOWN");
    new.start_again().unwrap();
    cluster.wait_until_ok().unwrap();
    assert_eq!(old.ask(&["GET", first]).unwrap(), text("v"));
}

#[test]
fn a_replica_takes_over_when_told_and_when_its_master_dies() {
    let cluster = RedisCluster::with(RedisOptions::new(), true).unwrap();
    let slot = cluster.slot("k").unwrap();
    let master = cluster.master_of(slot).unwrap();
    cluster.nodes()[master].ask(&["SET", "k", "v"]).unwrap();
    let told = cluster.fail_over(master).unwrap();
    assert_eq!(cluster.master_of(slot).unwrap(), told);
    // In order: nothing is lost.
    assert_eq!(cluster.nodes()[told].ask(&["GET", "k"]).unwrap(), text("v"));
    let elected = cluster.crash_over(told).unwrap();
    assert_eq!(elected, master);
    assert_eq!(cluster.master_of(slot).unwrap(), elected);
    assert_eq!(cluster.nodes()[told].pid(), None);
    assert_eq!(cluster.nodes()[elected].ask(&["GET", "k"]).unwrap(), text("v"));
}
