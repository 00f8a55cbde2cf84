//! `torch.randperm` on the CPU (`randperm_cpu` in `ATen/native/TensorFactories.cpp`, torch 2.15). Pure.

use super::mt19937::Mt19937;

/// From this length on torch draws 64 bits per position: 32 would be biased.
const LONG: usize = (u32::MAX / 20) as usize;

/// The numbers below `length` in the order of `torch.randperm` with a fresh generator of this seed.
pub(super) fn permutation(length: usize, seed: u64) -> Vec<usize> {
    let mut numbers = Mt19937::new(seed);
    if length < LONG {
        shuffle_with_u32(length, &mut numbers)
    } else {
        shuffle_with_u64(length, &mut numbers)
    }
}

/// Swaps each position with itself or a later one.
fn shuffle_with_u32(length: usize, numbers: &mut Mt19937) -> Vec<usize> {
    let mut order: Vec<usize> = (0..length).collect();
    for at in 0..length.saturating_sub(1) {
        order.swap(at, at + numbers.next_u32() as usize % (length - at));
    }
    order
}

/// Inserts each new number at a random position and moves the number there to the end.
fn shuffle_with_u64(length: usize, numbers: &mut Mt19937) -> Vec<usize> {
    let mut order = Vec::with_capacity(length);
    for at in 0..length {
        // The remainder is at most `at`, which is a `usize`.
        let place = (numbers.next_u64() % (at as u64 + 1)) as usize;
        order.push(at);
        order.swap(at, place);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `torch.randperm(n, generator=torch.Generator().manual_seed(seed))` of torch 2.15.0.
    #[test]
    fn permutation_matches_torch() {
        assert_eq!(permutation(10, 0), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
        assert_eq!(permutation(10, u64::MAX), [1, 4, 6, 2, 0, 5, 8, 7, 9, 3]);
        assert_eq!(permutation(10, (1 << 32) + 5), [1, 4, 9, 6, 3, 5, 0, 2, 8, 7]);
        assert_eq!(permutation(1, 3), [0]);
        assert!(permutation(0, 3).is_empty());
    }

    #[test]
    fn both_algorithms_return_permutations() {
        for way in [shuffle_with_u32, shuffle_with_u64] {
            let mut order = way(1000, &mut Mt19937::new(9));
            assert_ne!(order, (0..1000).collect::<Vec<_>>());
            order.sort_unstable();
            assert_eq!(order, (0..1000).collect::<Vec<_>>());
        }
    }
}
