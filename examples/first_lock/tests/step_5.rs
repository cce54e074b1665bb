mod adapter;

use first_lock::step_5 as step;

dlock_conformance::main!(adapter::Mine::new());
