//! Saving: the parts first, then the file that makes them a checkpoint.

use std::fs;
use std::path::Path;

use uuid::Uuid;

use super::agree::{all_or_none, rank, share};
use super::error::CheckpointError;
use super::file::{self, Checksum, Draft};
use super::header::{self, About, Plan, saved_type, type_name};
use super::names;
use super::sharding::{Part, Sharding, Whole};
use super::state::{Held, State, Tensor};
use super::{Checkpoint, ROOT};
use crate::process_group::Group;

/// What all ranks have of the sharded tensors.
#[derive(Debug)]
pub(super) struct Rows {
    /// For each rank, how many rows of each tensor in the order of the state.
    of_ranks: Vec<Vec<usize>>,
}

impl Rows {
    /// How many rows of each tensor all ranks have together.
    pub(super) fn total(&self) -> Vec<usize> {
        let tensors = self.of_ranks.first().map_or(0, Vec::len);
        // A rank that lies about its memory makes a sum that fits nothing.
        (0..tensors)
            .map(|at| self.of_ranks.iter().fold(0usize, |sum, rows| sum.saturating_add(rows[at])))
            .collect()
    }

    /// How many rows of a tensor the ranks before this one have.
    pub(super) fn before(&self, tensor: usize, own: usize) -> usize {
        self.of_ranks[..own].iter().fold(0usize, |sum, rows| sum.saturating_add(rows[tensor]))
    }
}

/// Looks whether all ranks mean the same, and hears what each has.
pub(super) fn meet(group: &mut Group, step: u64, state: &State<'_>) -> Result<Rows, CheckpointError> {
    let checked = state.check().map_err(Into::into);
    let step = all_or_none(
        group,
        checked.and_then(|()| i64::try_from(step).map_err(|_| CheckpointError::NoSuchStep { step })),
    )?;
    let own = [step, sharded_hash(state)];
    let all = group.all_gather(&own)?;
    let (said, _) = all.as_chunks::<2>();
    if let Some(other) = said.iter().position(|other| *other != said[0]) {
        let ([ours, _], [theirs, _]) = (said[0], said[other]);
        let rank = rank(other);
        return Err(if ours == theirs {
            CheckpointError::ShardsDiffer { rank }
        } else {
            CheckpointError::StepsDiffer { rank, theirs: theirs.cast_unsigned(), ours: ours.cast_unsigned() }
        });
    }
    let rows: Vec<i64> = state.held(Held::Sharded).map(|tensor| tensor.rows() as i64).collect();
    let all = if rows.is_empty() { Vec::new() } else { group.all_gather(&rows)? };
    let of_rank =
        |rows: &[i64]| rows.iter().map(|&rows| usize::try_from(rows).unwrap_or(usize::MAX)).collect();
    Ok(Rows { of_ranks: all.chunks(rows.len().max(1)).map(of_rank).collect() })
}

/// Tells apart states whose sharded tensors are not the same ones.
fn sharded_hash(state: &State<'_>) -> i64 {
    let mut hash = Checksum::new();
    for tensor in state.held(Held::Sharded) {
        let Tensor { name, data_type, .. } = tensor;
        hash.add(format!("{name:?} {data_type} {:?};", tensor.row_shape()).as_bytes());
    }
    hash.finish().cast_signed()
}

impl Checkpoint {
    /// Keeps the state of this step, of which all ranks have taken part in, and returns when it is on disk: then the next life of the
    /// workers goes on from here, whatever happens. All ranks wait for that, and fail together.
    ///
    /// The last [`keep`](super::CheckpointOptions::keep) checkpoints stay, earlier ones are removed.
    ///
    /// # Errors
    /// A file cannot be written, on any rank: the checkpoints that were there stay as they are. A rank is lost, or the ranks do not
    /// mean the same.
    pub fn save(&mut self, step: u64, state: &State<'_>) -> Result<(), CheckpointError> {
        let _span = tracing::debug_span!("checkpoint_save", rank = self.group.rank().0, step).entered();
        let rows = meet(&mut self.group, step, state)?;
        if self.group.rank() == ROOT {
            // Before anything is written, and before the others write: it may be what fills the disk.
            self.remove_abandoned();
        }
        let sharding = self.save_parts(step, state, &rows)?;
        let id = sharding.as_ref().map(|sharding| sharding.id);
        let about = About {
            step,
            world_size: self.group.world_size().get(),
            sharding,
            metadata: state.metadata.clone(),
        };
        let is_root = self.group.rank() == ROOT;
        let written = if is_root {
            let tensors: Vec<_> = state.held(Held::Replicated).collect();
            write(&self.folder, &names::main(step), &about, &tensors).map(drop)
        } else {
            Ok(())
        };
        let written = all_or_none(&mut self.group, written);
        match (&written, id) {
            // Whether the others have all they need is not known: the part may belong to a checkpoint.
            (Ok(()) | Err(CheckpointError::Group(_)), _) | (_, None) => {}
            (Err(_), Some(id)) => self.remove(&[self.own_part(step, id)]),
        }
        written?;
        if is_root {
            self.remove_leftovers(step, id);
            tracing::debug!(folder = %self.folder.display(), "saved");
        }
        Ok(())
    }

