//! A memory of recent notes, up to a maximum number.

use std::collections::HashMap;
use std::hash::Hash;

/// The minimum number to remember; the maximum is twice that.
pub(crate) const MANY: usize = 2048;

/// What was noted of each of the last ones. What is older goes all at once.
pub(crate) struct Cache<K, V> {
    now: HashMap<K, V>,
    before: HashMap<K, V>,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self {
            now: HashMap::new(),
            before: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, V> Cache<K, V> {
    pub(crate) fn of(&self, key: &K) -> Option<&V> {
        self.now.get(key).or_else(|| self.before.get(key))
    }

    pub(crate) fn note(&mut self, key: &K, value: V) {
        if let Some(known) = self.now.get_mut(key) {
            *known = value;
            return;
        }
        if self.now.len() >= MANY {
            self.before = std::mem::take(&mut self.now);
        }
        self.now.insert(key.clone(), value);
    }

    pub(crate) fn forget(&mut self, key: &K) {
        self.now.remove(key);
        self.before.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_last_counts_and_it_does_not_grow() {
        let mut cache = Cache::default();
        assert_eq!(cache.of(&0), None);
        cache.note(&0, 'a');
        for n in 1..=MANY {
            cache.note(&n, 'b');
        }
        // It is remembered of before, and noted anew; forgotten, it is remembered of neither.
        assert_eq!(cache.of(&0), Some(&'a'));
        cache.note(&0, 'c');
        assert_eq!(cache.of(&0), Some(&'c'));
        cache.forget(&0);
        assert_eq!(cache.of(&0), None);
        for n in 0..MANY * 5 {
            cache.note(&n, 'd');
        }
        assert!(cache.now.len() <= MANY && cache.before.len() <= MANY);
        assert_eq!((cache.of(&0), cache.of(&(MANY * 5 - 1))), (None, Some(&'d')));
    }
}
