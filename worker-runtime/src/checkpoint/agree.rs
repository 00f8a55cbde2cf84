//! Makes all ranks continue together, or fail together with the first error.

use std::error::Error;

use rankrun_contract::rank::Rank;

use super::error::CheckpointError;
use super::header::MAX_LENGTH;
use crate::process_group::Group;

/// The value of this rank if every rank has one; else its own error, or that of the first rank that failed.
pub(super) fn agree_on_result<T>(
    group: &mut Group,
    own: Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    let failed = group.all_gather(&[u8::from(own.is_err())])?;
    let Some(first) = failed.iter().position(|&failed| failed != 0) else { return own };
    let rank = rank_of_index(first);
    let reason = own.as_ref().err().map(with_causes).unwrap_or_default();
    let reason = broadcast_bytes(group, reason.into_bytes(), rank)?;
    own.and_then(|_| {
        Err(CheckpointError::OnRank { rank, reason: String::from_utf8_lossy(&reason).into_owned() })
    })
}

/// Sends the bytes of one rank to all ranks.
pub(super) fn broadcast_bytes(
    group: &mut Group,
    bytes: Vec<u8>,
    root: Rank,
) -> Result<Vec<u8>, CheckpointError> {
    let mut length = [bytes.len() as i64];
    group.broadcast(&mut length, root)?;
    // The length is checked before memory is allocated for it.
    let length = usize::try_from(length[0]).ok().filter(|&length| length as u64 <= MAX_LENGTH);
    let mut shared = vec![0; length.ok_or(CheckpointError::Strange { rank: root })?];
    if group.rank() == root {
        shared.copy_from_slice(&bytes);
    }
    group.broadcast(&mut shared, root)?;
    Ok(shared)
}

/// A rank by its index in gathered data.
pub(super) fn rank_of_index(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}

fn with_causes(error: &CheckpointError) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
