//! Divides the rows of a batch among workers.

use std::ops::Range;

use rankrun_worker::data_parallel;

/// Splits `rows` as torch's `chunk` does. The last workers may get empty ranges.
#[must_use]
pub fn chunks(rows: usize, workers: usize) -> Vec<Range<usize>> {
    let mut shares = data_parallel::chunks(rows, workers);
    shares.resize(workers, rows..rows);
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(rows: usize, workers: usize) -> Vec<usize> {
        chunks(rows, workers).iter().map(ExactSizeIterator::len).collect()
    }

    #[test]
    fn remainder_is_split_like_torch() {
        assert_eq!(sizes(30, 2), [15, 15]);
        assert_eq!(sizes(30, 4), [8, 8, 8, 6]);
        assert_eq!(sizes(5, 4), [2, 2, 1, 0]);
        assert_eq!(sizes(2, 3), [1, 1, 0]);
        assert_eq!(sizes(0, 2), [0, 0]);
    }

    proptest! {
        #[test]
        fn each_row_belongs_to_one_worker(rows in 0usize..1000, workers in 1usize..50) {
            let all: Vec<usize> = chunks(rows, workers).into_iter().flatten().collect();
            prop_assert_eq!(all, (0..rows).collect::<Vec<_>>());
        }
    }
}
