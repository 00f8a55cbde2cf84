//! Saving: first the parts, then the main file that completes the checkpoint.

use std::fs;
use std::path::Path;

use uuid::Uuid;

use super::agree::{agree_on_result, broadcast_bytes, rank_of_index};
use super::error::CheckpointError;
use super::file::{self, Checksum, Draft};
use super::header::{self, FileMetadata, TensorSpec, saved_type, type_name};
use super::names;
use super::sharding::{ShardFile, ShardedTensor, Sharding};
use super::state::{Placement, StateDict, Tensor};
use super::{Checkpoint, ROOT};
use crate::process_group::Group;

/// The row counts of all ranks.
#[derive(Debug)]
pub(super) struct RowCounts {
    /// For each rank, its rows of each tensor in the order of the state.
    by_rank: Vec<Vec<usize>>,
}

impl RowCounts {
    /// Rows of each tensor over all ranks.
    pub(super) fn total(&self) -> Vec<usize> {
        let tensors = self.by_rank.first().map_or(0, Vec::len);
        // A wrong count overflows to a sum that matches no file.
        (0..tensors)
            .map(|at| self.by_rank.iter().fold(0usize, |sum, row_counts| sum.saturating_add(row_counts[at])))
            .collect()
    }

    /// Rows of a tensor on lower ranks.
    pub(super) fn rows_before(&self, tensor: usize, own: usize) -> usize {
        self.by_rank[..own].iter().fold(0usize, |sum, row_counts| sum.saturating_add(row_counts[tensor]))
    }
}

/// Checks that all ranks save the same state, and gathers their row counts.
pub(super) fn compare_states(
    group: &mut Group,
    step: u64,
    state: &StateDict<'_>,
) -> Result<RowCounts, CheckpointError> {
    let checked = state.check().map_err(Into::into);
    let step = agree_on_result(
        group,
        checked.and_then(|()| i64::try_from(step).map_err(|_| CheckpointError::NoSuchStep { step })),
    )?;
    let own = [step, sharded_hash(state)];
    let all = group.all_gather(&own)?;
    let (pairs, _) = all.as_chunks::<2>();
    if let Some(other) = pairs.iter().position(|other| *other != pairs[0]) {
        let ([rank_0_step, _], [step, _]) = (pairs[0], pairs[other]);
        let rank = rank_of_index(other);
        return Err(if rank_0_step == step {
            CheckpointError::ShardsDiffer { rank }
        } else {
            CheckpointError::StepsDiffer {
                rank,
                step: step.cast_unsigned(),
                rank_0_step: rank_0_step.cast_unsigned(),
            }
        });
    }
    let row_counts: Vec<i64> =
        state.tensors_with_placement(Placement::Sharded).map(|tensor| tensor.rows() as i64).collect();
    let all = if row_counts.is_empty() { Vec::new() } else { group.all_gather(&row_counts)? };
    let of_rank = |row_counts: &[i64]| {
        row_counts.iter().map(|&row_counts| usize::try_from(row_counts).unwrap_or(usize::MAX)).collect()
    };
    Ok(RowCounts { by_rank: all.chunks(row_counts.len().max(1)).map(of_rank).collect() })
}

/// A hash of names, types and row shapes of the sharded tensors.
fn sharded_hash(state: &StateDict<'_>) -> i64 {
    let mut hash = Checksum::new();
    for tensor in state.tensors_with_placement(Placement::Sharded) {
        let Tensor { name, data_type, .. } = tensor;
        hash.add(format!("{name:?} {data_type} {:?};", tensor.row_shape()).as_bytes());
    }
    hash.finish().cast_signed()
}

impl Checkpoint {
    /// Saves the state after this step, in which all ranks have taken part. Returns when it is on disk: the
    /// next generation of workers then continues from here. All ranks wait for that, and fail together.
    ///
    /// The latest [`keep`](super::CheckpointOptions::keep) checkpoints stay, earlier ones are removed.
    ///
    /// # Errors
    /// A file cannot be written on some rank, which leaves earlier checkpoints unchanged; a rank is lost;
    /// or the ranks save different states.
    pub fn save(&mut self, step: u64, state: &StateDict<'_>) -> Result<(), CheckpointError> {
        let _span = tracing::debug_span!("checkpoint_save", rank = self.group.rank().0, step).entered();
        let row_counts = compare_states(&mut self.group, step, state)?;
        if self.group.rank() == ROOT {
            // First of all, since leftovers may be what fills the disk.
            self.remove_abandoned();
        }
        let sharding = self.save_parts(step, state, &row_counts)?;
        let id = sharding.as_ref().map(|sharding| sharding.id);
        let about = FileMetadata {
            step,
            world_size: self.group.world_size().get(),
            sharding,
            metadata: state.metadata.clone(),
        };
        let is_root = self.group.rank() == ROOT;
        let written = if is_root {
            let tensors: Vec<_> = state.tensors_with_placement(Placement::Replicated).collect();
            write_file(&self.folder, &names::main_file_name(step), &about, &tensors).map(drop)
        } else {
            Ok(())
        };
        let written = agree_on_result(&mut self.group, written);
        match (&written, id) {
            // The part is kept: it may belong to a complete checkpoint on another rank.
            (Ok(()) | Err(CheckpointError::Group(_)), _) | (_, None) => {}
            (Err(_), Some(id)) => self.remove(&[self.own_part_name(step, id)]),
        }
        written?;
        if is_root {
            self.remove_leftovers(step, id);
            tracing::debug!(folder = %self.folder.display(), "saved");
        }
        Ok(())
    }

