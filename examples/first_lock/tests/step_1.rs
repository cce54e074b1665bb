mod adapter;

use first_lock::step_1 as step;

dlock_conformance::main!(adapter::Mine::new());
