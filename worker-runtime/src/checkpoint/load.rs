//! Loading: all ranks agree on the newest usable checkpoint before any memory is changed.

use std::ops::Range;
use std::path::PathBuf;

use rankrun_contract::rank::Rank;

use super::agree::{agree_on_result, broadcast_bytes, rank_of_index};
use super::compare;
use super::error::{CheckpointError, SkippedCheckpoint};
use super::file::{self, FileError, Identity, OpenFile};
use super::header::{FileHeader, SavedTensor};
use super::names;
use super::save::{RowCounts, compare_states};
use super::sharding::{RowRange, Sharding};
use super::state::{Placement, StateDict, Tensor};
use super::{Checkpoint, Loaded, ROOT};
use crate::report;

/// Sent by a rank that has no checkpoint to offer.
const NO_STEP: i64 = -1;

/// A checkpoint that all ranks have verified.
struct VerifiedCheckpoint {
    step: u64,
    header: FileHeader,
    /// The rank that reads the replicated tensors.
    source: Rank,
    /// The main file, on that rank only.
    main: Option<OpenFile>,
    /// The parts with rows for this rank, with their numbers.
    parts: Vec<(usize, OpenFile)>,
}

impl Checkpoint {
    /// Fills the state from the newest usable checkpoint. Returns `None` and leaves the state
    /// unchanged if the folder has none.
    ///
    /// All ranks load the same one. A torn, damaged or foreign file is skipped, listed in
    /// [`Loaded::refused`], and reported by rank 0 on standard error under [`run`](crate::run) and
    /// [`run_elastic`](crate::run_elastic). The first rank that has the file reads the replicated tensors and
    /// sends them to the others, so that a checkpoint is found on any node after a membership change. Sharded
    /// tensors need a folder that all ranks see.
    ///
    /// # Errors
    /// All checkpoints are unusable; the newest usable one belongs to another model; or a rank is lost. The
    /// state is unchanged, unless reading fails half-way.
    pub fn load_latest(&mut self, state: &mut StateDict<'_>) -> Result<Option<Loaded>, CheckpointError> {
        let _span = tracing::debug_span!("checkpoint_load", rank = self.group.rank().0).entered();
        let row_counts = compare_states(&mut self.group, 0, state)?;
        let names = file::list(&self.folder);
        let names = names.map_err(|source| CheckpointError::Folder { path: self.folder.clone(), source });
        let names = agree_on_result(&mut self.group, names)?;
        let mut steps: Vec<u64> = names.iter().filter_map(|name| names::parse_step(name)).collect();
        steps.sort_unstable();
        let mut refused = Vec::new();
        let found = loop {
            let Some((step, source)) = self.newest_step(&steps)? else {
                return if refused.is_empty() {
                    Ok(None)
                } else {
                    Err(CheckpointError::NoneUsable { folder: self.folder.clone(), refused })
                };
            };
            match self.inspect(step, source, state, &row_counts)? {
                Ok(found) => break found,
                Err(refusal) => {
                    // A rank that sees the same file need not open it again. Not all ranks have one of this
                    // step.
                    if refusal.is_mine && steps.last() == Some(&step) {
                        steps.pop();
                    }
                    let checkpoint = SkippedCheckpoint {
                        path: self.folder.join(names::main_file_name(step)),
                        reason: refusal.reason,
                    };
                    tracing::warn!(path = %checkpoint.path.display(), reason = checkpoint.reason, "refused a checkpoint");
                    refused.push(checkpoint);
                }
            }
        };
        let FileHeader { about, .. } = &found.header;
        let (metadata, world_size) = (about.metadata.clone(), about.world_size);
        let step = found.step;
        self.fill_state(found, state, &row_counts)?;
        tracing::debug!(step, "loaded");
        if self.group.rank() == ROOT && !refused.is_empty() {
            report::warn(&skipped_notice(&refused, step));
        }
        Ok(Some(Loaded { step, metadata, world_size, refused }))
    }

    /// The newest step that any rank offers, and the first rank that does.
    fn newest_step(&mut self, steps: &[u64]) -> Result<Option<(u64, Rank)>, CheckpointError> {
        let own = steps.last().map_or(NO_STEP, |step| step.cast_signed());
        let all = self.group.all_gather(&[own])?;
        let newest = all.iter().copied().max().unwrap_or(NO_STEP);
        let source = all.iter().position(|&step| step == newest).unwrap_or_default();
        Ok(u64::try_from(newest).ok().map(|step| (step, rank_of_index(source))))
    }

