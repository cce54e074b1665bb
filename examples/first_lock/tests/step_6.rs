mod adapter;

use first_lock::step_6 as step;

dlock_conformance::main!(adapter::Mine::new());
