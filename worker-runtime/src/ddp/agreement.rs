//! Checks that all ranks train the same model with the same options; finds the first difference.

use std::fmt;

use rankrun_contract::rank::Rank;

use super::DdpOptions;
use super::error::DdpError;
use super::parameter::Parameter;
use crate::process_group::{DataType, Group};

/// Limit of a received description, far above the size of any model's.
const MAX_BYTES: i64 = 1 << 30;

const TYPES: [DataType; 4] = [DataType::F16, DataType::Bf16, DataType::F32, DataType::F64];

/// The model and the options of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) options: DdpOptions,
    pub(crate) parameters: Vec<Parameter>,
}

/// The first difference between the models of two ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDifference {
    /// The lowest rank that differs from rank 0.
    pub rank: Rank,
    /// The value of that rank.
    pub value: String,
    /// The value of rank 0.
    pub rank_0_value: String,
}

impl fmt::Display for ModelDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} has {}, but rank 0 has {}", self.rank, self.value, self.rank_0_value)
    }
}

/// Compares the models of all ranks with two short calls. If they differ, every rank gets the same error.
pub(crate) fn check_same_model(group: &mut Group, description: &Description) -> Result<(), DdpError> {
    let own = description.encode();
    let all = group.all_gather(&[own.len() as i64, hash(&own)])?;
    let (hashes, _) = all.as_chunks::<2>();
    let differs = hashes.iter().position(|other| *other != hashes[0]);
    let Some(other) = differs else { return Ok(()) };
    let mut read = |rank: usize| {
        let (root, length) = (Rank(u32::try_from(rank).unwrap_or(u32::MAX)), hashes[rank][0]);
        let unreadable = || DdpError::Unreadable { rank: root };
        let length = usize::try_from(length).ok().filter(|_| length <= MAX_BYTES).ok_or_else(unreadable)?;
        let mut bytes = if group.rank() == root { own.clone() } else { vec![0; length] };
        group.broadcast(&mut bytes, root)?;
        Description::decode(&bytes).ok_or_else(unreadable)
    };
    let (first, second) = (read(0)?, read(other)?);
    let rank = Rank(u32::try_from(other).unwrap_or(u32::MAX));
    Err(find_difference(&first, &second, rank)
        .map_or(DdpError::Unreadable { rank }, |difference| DdpError::Differ(difference.into())))
}

/// FNV-1a with 64 bits: against mistakes, not against attacks.
fn hash(bytes: &[u8]) -> i64 {
    let hash = bytes.iter().fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    hash.cast_signed()
}

/// The first difference between rank 0 and another rank.
fn find_difference(first: &Description, other: &Description, rank: Rank) -> Option<ModelDifference> {
    let differ = |value: String, rank_0_value: String| Some(ModelDifference { rank, value, rank_0_value });
    for index in 0..first.parameters.len().max(other.parameters.len()) {
        let show = |parameter: Option<&Parameter>, all: usize| match parameter {
            Some(parameter) => format!("{parameter} as parameter {index}"),
            None => format!("{all} parameters"),
        };
        let (expected, actual) = (first.parameters.get(index), other.parameters.get(index));
        if expected != actual {
            let (expected, actual) =
                (show(expected, first.parameters.len()), show(actual, other.parameters.len()));
            return differ(actual, expected);
        }
    }
    let show = |options: &DdpOptions| {
        let DdpOptions { bucket_bytes, first_bucket_bytes, find_unused_parameters: find_unused } = options;
        format!(
            "`bucket_bytes` {bucket_bytes}, `first_bucket_bytes` {first_bucket_bytes} and `find_unused_parameters` {find_unused}"
        )
    };
    if first.options == other.options { None } else { differ(show(&other.options), show(&first.options)) }
}