    /// Verifies a checkpoint on all ranks: the source its main file, each rank the parts that it needs.
    fn inspect(
        &mut self,
        step: u64,
        source: Rank,
        state: &StateDict<'_>,
        row_counts: &RowCounts,
    ) -> Result<Result<VerifiedCheckpoint, Refusal>, CheckpointError> {
        let path = self.folder.join(names::main_file_name(step));
        let is_source = self.group.rank() == source;
        let main = is_source.then(|| open_main(&path, step));
        let mut answer = [0; 3];
        if let Some(opened) = &main {
            let [length, time] = file::identity(&path);
            answer = [i64::from(opened.is_ok()), length, time];
        }
        self.group.broadcast(&mut answer, source)?;
        let identity: Identity = [answer[1], answer[2]];
        let bytes = match &main {
            Some(Ok(opened)) => opened.json.clone(),
            Some(Err(error)) => error.to_string().into_bytes(),
            None => Vec::new(),
        };
        let bytes = broadcast_bytes(&mut self.group, bytes, source)?;
        if answer[0] == 0 {
            let is_mine = is_source || file::identity(&path) == identity;
            return Ok(Err(Refusal { is_mine, reason: String::from_utf8_lossy(&bytes).into_owned() }));
        }
        let header = FileHeader::parse(&bytes).map_err(|_| CheckpointError::Strange { rank: source });
        let header =
            header.and_then(|header| match compare::find_difference(state, &row_counts.total(), &header) {
                Some(difference) => Err(CheckpointError::OtherModel { path, difference }),
                None => Ok(header),
            });
        let header = agree_on_result(&mut self.group, header)?;
        let parts = self.open_parts(step, &header, state, row_counts);
        let parts = match self.agree_on_parts(parts)? {
            Ok(parts) => parts,
            // No rank can load it, whichever rank offers the main file.
            Err(reason) => return Ok(Err(Refusal { is_mine: true, reason })),
        };
        Ok(Ok(VerifiedCheckpoint { step, header, source, main: main.and_then(Result::ok), parts }))
    }

    /// The parts if every rank has its own, else the error of the first rank without.
    fn agree_on_parts<T>(&mut self, own: Result<T, FileError>) -> Result<Result<T, String>, CheckpointError> {
        let failed = self.group.all_gather(&[u8::from(own.is_err())])?;
        let Some(first) = failed.iter().position(|&failed| failed != 0) else {
            return Ok(own.map_err(|error| error.to_string()));
        };
        let reason = own.err().map(|error| error.to_string()).unwrap_or_default();
        let reason = broadcast_bytes(&mut self.group, reason.into_bytes(), rank_of_index(first))?;
        Ok(Err(String::from_utf8_lossy(&reason).into_owned()))
    }

    /// Opens the parts with rows for this rank.
    fn open_parts(
        &self,
        step: u64,
        header: &FileHeader,
        state: &StateDict<'_>,
        row_counts: &RowCounts,
    ) -> Result<Vec<(usize, OpenFile)>, FileError> {
        let Some(sharding) = &header.about.sharding else { return Ok(Vec::new()) };
        let mut needed: Vec<usize> = Vec::new();
        for (at, tensor) in state.tensors_with_placement(Placement::Sharded).enumerate() {
            let wanted = self.wanted_rows(at, tensor, row_counts);
            let pieces = saved_index(sharding, tensor).map(|saved| sharding.row_ranges(saved, &wanted));
            needed.extend(pieces.into_iter().flatten().map(|piece| piece.part));
        }
        needed.sort_unstable();
        needed.dedup();
        let parts = sharding.parts.len();
        let open = |part: usize| {
            let path = self.folder.join(names::part_file_name(step, sharding.id, part, parts));
            let opened = OpenFile::open_verified(&path).and_then(|opened| {
                let is_ours = opened.header.checksum == sharding.parts[part].checksum;
                if is_ours { Ok((part, opened)) } else { Err(FileError::WrongPart) }
            });
            opened.map_err(|cause| FileError::Part { part, parts, cause: Box::new(cause) })
        };
        needed.into_iter().map(open).collect()
    }

