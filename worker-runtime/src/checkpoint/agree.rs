//! How the ranks come to the same end: all go on, or all fail of the first one's error.

use std::error::Error;

use rankrun_contract::rank::Rank;

use super::error::CheckpointError;
use super::header::MAX_LENGTH;
use crate::process_group::Group;

/// What this rank has, once all ranks have something; otherwise its own error, or the word of the first rank that failed.
pub(super) fn all_or_none<T>(
    group: &mut Group,
    own: Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    let failed = group.all_gather(&[u8::from(own.is_err())])?;
    let Some(first) = failed.iter().position(|&failed| failed != 0) else { return own };
    let rank = rank(first);
    let words = own.as_ref().err().map(with_causes).unwrap_or_default();
    let words = share(group, words.into_bytes(), rank)?;
    own.and_then(|_| {
        Err(CheckpointError::OnRank { rank, reason: String::from_utf8_lossy(&words).into_owned() })
    })
}

/// The bytes of one rank, on all ranks.
pub(super) fn share(group: &mut Group, bytes: Vec<u8>, root: Rank) -> Result<Vec<u8>, CheckpointError> {
    let mut length = [bytes.len() as i64];
    group.broadcast(&mut length, root)?;
    // What it says is not believed before memory is taken for it.
    let length = usize::try_from(length[0]).ok().filter(|&length| length as u64 <= MAX_LENGTH);
    let mut shared = vec![0; length.ok_or(CheckpointError::Strange { rank: root })?];
    if group.rank() == root {
        shared.copy_from_slice(&bytes);
    }
    group.broadcast(&mut shared, root)?;
    Ok(shared)
}

/// A rank by its place in what was gathered.
pub(super) fn rank(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}

fn with_causes(error: &CheckpointError) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"))
}
