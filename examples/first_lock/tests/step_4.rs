mod adapter;

use first_lock::step_4 as step;

dlock_conformance::main!(adapter::Mine::new());
