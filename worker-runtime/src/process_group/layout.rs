//! Divides a buffer among ranks. Pure.

use std::ops::Range;

/// Splits `total` elements into `parts` adjacent ranges whose lengths differ by at most one.
pub(crate) fn segments(total: usize, parts: usize) -> Vec<Range<usize>> {
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
pub(crate) fn split<T>(mut data: &[T], lengths: impl IntoIterator<Item = usize>) -> Vec<&[T]> {
    lengths
        .into_iter()
        .map(|length| {
            let (piece, rest) = data.split_at(length);
            data = rest;
            piece
        })
        .collect()
}

/// [`split`] for a mutable slice.
pub(crate) fn split_mut<T>(mut data: &mut [T], lengths: impl IntoIterator<Item = usize>) -> Vec<&mut [T]> {
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
        fn segments_cover_everything_once(total in 0usize..10_000, parts in 1usize..64) {
            let segments = segments(total, parts);
            prop_assert_eq!(segments.len(), parts);
            prop_assert_eq!(segments[0].start, 0);
            prop_assert_eq!(segments[parts - 1].end, total);
            prop_assert!(segments.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lengths = || segments.iter().map(ExactSizeIterator::len);
            prop_assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1);
        }
    }

    #[test]
    fn pieces_follow_each_other() {
        let mut data = [1, 2, 3, 4];
        assert_eq!(split(&data, [1, 0, 2]), [&[1][..], &[], &[2, 3]]);
        assert_eq!(split_mut(&mut data, [1, 0, 2]), [&mut [1][..], &mut [], &mut [2, 3]]);
    }
}
