//! The state of a training on disk, from which the next generation of workers continues.
//!
//! A checkpoint is a [safetensors](https://huggingface.co/docs/safetensors) file,
//! `step-0000000040.safetensors`, which other programs can read. It is written to a temporary file and
//! renamed once it is on disk, and a checksum over all bytes verifies it later. Sharded tensors lie in files
//! of their own and belong to the checkpoint once its main file names them, so that a rank that dies during
//! a save costs only this save.
//!
//! Files are not trusted before their checksum is verified: lengths are compared with that of
//! the file before memory is allocated.

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
pub use error::{CheckpointError, SkippedCheckpoint};
pub use state::{StateDict, StateError};

use crate::context::WorkerContext;
use crate::process_group::{BackendChoice, Group, GroupOptions};

/// The rank that writes replicated tensors and removes old checkpoints.
const ROOT: Rank = Rank(0);

/// Default number of kept checkpoints.
const KEEP: NonZeroUsize = NonZeroUsize::new(3).expect("three is more than none");

/// Options of the checkpoints of a training.
#[derive(Debug, Clone)]
pub struct CheckpointOptions {
    /// The folder, created if necessary, for the checkpoints of one training only. With several nodes and
    /// sharded tensors all nodes must see it.
    pub folder: PathBuf,
    /// Number of kept checkpoints, 3 by default: if one is damaged, the one before it is loaded.
    pub keep: NonZeroUsize,
    /// Options of the group in which ranks agree. A call takes as long as the slowest rank writes.
    pub group: GroupOptions,
}

impl CheckpointOptions {
    /// Keeps the latest three checkpoints in this folder.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let group = GroupOptions { name: "checkpoint".to_owned(), ..GroupOptions::default() };
        Self { folder: folder.into(), keep: KEEP, group }
    }
}

/// The checkpoints of a training. All ranks make the same calls.
///
/// ```no_run
/// use rankrun_worker::checkpoint::{Checkpoint, CheckpointError, CheckpointOptions, StateDict};
/// use rankrun_worker::WorkerContext;
///
/// fn state(weights: &mut [f32]) -> StateDict<'_> {
///     StateDict::new().replicated("weights", &[1000], weights)
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

/// The result of a successful load.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// Number of completed steps.
    pub step: u64,
    /// The saved texts of [`StateDict::with_metadata`].
    pub metadata: BTreeMap<String, String>,
    /// Number of ranks at the time of the save.
    pub world_size: u32,
    /// Newer checkpoints that were skipped, newest first.
    pub refused: Vec<SkippedCheckpoint>,
}

impl Checkpoint {
    /// Opens the folder, with a group of its own: independent of the calls of the training, on any device.
    ///
    /// # Errors
    /// Rank 0 cannot write to the folder, which is checked here and not at the first save; or a rank is lost.
    pub fn open(context: &WorkerContext, options: &CheckpointOptions) -> Result<Self, CheckpointError> {
        let mut group = options.group.clone();
        // The state lies in host memory, whatever backend carries the gradients.
        if group.backend.is_none() && context.backend() == Some(BackendChoice::Nccl) {
            group.backend = Some(BackendChoice::Auto);
        }
        Self::with_group(context.process_group(&group)?, options)
    }

    /// As [`open`](Self::open), in a given group, such as a test's or a sub-group.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_group(mut group: Group, options: &CheckpointOptions) -> Result<Self, CheckpointError> {
        let CheckpointOptions { folder, keep, .. } = options;
        let ready = if group.rank() == ROOT { prepare_folder(folder) } else { Ok(()) };
        agree::agree_on_result(&mut group, ready)?;
        Ok(Self { folder: folder.clone(), keep: *keep, group })
    }

    /// Path of the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Creates the folder and checks that files can be made in it.
fn prepare_folder(folder: &Path) -> Result<(), CheckpointError> {
    let ready = || {
        fs::create_dir_all(folder).map_err(|error| match fs::metadata(folder) {
            Ok(found) if !found.is_dir() => io::Error::from(ErrorKind::NotADirectory),
            _ => error,
        })?;
        // Detects a read-only file system as well.
        access(folder, AccessFlags::W_OK | AccessFlags::X_OK)?;
        // Makes the folder's own name durable; a user that may not read the parent folder did not create it.
        let above = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        drop(above.map(file::sync_folder));
        Ok(())
    };
    ready().map_err(|source| CheckpointError::Folder { path: folder.to_owned(), source })
}

#[cfg(test)]
mod tests;
