//! Splits rows over devices and joins them again. Pure.

use std::fmt;
use std::ops::Range;

/// Splits `rows` as torch's `chunk` does: parts of equal length, rounded up, the last one perhaps shorter,
/// and none empty. Zero rows give `parts` empty parts.
#[must_use]
pub fn chunks(rows: usize, parts: usize) -> Vec<Range<usize>> {
    if rows == 0 {
        return vec![0..0; parts];
    }
    let length = rows.div_ceil(parts.max(1));
    (0..rows).step_by(length).map(|start| start..(start + length).min(rows)).collect()
}

/// A tensor, or another value that can be split along its first dimension.
pub trait Batch: Sized + Send + Sync {
    /// Length of the first dimension.
    fn rows(&self) -> usize;

    /// A range of the rows: a view or a copy.
    #[must_use]
    fn slice_rows(&self, rows: Range<usize>) -> Self;

    /// Concatenates the rows of all parts, of which there is at least one.
    fn concat(parts: Vec<Self>) -> Self;
}

/// Rows of numbers in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows<T> {
    columns: usize,
    values: Vec<T>,
}

/// The number of values is not a multiple of the row length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{values} numbers are not a multiple of the row length {columns}")]
pub struct UnevenRows {
    /// Number of values.
    pub values: usize,
    /// Values per row.
    pub columns: usize,
}

impl<T> Rows<T> {
    /// Rows of `columns` numbers, row by row.
    ///
    /// # Errors
    /// The last row is incomplete, or a row has no numbers.
    pub fn new(columns: usize, values: Vec<T>) -> Result<Self, UnevenRows> {
        match values.len().checked_rem(columns) {
            Some(0) => Ok(Self { columns, values }),
            _ => Err(UnevenRows { values: values.len(), columns }),
        }
    }

    /// All numbers, row by row.
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// As [`values`](Self::values), mutable.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Number of values per row.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Iterates over the rows.
    pub fn iter(&self) -> impl Iterator<Item = &[T]> {
        self.values.chunks_exact(self.columns)
    }
}

impl<T: Clone + Send + Sync> Batch for Rows<T> {
    fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    fn slice_rows(&self, rows: Range<usize>) -> Self {
        let values = self.values[rows.start * self.columns..rows.end * self.columns].to_vec();
        Self { columns: self.columns, values }
    }

    fn concat(parts: Vec<Self>) -> Self {
        let columns = parts.first().map_or(1, |part| part.columns);
        Self { columns, values: parts.into_iter().flat_map(|part| part.values).collect() }
    }
}

/// Formats the size as torch does.
impl<T> fmt::Display for Rows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.values.len() / self.columns, self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lengths(rows: usize, parts: usize) -> Vec<usize> {
        chunks(rows, parts).iter().map(ExactSizeIterator::len).collect()
    }

    /// The result of `torch.zeros(rows, 3).chunk(parts)` of torch 2.15.
    #[test]
    fn chunk_sizes_match_torch() {
        assert_eq!(lengths(30, 2), [15, 15]);
        assert_eq!(lengths(30, 4), [8, 8, 8, 6]);
        assert_eq!(lengths(30, 8), [4, 4, 4, 4, 4, 4, 4, 2]);
        assert_eq!(lengths(7, 4), [2, 2, 2, 1]);
        assert_eq!(lengths(7, 3), [3, 3, 1]);
        assert_eq!(lengths(5, 4), [2, 2, 1]);
        assert_eq!(lengths(5, 8), [1; 5]);
        assert_eq!(lengths(1, 8), [1]);
        assert_eq!(lengths(0, 3), [0, 0, 0]);
    }

    #[test]
    fn uneven_row_values_are_refused() {
        assert_eq!(
            Rows::new(2, vec![1, 2, 3]).unwrap_err().to_string(),
            "3 numbers are not a multiple of the row length 2"
        );
        assert!(Rows::new(0, vec![1]).is_err() && Rows::new(0, Vec::<u8>::new()).is_err());
        assert_eq!(Rows::new(2, vec![0; 6]).unwrap().to_string(), "[3, 2]");
        assert_eq!(Rows::new(2, Vec::<u8>::new()).unwrap().to_string(), "[0, 2]");
    }

    proptest! {
        #[test]
        fn sliced_batch_concatenates_to_original(rows in 0usize..300, columns in 1usize..5, parts in 1usize..50) {
            let whole = Rows::new(columns, (0..rows * columns).collect()).unwrap();
            let all: Vec<_> = chunks(rows, parts).into_iter().map(|range| whole.slice_rows(range)).collect();
            prop_assert!(all.len() <= parts && all.iter().all(|part| rows == 0 || part.rows() > 0));
            prop_assert_eq!(Rows::concat(all), whole);
        }
    }
}