    /// Each rank's own part of the sharded tensors.
    fn save_parts(
        &mut self,
        step: u64,
        state: &State<'_>,
        rows: &Rows,
    ) -> Result<Option<Sharding>, CheckpointError> {
        let tensors: Vec<_> = state.held(Held::Sharded).collect();
        if tensors.is_empty() {
            return Ok(None);
        }
        let id = share(&mut self.group, Uuid::new_v4().as_u64_pair().0.to_le_bytes().to_vec(), ROOT)?;
        let id = id.first_chunk().map(|id| u64::from_le_bytes(*id));
        let id = id.ok_or(CheckpointError::Strange { rank: ROOT })?;
        let name = self.own_part(step, id);
        let world_size = self.group.world_size().get();
        let about = About { step, world_size, sharding: None, metadata: [].into() };
        let written = write(&self.folder, &name, &about, &tensors);
        let written = all_or_none(&mut self.group, written).inspect_err(|_| self.remove(&[name]))?;
        let checksums = self.group.all_gather(&[written.cast_signed()])?;
        let whole = |(tensor, total): (&&Tensor<'_>, usize)| Whole {
            name: tensor.name.clone(),
            data_type: type_name(saved_type(tensor.data_type)),
            shape: [&[total], tensor.row_shape()].concat(),
        };
        let part = |(&checksum, rows): (&i64, &Vec<usize>)| Part {
            checksum: checksum.cast_unsigned(),
            rows: rows.clone(),
        };
        Ok(Some(Sharding {
            id,
            tensors: tensors.iter().zip(rows.total()).map(whole).collect(),
            parts: checksums.iter().zip(&rows.of_ranks).map(part).collect(),
        }))
    }

    fn own_part(&self, step: u64, id: u64) -> String {
        names::part(step, id, self.group.rank().index(), self.group.world_size().get() as usize)
    }

    fn remove_abandoned(&self) {
        let names = file::list(&self.folder).unwrap_or_default();
        let gone: Vec<_> = names::abandoned(&names).map(str::to_owned).collect();
        self.remove(&gone);
    }

    fn remove_leftovers(&self, step: u64, id: Option<u64>) {
        let names = file::list(&self.folder).unwrap_or_default();
        let gone: Vec<_> = names::leftovers(&names, (step, id), self.keep.get()).map(str::to_owned).collect();
        self.remove(&gone);
    }

    /// What cannot be removed is only litter; the next save tries again.
    fn remove(&self, names: &[String]) {
        for name in names {
            let path = self.folder.join(name);
            if let Err(error) = fs::remove_file(&path) {
                tracing::debug!(path = %path.display(), %error, "cannot be removed");
            }
        }
    }
}

/// Writes tensors as a file; its checksum.
fn write(folder: &Path, name: &str, about: &About, tensors: &[&Tensor<'_>]) -> Result<u64, CheckpointError> {
    let mut tensors = tensors.to_vec();
    // Large elements first, so that each lies at a multiple of its size; so does the crate.
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.data_type.size()));
    let plan = |tensor: &&Tensor<'_>| {
        let Tensor { name, shape, data_type, bytes, .. } = *tensor;
        header::Plan { name: name.clone(), data_type: *data_type, shape: shape.clone(), bytes: bytes.len() }
    };
    let plans: Vec<Plan> = tensors.iter().map(plan).collect();
    let data: Vec<&[u8]> = tensors.iter().map(|tensor| &*tensor.bytes).collect();
    let draft = Draft { folder, name, head: header::render(about, plans), data: &data };
    let mark = Uuid::new_v4().as_u64_pair().0;
    draft.write(mark).map_err(|(path, source)| CheckpointError::Write { path, step: about.step, source })
}
