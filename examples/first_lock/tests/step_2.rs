mod adapter;

use first_lock::step_2 as step;

dlock_conformance::main!(adapter::Mine::new());
