//! The state of a training on disk, from which the next life of its workers goes on.
//!
//! A checkpoint is a [safetensors](https://huggingface.co/docs/safetensors) file, `step-0000000040.safetensors`, which other programs
//! read too. It appears whole or not at all: it is written beside its place, and gets its name when the disk has it. A checksum over
//! all of it tells later whether it still is what was written. Tensors of which each rank has a part lie in files of their own
//! beside it, and belong to the checkpoint only once it names them; so a rank that dies while it saves costs nothing but this save.
//!
//! Nothing of a file is believed before its checksum: lengths are compared with the file's own before memory is taken.

mod agree;
mod compare;
mod error;
mod file;
mod header;
mod load;
mod names;
mod save;
mod sharding;
mod state;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use rankrun_contract::rank::Rank;

pub use compare::Difference;
pub use error::{CheckpointError, Refused};
pub use state::{State, StateError};

use crate::context::WorkerContext;
use crate::process_group::{Group, GroupOptions, Wish};

/// The rank that writes what all ranks have, and removes what is old.
const ROOT: Rank = Rank(0);

/// How many checkpoints are kept unless said.
const KEEP: NonZeroUsize = NonZeroUsize::new(3).expect("three is more than none");

/// Where checkpoints are kept, and how.
#[derive(Debug, Clone)]
pub struct CheckpointOptions {
    /// Their folder, which is made if it is not there. Nothing but the checkpoints of one training should be in it. With several
    /// nodes it lies where all of them see it, if the state has sharded tensors; otherwise it need not.
    pub folder: PathBuf,
    /// How many stay: one that turns out to be damaged is replaced by the one before it. 3 unless said.
    pub keep: NonZeroUsize,
    /// The group in which ranks agree. A call may take as long as the slowest rank writes.
    pub group: GroupOptions,
}

impl CheckpointOptions {
    /// The last three in this folder.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let group = GroupOptions { name: "checkpoint".to_owned(), ..GroupOptions::default() };
        Self { folder: folder.into(), keep: KEEP, group }
    }
}

/// The checkpoints of a training. All ranks make the same calls.
///
/// ```no_run
/// use rankrun_worker::checkpoint::{Checkpoint, CheckpointError, CheckpointOptions, State};
/// use rankrun_worker::WorkerContext;
///
/// fn state(weights: &mut [f32]) -> State<'_> {
///     State::new().replicated("weights", &[1000], weights)
/// }
///
/// fn train(context: &WorkerContext) -> Result<(), CheckpointError> {
///     let mut weights = vec![0.0f32; 1000];
///     let mut checkpoint = Checkpoint::open(context, &CheckpointOptions::new("/shared/run-7"))?;
///     let loaded = checkpoint.load_latest(&mut state(&mut weights))?;
///     for step in loaded.map_or(0, |loaded| loaded.step)..200 {
///         // … a step of the training …
///         if (step + 1) % 20 == 0 {
///             checkpoint.save(step + 1, &state(&mut weights))?;
///         }
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    keep: NonZeroUsize,
    group: Group,
}

/// From where a training goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// As many steps were taken.
    pub step: u64,
    /// What [`State::metadata`] said when it was saved.
    pub metadata: BTreeMap<String, String>,
    /// How many ranks there were when it was saved.
    pub world_size: u32,
    /// Newer checkpoints that could not be used, the newest first.
    pub refused: Vec<Refused>,
}

impl Checkpoint {
    /// Looks after the checkpoints in a folder, in a group of its own: what the training does meanwhile, on whatever device, is
    /// independent of it.
    ///
    /// # Errors
    /// Rank 0 cannot write the folder, which is better known now than at the first save; a rank is lost.
    pub fn open(context: &WorkerContext, options: &CheckpointOptions) -> Result<Self, CheckpointError> {
        let mut group = options.group.clone();
        // What is saved lies in memory of the host, whatever carries the gradients.
        if group.backend.is_none() && context.backend() == Some(Wish::Nccl) {
            group.backend = Some(Wish::Auto);
        }
        Self::with_group(context.process_group(&group)?, options)
    }

    /// As [`open`](Self::open), in this group: that of a test, or a sub-group.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_group(mut group: Group, options: &CheckpointOptions) -> Result<Self, CheckpointError> {
        let CheckpointOptions { folder, keep, .. } = options;
        let ready = if group.rank() == ROOT { make_ready(folder) } else { Ok(()) };
        agree::all_or_none(&mut group, ready)?;
        Ok(Self { folder: folder.clone(), keep: *keep, group })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Makes the folder, and looks whether files can be made in it.
fn make_ready(folder: &Path) -> Result<(), CheckpointError> {
    let ready = || {
        fs::create_dir_all(folder).map_err(|error| match fs::metadata(folder) {
            Ok(found) if !found.is_dir() => io::Error::from(ErrorKind::NotADirectory),
            _ => error,
        })?;
        // Also of a file system that is mounted read-only.
        access(folder, AccessFlags::W_OK | AccessFlags::X_OK)?;
        // Its own name should last, too; who may not read the folder above it has none that is new.
        let above = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        drop(above.map(file::sync_folder));
        Ok(())
    };
    ready().map_err(|source| CheckpointError::Folder { path: folder.to_owned(), source })
}

#[cfg(test)]
mod tests;