    /// Writes this rank's part of the sharded tensors.
    fn save_parts(
        &mut self,
        step: u64,
        state: &StateDict<'_>,
        row_counts: &RowCounts,
    ) -> Result<Option<Sharding>, CheckpointError> {
        let tensors: Vec<_> = state.tensors_with_placement(Placement::Sharded).collect();
        if tensors.is_empty() {
            return Ok(None);
        }
        let id =
            broadcast_bytes(&mut self.group, Uuid::new_v4().as_u64_pair().0.to_le_bytes().to_vec(), ROOT)?;
        let id = id.first_chunk().map(|id| u64::from_le_bytes(*id));
        let id = id.ok_or(CheckpointError::Strange { rank: ROOT })?;
        let name = self.own_part_name(step, id);
        let world_size = self.group.world_size().get();
        let about = FileMetadata { step, world_size, sharding: None, metadata: [].into() };
        let written = write_file(&self.folder, &name, &about, &tensors);
        let written = agree_on_result(&mut self.group, written).inspect_err(|_| self.remove(&[name]))?;
        let checksums = self.group.all_gather(&[written.cast_signed()])?;
        let whole = |(tensor, total): (&&Tensor<'_>, usize)| ShardedTensor {
            name: tensor.name.clone(),
            data_type: type_name(saved_type(tensor.data_type)),
            shape: [&[total], tensor.row_shape()].concat(),
        };
        let part = |(&checksum, row_counts): (&i64, &Vec<usize>)| ShardFile {
            checksum: checksum.cast_unsigned(),
            rows: row_counts.clone(),
        };
        Ok(Some(Sharding {
            id,
            tensors: tensors.iter().zip(row_counts.total()).map(whole).collect(),
            parts: checksums.iter().zip(&row_counts.by_rank).map(part).collect(),
        }))
    }

    fn own_part_name(&self, step: u64, id: u64) -> String {
        names::part_file_name(step, id, self.group.rank().index(), self.group.world_size().get() as usize)
    }

    fn remove_abandoned(&self) {
        let names = file::list(&self.folder).unwrap_or_default();
        let gone: Vec<_> = names::abandoned_files(&names).map(str::to_owned).collect();
        self.remove(&gone);
    }

    fn remove_leftovers(&self, step: u64, id: Option<u64>) {
        let names = file::list(&self.folder).unwrap_or_default();
        let gone: Vec<_> =
            names::outdated_files(&names, (step, id), self.keep.get()).map(str::to_owned).collect();
        self.remove(&gone);
    }

    /// Removes files; the next save tries again.
    fn remove(&self, names: &[String]) {
        for name in names {
            let path = self.folder.join(name);
            if let Err(error) = fs::remove_file(&path) {
                tracing::debug!(path = %path.display(), %error, "cannot be removed");
            }
        }
    }
}

/// Writes tensors to a file; returns its checksum.
fn write_file(
    folder: &Path,
    name: &str,
    about: &FileMetadata,
    tensors: &[&Tensor<'_>],
) -> Result<u64, CheckpointError> {
    let mut tensors = tensors.to_vec();
    // Large elements first, as in the crate, so that each is aligned.
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.data_type.size()));
    let plan = |tensor: &&Tensor<'_>| {
        let Tensor { name, shape, data_type, bytes, .. } = *tensor;
        header::TensorSpec {
            name: name.clone(),
            data_type: *data_type,
            shape: shape.clone(),
            bytes: bytes.len(),
        }
    };
    let plans: Vec<TensorSpec> = tensors.iter().map(plan).collect();
    let data: Vec<&[u8]> = tensors.iter().map(|tensor| &*tensor.bytes).collect();
    let draft = Draft { folder, name, head: header::render(about, plans), data: &data };
    let mark = Uuid::new_v4().as_u64_pair().0;
    draft.write(mark).map_err(|(path, source)| CheckpointError::Write { path, step: about.step, source })
}
