//! Divides a buffer among ranks. Pure.

use std::ops::Range;

/// Splits `total` elements into `parts` adjacent ranges whose lengths differ by at most one.
pub(crate) fn partition(total: usize, parts: usize) -> Vec<Range<usize>> {
    let (base, extra) = (total / parts, total % parts);
    let mut start = 0;
    (0..parts)
        .map(|part| {
            let end = start + base + usize::from(part < extra);
            std::mem::replace(&mut start, end)..end
        })
        .collect()
}

/// Cuts a slice into pieces of these lengths, whose sum must not exceed the slice.
pub(crate) fn split_by_lengths<T>(mut data: &[T], lengths: impl IntoIterator<Item = usize>) -> Vec<&[T]> {
    lengths
        .into_iter()
        .map(|length| {
            let (piece, rest) = data.split_at(length);
            data = rest;
            piece
        })
        .collect()
}

/// [`split_by_lengths`] for a mutable slice.
pub(crate) fn split_mut_by_lengths<T>(
    mut data: &mut [T],
    lengths: impl IntoIterator<Item = usize>,
) -> Vec<&mut [T]> {
    lengths
        .into_iter()
        .map(|length| {
            let (piece, rest) = std::mem::take(&mut data).split_at_mut(length);
            data = rest;
            piece
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn segments_cover_range_once(total in 0usize..10_000, parts in 1usize..64) {
            let segments = partition(total, parts);
            prop_assert_eq!(segments.len(), parts);
            prop_assert_eq!(segments[0].start, 0);
            prop_assert_eq!(segments[parts - 1].end, total);
            prop_assert!(segments.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lengths = || segments.iter().map(ExactSizeIterator::len);
            prop_assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1);
        }
    }

    #[test]
    fn split_pieces_are_adjacent() {
        let mut data = [1, 2, 3, 4];
        assert_eq!(split_by_lengths(&data, [1, 0, 2]), [&[1][..], &[], &[2, 3]]);
        assert_eq!(split_mut_by_lengths(&mut data, [1, 0, 2]), [&mut [1][..], &mut [], &mut [2, 3]]);
    }
}
