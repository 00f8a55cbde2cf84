//! Groups gradients into buckets. Pure.
//!
//! As in torch after its first backward pass: parameters in reverse order of the model,
//! since gradients become ready in that order; buckets of one element type; a small first
//! bucket per type, so that it starts early; each bucket ends with the gradient that reaches
//! its size (`compute_bucket_assignment_by_size` in torch's `reducer.cpp`).

use std::ops::Range;

use super::parameter::Parameter;
use crate::process_group::DataType;

/// Gradients that are reduced in one call, adjacent in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) data_type: DataType,
    /// Indices of the parameters, in memory order.
    pub(crate) members: Vec<usize>,
    pub(crate) bytes: usize,
}

/// The location of a parameter's gradient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GradientPlace {
    pub(crate) bucket: usize,
    pub(crate) bytes: Range<usize>,
}

/// Limits at which buckets are closed, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// For the first bucket of each element type.
    pub(crate) first: usize,
    pub(crate) rest: usize,
}

/// All buckets, in the order in which they are reduced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BucketPlan {
    pub(crate) buckets: Vec<Bucket>,
    /// Location of the gradient of each parameter, in model order.
    pub(crate) places: Vec<GradientPlace>,
}

impl BucketPlan {
    /// Assigns all parameters to buckets. The result depends only on values that all ranks share.
    pub(crate) fn new(parameters: &[Parameter], sizes: Sizes) -> Self {
        let mut closed: Vec<Bucket> = Vec::new();
        let mut open: Vec<Bucket> = Vec::new();
        for (index, parameter) in parameters.iter().enumerate().rev() {
            let data_type = parameter.data_type;
            let at = open.iter().position(|bucket| bucket.data_type == data_type).unwrap_or_else(|| {
                open.push(Bucket { data_type, members: Vec::new(), bytes: 0 });
                open.len() - 1
            });
            let bucket = &mut open[at];
            bucket.members.push(index);
            bucket.bytes += parameter.bytes();
            let is_first = !closed.iter().any(|other| other.data_type == data_type);
            if bucket.bytes >= if is_first { sizes.first } else { sizes.rest } {
                closed.push(open.swap_remove(at));
            }
        }
        closed.append(&mut open);
        // A bucket that completes earlier is reduced earlier.
        closed.sort_by_key(|bucket| std::cmp::Reverse(bucket.members.last().copied()));
        let places = places(&closed, parameters);
        Self { buckets: closed, places }
    }
}

fn places(buckets: &[Bucket], parameters: &[Parameter]) -> Vec<GradientPlace> {
    let mut places = vec![GradientPlace { bucket: 0, bytes: 0..0 }; parameters.len()];
    for (bucket, members) in buckets.iter().map(|bucket| &bucket.members).enumerate() {
        let mut start = 0;
        for &member in members {
            let end = start + parameters[member].bytes();
            places[member] = GradientPlace { bucket, bytes: start..end };
            start = end;
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_group::f16;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    /// The MLP 1000-512-512-2; every other parameter has the second type.
    fn model(second: fn(&'static str, &[usize]) -> Parameter) -> Vec<Parameter> {
        let first = Parameter::new::<f32>;
        vec![
            first("fc1.weight", &[512, 1000]),
            second("fc1.bias", &[512]),
            first("fc2.weight", &[512, 512]),
            second("fc2.bias", &[512]),
            first("fc3.weight", &[2, 512]),
            second("fc3.bias", &[2]),
        ]
    }

    fn members(parameters: &[Parameter], first: usize, rest: usize) -> Vec<Vec<usize>> {
        let plan = BucketPlan::new(parameters, Sizes { first, rest });
        plan.buckets.into_iter().map(|bucket| bucket.members).collect()
    }

    /// The result of `torch.distributed._compute_bucket_assignment_by_size` of
    /// torch 2.15 for the reversed list.
    #[test]
    fn buckets_match_torch() {
        let one_type = model(Parameter::new::<f32>);
        assert_eq!(members(&one_type, MIB, 25 * MIB), [vec![5, 4, 3, 2], vec![1, 0]]);
        assert_eq!(members(&one_type, 1024, MIB), [vec![5, 4], vec![3, 2], vec![1, 0]]);
        assert_eq!(members(&one_type, 16, 2048), [vec![5, 4], vec![3], vec![2], vec![1], vec![0]]);
    }

    /// Torch's buckets, in the order of completion.
    #[test]
    fn each_data_type_has_own_buckets() {
        let two_types = model(Parameter::new::<f16>);
        assert_eq!(members(&two_types, MIB, 25 * MIB), [vec![4, 2], vec![5, 3, 1], vec![0]]);
        assert_eq!(members(&two_types, 1024, MIB), [vec![4], vec![5, 3], vec![2], vec![1], vec![0]]);
    }

    #[test]
    fn one_byte_size_gives_one_bucket_per_parameter() {
        let one_type = model(Parameter::new::<f32>);
        assert_eq!(members(&one_type, 1, 1).len(), 6);
        assert_eq!(members(&one_type, usize::MAX, usize::MAX), [vec![5, 4, 3, 2, 1, 0]]);
    }

    proptest! {
        #[test]
        fn gradient_places_do_not_overlap(
            shapes in proptest::collection::vec((0usize..50, any::<bool>()), 1..40),
            first in 1usize..200,
            others in 1usize..200,
        ) {
            let parameter = |(at, (length, is_short)): (usize, (usize, bool))| match is_short {
                true => Parameter::new::<f16>(at.to_string(), &[length]),
                false => Parameter::new::<f32>(at.to_string(), &[length]),
            };
            let parameters: Vec<_> = shapes.into_iter().enumerate().map(parameter).collect();
            let plan = BucketPlan::new(&parameters, Sizes { first, rest: others });
            for (index, bucket) in plan.buckets.iter().enumerate() {
                let mut start = 0;
                for &member in &bucket.members {
                    let place = &plan.places[member];
                    prop_assert_eq!((place.bucket, place.bytes.start), (index, start));
                    prop_assert_eq!(parameters[member].data_type, bucket.data_type);
                    prop_assert_eq!(place.bytes.len(), parameters[member].bytes());
                    start = place.bytes.end;
                }
                prop_assert_eq!(start, bucket.bytes);
            }
            let mut all: Vec<_> = plan.buckets.iter().flat_map(|bucket| bucket.members.clone()).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..parameters.len()).collect::<Vec<_>>());
        }
    }
}