    /// The rows of a sharded tensor that this rank has, counted over all ranks.
    fn wanted_rows(&self, at: usize, tensor: &Tensor<'_>, row_counts: &RowCounts) -> Range<usize> {
        let first = row_counts.rows_before(at, self.group.rank().index());
        first..first.saturating_add(tensor.rows())
    }

    /// Fills the state from a verified checkpoint.
    fn fill_state(
        &mut self,
        mut found: VerifiedCheckpoint,
        state: &mut StateDict<'_>,
        row_counts: &RowCounts,
    ) -> Result<(), CheckpointError> {
        let read = self.read_state(&mut found, state, row_counts);
        let read = read.map_err(|(path, source)| CheckpointError::Read { path, source });
        agree_on_result(&mut self.group, read)?;
        // By name: the order may differ between ranks, as in a hash map.
        let mut tensors: Vec<_> = state.tensors_with_placement_mut(Placement::Replicated).collect();
        tensors.sort_by(|one, other| one.name.cmp(&other.name));
        for tensor in tensors {
            self.group.broadcast(tensor.bytes, found.source)?;
        }
        Ok(())
    }

    fn read_state(
        &self,
        found: &mut VerifiedCheckpoint,
        state: &mut StateDict<'_>,
        row_counts: &RowCounts,
    ) -> Result<(), file::FileFailure> {
        if let Some(main) = &mut found.main {
            for tensor in state.tensors_with_placement_mut(Placement::Replicated) {
                read_rows(main, tensor, 0, 0..tensor.bytes.len())?;
            }
        }
        let Some(sharding) = &found.header.about.sharding else { return Ok(()) };
        for (at, tensor) in state.tensors_with_placement_mut(Placement::Sharded).enumerate() {
            let wanted = self.wanted_rows(at, tensor, row_counts);
            let row_bytes = tensor.bytes.len().checked_div(tensor.rows()).unwrap_or(0);
            for RowRange { part, from, to } in saved_index(sharding, tensor)
                .map(|saved| sharding.row_ranges(saved, &wanted))
                .unwrap_or_default()
            {
                let Some((_, opened)) = found.parts.iter_mut().find(|(number, _)| *number == part) else {
                    continue;
                };
                let place = to * row_bytes..(to + from.len()) * row_bytes;
                read_rows(opened, tensor, from.start * row_bytes, place)?;
            }
        }
        Ok(())
    }
}

/// The warning about skipped checkpoints.
fn skipped_notice(refused: &[SkippedCheckpoint], step: u64) -> String {
    let lines = refused.iter().map(|refused| format!("skipped the checkpoint {refused}\n"));
    format!("{}the training goes on from the checkpoint of step {step}", lines.collect::<String>())
}

/// Why all ranks skip this checkpoint.
struct Refusal {
    /// Whether this rank would offer the same file again.
    is_mine: bool,
    reason: String,
}

fn open_main(path: &std::path::Path, step: u64) -> Result<OpenFile, FileError> {
    let opened = OpenFile::open_verified(path)?;
    let saved_step = opened.header.about.step;
    if saved_step == step { Ok(opened) } else { Err(FileError::Step(saved_step)) }
}

/// Index of a tensor of the state among the sharded tensors of a checkpoint.
fn saved_index(sharding: &Sharding, tensor: &Tensor<'_>) -> Option<usize> {
    sharding.tensors.iter().position(|whole| whole.name == tensor.name)
}

/// Fills a range of a tensor from the file, after `skipped` bytes.
fn read_rows(
    file: &mut OpenFile,
    tensor: &mut Tensor<'_>,
    skipped: usize,
    place: Range<usize>,
) -> Result<(), file::FileFailure> {
    let path: PathBuf = file.path.clone();
    let failed = |source| (path.clone(), source);
    let absent = || failed(std::io::Error::other(format!("it has no such rows of `{}`", tensor.name)));
    let SavedTensor { bytes: (start, end), .. } =
        *file.header.tensors.get(&tensor.name).ok_or_else(absent)?;
    if start + skipped + place.len() > end {
        return Err(absent());
    }
    file.read(start + skipped, &mut tensor.bytes[place]).map_err(failed)
}
