mod adapter;

use first_lock::step_3 as step;

dlock_conformance::main!(adapter::Mine::new());