impl Description {
    /// Encodes all numbers as 64 bits, little-endian: the options, then for each parameter the length of its
    /// name, the name, its type, the length of its shape and the shape.
    fn encode(&self) -> Vec<u8> {
        let DdpOptions { bucket_bytes, first_bucket_bytes, find_unused_parameters: find_unused } =
            self.options;
        let mut bytes = Vec::new();
        let number = |bytes: &mut Vec<u8>, number: usize| bytes.extend((number as u64).to_le_bytes());
        for option in [bucket_bytes, first_bucket_bytes, usize::from(find_unused)] {
            number(&mut bytes, option);
        }
        for parameter in &self.parameters {
            number(&mut bytes, parameter.name.len());
            bytes.extend(parameter.name.as_bytes());
            let data_type = TYPES.iter().position(|known| *known == parameter.data_type);
            number(&mut bytes, data_type.unwrap_or(TYPES.len()));
            number(&mut bytes, parameter.shape.len());
            parameter.shape.iter().for_each(|&length| number(&mut bytes, length));
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let (bucket_bytes, first_bucket_bytes) = (reader.number()?, reader.number()?);
        let find_unused = reader.number()? != 0;
        let mut parameters = Vec::new();
        while !reader.0.is_empty() {
            let length = reader.number()?;
            let name = std::str::from_utf8(reader.bytes(length)?).ok()?.to_owned();
            let data_type = *TYPES.get(reader.number()?)?;
            let dimensions = reader.number()?;
            // Bounds the allocation by the received bytes.
            let shape = (0..dimensions).map_while(|_| reader.number()).collect::<Vec<_>>();
            if shape.len() != dimensions {
                return None;
            }
            parameters.push(Parameter { name, shape, data_type });
        }
        Some(Self {
            options: DdpOptions { bucket_bytes, first_bucket_bytes, find_unused_parameters: find_unused },
            parameters,
        })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number(&mut self) -> Option<usize> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        usize::try_from(u64::from_le_bytes(*number)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn description(parameters: &[(&str, &[usize])]) -> Description {
        let parameter = |(name, shape): &(&str, &[usize])| Parameter::new::<f32>(*name, shape);
        let parameters = parameters.iter().map(parameter).collect();
        Description { options: DdpOptions::default(), parameters }
    }

    fn difference_text(first: &Description, other: &Description) -> String {
        find_difference(first, other, Rank(3))
            .map_or_else(|| "nothing".to_owned(), |difference| difference.to_string())
    }

    #[test]
    fn first_model_difference_names_both_values() {
        let model = description(&[("w", &[2, 3]), ("b", &[2])]);
        assert_eq!(difference_text(&model, &model), "nothing");
        assert_eq!(
            difference_text(&model, &description(&[("w", &[2, 4]), ("c", &[2])])),
            "rank 3 has `w` [2, 4] f32 as parameter 0, but rank 0 has `w` [2, 3] f32 as parameter 0"
        );
        assert_eq!(
            difference_text(&model, &description(&[("w", &[2, 3])])),
            "rank 3 has 1 parameters, but rank 0 has `b` [2] f32 as parameter 1"
        );
        let mut short = model.clone();
        short.parameters[1].data_type = DataType::Bf16;
        assert_eq!(
            difference_text(&model, &short),
            "rank 3 has `b` [2] bf16 as parameter 1, but rank 0 has `b` [2] f32 as parameter 1"
        );
        let mut lax = model.clone();
        lax.options.find_unused_parameters = true;
        assert!(
            difference_text(&model, &lax).contains("`find_unused_parameters` true, but rank 0 has "),
            "{}",
            difference_text(&model, &lax)
        );
    }

    proptest! {
        #[test]
        fn encoded_description_decodes_unchanged(
            names in proptest::collection::vec(("\\PC{0,9}", proptest::collection::vec(any::<usize>(), 0..4)), 0..9),
            find_unused in any::<bool>(),
        ) {
            let parameters = names.into_iter().map(|(name, shape)| Parameter::new::<f64>(name, &shape)).collect();
            let written = Description { options: DdpOptions { find_unused_parameters: find_unused, ..DdpOptions::default() }, parameters };
            let bytes = written.encode();
            prop_assert_eq!(Description::decode(&bytes), Some(written));
        }

        #[test]
        fn arbitrary_description_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Description::decode(&bytes);
        }
    }
}
