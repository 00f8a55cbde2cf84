//! The state of a training in a file, which is whole or not there at any moment.
//!
//! ```text
//! 8 bytes  `RRckpt1\n`
//! u64      fingerprint of the training
//! u64      steps taken
//! u64      number of parameters
//! f64 …    parameters
//! u64      hash of all bytes before
//! ```
//! All numbers are little-endian.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"RRckpt1\n";
/// Bytes before the parameters.
const HEAD_LEN: usize = 32;
/// Bytes after them.
const HASH_LEN: usize = 8;

/// How far a training has come.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Checkpoint {
    pub(crate) step: u64,
    pub(crate) parameters: Vec<f64>,
}

/// Why a checkpoint is of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("cannot read the checkpoint `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` is no checkpoint, or a torn or damaged one; remove it to begin anew", path.display())]
    Damaged { path: PathBuf },
    #[error("the checkpoint `{}` is of a training with other options; remove it to begin anew", path.display())]
    Foreign { path: PathBuf },
}

impl Checkpoint {
    /// Reads the checkpoint of the training with this fingerprint; `None` if there is no file.
    pub(crate) fn read(
        path: &Path,
        fingerprint: u64,
        parameters: usize,
    ) -> Result<Option<Self>, CheckpointError> {
        let path = || path.to_owned();
        let expected_len = HEAD_LEN + parameters * size_of::<f64>() + HASH_LEN;
        let mut bytes = Vec::new();
        // One byte more than a checkpoint has, so that a longer file is noticed and not swallowed.
        let read =
            File::open(path()).and_then(|file| file.take(expected_len as u64 + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(source) if source.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CheckpointError::Read { path: path(), source }),
        }
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let is_whole = bytes.len() == expected_len
            && bytes.starts_with(&MAGIC)
            && words[3] == parameters as u64
            && words.last() == Some(&hash(bytes[..expected_len - HASH_LEN].iter().copied()));
        if !is_whole {
            return Err(CheckpointError::Damaged { path: path() });
        }
        if words[1] != fingerprint {
            return Err(CheckpointError::Foreign { path: path() });
        }
        let parameters = words[4..words.len() - 1].iter().map(|&bits| f64::from_bits(bits)).collect();
        Ok(Some(Self { step: words[2], parameters }))
    }

    /// Replaces the file by this checkpoint.
    pub(crate) fn write(&self, path: &Path, fingerprint: u64) -> Result<(), CheckpointError> {
        let mut bytes = MAGIC.to_vec();
        for word in [fingerprint, self.step, self.parameters.len() as u64] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        self.parameters.iter().for_each(|parameter| bytes.extend_from_slice(&parameter.to_le_bytes()));
        bytes.extend_from_slice(&hash(bytes.iter().copied()).to_le_bytes());
        replace(path, &bytes)
    }
}

/// Writes beside the file, then renames: whoever reads it sees the old bytes or the new ones.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let beside = PathBuf::from(beside);
    let write = || {
        write_synced(&beside, bytes).map_err(failed(&beside))?;
        fs::rename(&beside, path).map_err(failed(path))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed(folder))
    };
    // It may not even exist; the first error is the one to tell.
    write().inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// Writes it as far as the disk: otherwise its name may outlive a power failure and the bytes not.
fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_owned();
    |source| CheckpointError::Write { path, source }
}

/// FNV-1a: it finds damage, not malice.
pub(crate) fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let folder = Self(std::env::temp_dir().join(format!("rankrun-{}", uuid::Uuid::new_v4())));
            fs::create_dir(&folder.0).unwrap();
            folder
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn checkpoint(step: u64) -> Checkpoint {
        Checkpoint { step, parameters: vec![1.5, -0.0, f64::MAX] }
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = Folder::new();
        let path = folder.0.join("checkpoint");
        assert_eq!(Checkpoint::read(&path, 7, 3).unwrap(), None);
        for step in [20, 40] {
            checkpoint(step).write(&path, 7).unwrap();
            assert_eq!(Checkpoint::read(&path, 7, 3).unwrap(), Some(checkpoint(step)));
        }
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "something was left beside the checkpoint");
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let folder = Folder::new();
        let path = folder.0.join("checkpoint");
        checkpoint(20).write(&path, 7).unwrap();
        let whole = fs::read(&path).unwrap();
        let mut files: Vec<Vec<u8>> = (0..whole.len()).map(|length| whole[..length].to_vec()).collect();
        files.push([&whole[..], b"x"].concat());
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            files.push(flipped);
        }
        for bytes in files {
            fs::write(&path, &bytes).unwrap();
            let result = Checkpoint::read(&path, 7, 3);
            assert!(matches!(result, Err(CheckpointError::Damaged { .. })), "{result:?}");
        }
    }

    #[test]
    fn a_checkpoint_of_other_options_is_refused() {
        let folder = Folder::new();
        let path = folder.0.join("checkpoint");
        checkpoint(20).write(&path, 8).unwrap();
        assert!(matches!(Checkpoint::read(&path, 7, 3), Err(CheckpointError::Foreign { .. })));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let folder = Folder::new();
        let occupied = folder.0.join("occupied");
        fs::create_dir(&occupied).unwrap();
        for (path, failed) in
            [(Path::new("/nowhere/at/all"), Path::new("/nowhere/at/all.partial")), (&occupied, &occupied)]
        {
            let error = checkpoint(1).write(path, 7).unwrap_err();
            assert!(matches!(&error, CheckpointError::Write { path: it, .. } if it == failed), "{error}");
        }
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "something was left beside the folder");
    }
}
