//! The header of a safetensors file, with our metadata. Pure.
//!
//! The format has no checksum. Ours is a metadata entry over all bytes of the file,
//! computed with zeros in its place.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::sharding::Sharding;
use crate::process_group::DataType;

/// The format's name for the metadata map.
pub(super) const METADATA: &str = "__metadata__";
/// The prefix of our metadata keys.
pub(super) const OWN_PREFIX: &str = "rankrun.";
const FORMAT: &str = "rankrun.format";
/// The version that this library writes and reads.
const VERSION: &str = "1";
const STEP: &str = "rankrun.step";
const WORLD_SIZE: &str = "rankrun.world_size";
const SHARDED: &str = "rankrun.sharded";
const CHECKSUM: &str = "rankrun.checksum";
/// The place of the checksum before it is known.
const NO_CHECKSUM: &str = "0000000000000000";

/// Bytes of the length in front of the header.
pub(super) const LENGTH_BYTES: usize = 8;
/// Longest header that is read; the format's own limit.
pub(super) const MAX_LENGTH: u64 = 100_000_000;

/// Why a header cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeaderError {
    #[error("its header is not that of a safetensors file: {0}")]
    Json(#[from] serde_json::Error),
    #[error("not a checkpoint of rankrun: another program wrote it")]
    Foreign,
    #[error("its format is {0:?}, but this program reads {VERSION:?}: another version of rankrun wrote it")]
    Version(String),
    #[error("its entry `{0}` is invalid")]
    Absurd(&'static str),
}

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SavedTensor {
    pub(super) data_type: Dtype,
    pub(super) shape: Vec<usize>,
    /// Byte range, counted from the end of the header.
    pub(super) bytes: (usize, usize),
}

#[derive(Debug)]
pub(super) struct TensorSpec {
    pub(super) name: String,
    pub(super) data_type: DataType,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: usize,
}

/// The metadata of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileMetadata {
    pub(super) step: u64,
    pub(super) world_size: u32,
    pub(super) sharding: Option<Sharding>,
    pub(super) metadata: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(super) struct FileHeader {
    pub(super) about: FileMetadata,
    pub(super) tensors: BTreeMap<String, SavedTensor>,
    pub(super) data_bytes: usize,
    pub(super) checksum: u64,
}

impl FileHeader {
    /// Parses the bytes after the length.
    pub(super) fn parse(json: &[u8]) -> Result<Self, HeaderError> {
        let parsed: Metadata = serde_json::from_slice(json)?;
        let texts = parsed.metadata().as_ref().ok_or(HeaderError::Foreign)?;
        let text = |key| texts.get(key).map(String::as_str);
        match text(FORMAT) {
            Some(VERSION) => {}
            Some(other) => return Err(HeaderError::Version(other.chars().take(20).collect())),
            None => return Err(HeaderError::Foreign),
        }
        let number = |key| text(key).and_then(|text| text.parse().ok()).ok_or(HeaderError::Absurd(key));
        let checksum = text(CHECKSUM).and_then(parse_checksum).ok_or(HeaderError::Absurd(CHECKSUM))?;
        let world_size = u32::try_from(number(WORLD_SIZE)?).map_err(|_| HeaderError::Absurd(WORLD_SIZE))?;
        let sharding = text(SHARDED).map(|text| Sharding::parse(text).ok_or(HeaderError::Absurd(SHARDED)));
        let metadata = texts.iter().filter(|(key, _)| !key.starts_with(OWN_PREFIX));
        let metadata = metadata.map(|(key, value)| (key.clone(), value.clone())).collect();
        let about =
            FileMetadata { step: number(STEP)?, world_size, sharding: sharding.transpose()?, metadata };
        let saved = |info: &TensorInfo| SavedTensor {
            data_type: info.dtype,
            shape: info.shape.clone(),
            bytes: info.data_offsets,
        };
        let tensors = parsed.tensors();
        let tensors = tensors.iter().map(|(name, info)| (name.clone(), saved(info))).collect();
        Ok(Self { about, tensors, data_bytes: parsed.data_len(), checksum })
    }
}

/// The header of a file with these tensors, in this order, with its length in front and zeros as checksum.
pub(super) fn render(about: &FileMetadata, tensors: Vec<TensorSpec>) -> Vec<u8> {
    let mut offset = 0;
    let infos = tensors.into_iter().map(|TensorSpec { name, data_type, shape, bytes }| {
        let start = offset;
        offset += bytes;
        (name, TensorInfo { dtype: saved_type(data_type), shape, data_offsets: (start, offset) })
    });
    let infos = infos.collect();
    let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let mut texts: Vec<_> = about.metadata.iter().map(|(key, value)| text(key, value)).collect();
    texts.push(text(FORMAT, VERSION));
    texts.push(text(STEP, &about.step.to_string()));
    texts.push(text(WORLD_SIZE, &about.world_size.to_string()));
    texts.push(text(CHECKSUM, NO_CHECKSUM));
    texts.extend(about.sharding.as_ref().map(|sharding| text(SHARDED, &sharding.render())));
    let metadata = Metadata::new(Some(texts.into_iter().collect()), infos);
    let metadata = metadata.expect("shapes fit their bytes, which `StateDict::check` has seen");
    let mut json = serde_json::to_vec(&metadata).expect("texts and numbers can be written as JSON");
    // The format aligns data to 8 bytes with spaces.
    json.resize(json.len().next_multiple_of(LENGTH_BYTES), b' ');
    [&(json.len() as u64).to_le_bytes()[..], &json].concat()
}

/// Position of the checksum in a header, with or without the length in front.
pub(super) fn checksum_range(head: &[u8]) -> Option<std::ops::Range<usize>> {
    // As a key with quotes: within a string they would be escaped, and a tensor of that name is followed by a
    // brace.
    let key = format!("\"{CHECKSUM}\":\"");
    let mut found = head.windows(key.len()).enumerate().filter(|(_, bytes)| *bytes == key.as_bytes());
    let (at, _) = found.next()?;
    let place = at + key.len()..at + key.len() + NO_CHECKSUM.len();
    (found.next().is_none() && place.end <= head.len()).then_some(place)
}

/// Replaces the checksum by zeros.
pub(super) fn without_checksum(head: &[u8]) -> Option<Vec<u8>> {
    let place = checksum_range(head)?;
    let mut head = head.to_owned();
    head[place].copy_from_slice(NO_CHECKSUM.as_bytes());
    Some(head)
}

/// The text form of a checksum.
pub(super) fn render_checksum(checksum: u64) -> String {
    format!("{checksum:016x}")
}

/// Parses the output of [`render_checksum`], and no other text.
pub(super) fn parse_checksum(text: &str) -> Option<u64> {
    let checksum = u64::from_str_radix(text, 16).ok()?;
    (render_checksum(checksum) == text).then_some(checksum)
}

/// The format's type for ours.
pub(super) fn saved_type(data_type: DataType) -> Dtype {
    match data_type {
        // A tensor always has a type.
        DataType::None | DataType::U8 => Dtype::U8,
        DataType::F16 => Dtype::F16,
        DataType::Bf16 => Dtype::BF16,
        DataType::F32 => Dtype::F32,
        DataType::F64 => Dtype::F64,
        DataType::I32 => Dtype::I32,
        DataType::I64 => Dtype::I64,
    }
}

/// Our name for the format's type.
pub(super) fn type_name(data_type: Dtype) -> String {
    data_type.to_string().to_lowercase()
}
