//! The distribution of rows over parts, and their new distribution with another number of ranks. Pure.

use std::ops::Range;

use serde_json::{Value, json};

use super::header::{parse_checksum, render_checksum};
use super::state::element_count;

/// The sharded tensors of a checkpoint and its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sharding {
    /// Id of the save, which is part of its file names.
    pub(super) id: u64,
    pub(super) tensors: Vec<ShardedTensor>,
    /// The parts in rank order.
    pub(super) parts: Vec<ShardFile>,
}

/// A sharded tensor as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShardedTensor {
    pub(super) name: String,
    /// The output of [`type_name`](super::header::type_name).
    pub(super) data_type: String,
    /// Rows over all ranks, then the shape of a row.
    pub(super) shape: Vec<usize>,
}

/// The part of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShardFile {
    pub(super) checksum: u64,
    pub(super) rows: Vec<usize>,
}

/// Rows that one rank reads from one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowRange {
    pub(super) part: usize,
    pub(super) from: Range<usize>,
    /// First row within the rank's memory.
    pub(super) to: usize,
}

impl Sharding {
    pub(super) fn render(&self) -> String {
        let tensors = self.tensors.iter().map(
            |ShardedTensor { name, data_type, shape }| json!({ "name": name, "dtype": data_type, "shape": shape }),
        );
        let parts = self.parts.iter().map(
            |ShardFile { checksum, rows }| json!({ "checksum": render_checksum(*checksum), "rows": rows }),
        );
        let id = render_checksum(self.id);
        let (tensors, parts) = (tensors.collect::<Vec<_>>(), parts.collect::<Vec<_>>());
        json!({ "id": id, "tensors": tensors, "parts": parts }).to_string()
    }

    /// Parses the output of [`render`](Self::render); `None` if it is inconsistent.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let whole = |value: &Value| {
            let (name, data_type) = (value["name"].as_str()?, value["dtype"].as_str()?);
            Some(ShardedTensor {
                name: name.to_owned(),
                data_type: data_type.to_owned(),
                shape: parse_numbers(&value["shape"])?,
            })
        };
        let part = |value: &Value| {
            Some(ShardFile {
                checksum: parse_checksum(value["checksum"].as_str()?)?,
                rows: parse_numbers(&value["rows"])?,
            })
        };
        let tensors: Vec<_> = value["tensors"].as_array()?.iter().map(whole).collect::<Option<_>>()?;
        let parts: Vec<_> = value["parts"].as_array()?.iter().map(part).collect::<Option<_>>()?;
        let sharding = Self { id: parse_checksum(value["id"].as_str()?)?, tensors, parts };
        sharding.is_consistent().then_some(sharding)
    }

    fn is_consistent(&self) -> bool {
        let is_whole = |(index, tensor): (usize, &ShardedTensor)| {
            let rows =
                self.parts.iter().try_fold(0usize, |sum, part| sum.checked_add(*part.rows.get(index)?));
            rows.is_some() && rows == tensor.shape.first().copied() && element_count(&tensor.shape).is_some()
        };
        let as_many = self.parts.iter().all(|part| part.rows.len() == self.tensors.len());
        as_many && self.tensors.iter().enumerate().all(is_whole)
    }

    /// The parts that hold the rows `wanted` of a tensor.
    pub(super) fn row_ranges(&self, tensor: usize, wanted: &Range<usize>) -> Vec<RowRange> {
        let mut start = 0;
        let piece = |(part, rows): (usize, usize)| {
            let placement = start..start + rows;
            start = placement.end;
            let (first, end) = (placement.start.max(wanted.start), placement.end.min(wanted.end));
            let piece = || RowRange {
                part,
                from: first - placement.start..end - placement.start,
                to: first - wanted.start,
            };
            (first < end).then(piece)
        };
        self.parts.iter().map(|part| part.rows[tensor]).enumerate().filter_map(piece).collect()
    }
}

fn parse_numbers(value: &Value) -> Option<Vec<usize>> {
    let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
    value.as_array()?.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sharding(rows: &[usize]) -> Sharding {
        let whole = ShardedTensor {
            name: "m".to_owned(),
            data_type: "f32".to_owned(),
            shape: vec![rows.iter().sum(), 3],
        };
        let part = |(checksum, &rows)| ShardFile { checksum, rows: vec![rows] };
        Sharding { id: 7, tensors: vec![whole], parts: (1..).zip(rows).map(part).collect() }
    }

    #[test]
    fn inconsistent_sharding_is_refused() {
        let text = sharding(&[2, 3]).render();
        assert_eq!(Sharding::parse(&text), Some(sharding(&[2, 3])));
        for (good, bad) in [
            ("[5,3]", "[6,3]"),
            ("[5,3]", "[5,18446744073709551615]"),
            ("[5,3]", "[]"),
            ("\"rows\":[2]", "\"rows\":[2,3]"),
            ("\"rows\":[2]", "\"rows\":[18446744073709551615]"),
            ("\"rows\":[2]", "\"rows\":[-2]"),
            ("0000000000000007", "7"),
            ("0000000000000007", "../../../etc/pass"),
        ] {
            assert!(text.contains(good), "{text}");
            assert_eq!(Sharding::parse(&text.replacen(good, bad, 1)), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn resharded_rows_are_complete(before in proptest::collection::vec(0usize..9, 1..6), cuts in proptest::collection::vec(0usize..40, 0..5)) {
            let total: usize = before.iter().sum();
            let sharding = sharding(&before);
            let rows: Vec<Vec<usize>> = {
                let mut next = 0..;
                before.iter().map(|&rows| next.by_ref().take(rows).collect()).collect()
            };
            let mut ends: Vec<usize> = cuts.into_iter().map(|cut| cut.min(total)).chain([total]).collect();
            ends.sort_unstable();
            let mut start = 0;
            for end in ends {
                let mut own = vec![usize::MAX; end - start];
                for RowRange { part, from, to } in sharding.row_ranges(0, &(start..end)) {
                    own[to..to + from.len()].copy_from_slice(&rows[part][from]);
                }
                prop_assert_eq!(own, (start..end).collect::<Vec<_>>());
                start = end;
            }
        }

        #[test]
        fn arbitrary_sharding_text_does_not_panic(text: String) {
            Sharding::parse(&text);
        }
    }
}
