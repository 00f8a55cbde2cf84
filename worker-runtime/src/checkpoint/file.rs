//! One file of a checkpoint: written atomically, and verified by its checksum before use.

use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use super::header::{self, FileHeader, HeaderError, LENGTH_BYTES, MAX_LENGTH};
use super::names;
use crate::regular_file;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("torn: it has {actual} bytes, and should have {expected}")]
    Torn { expected: u64, actual: u64 },
    #[error("not a safetensors file: its header would have {length} bytes, of {actual} in all")]
    Length { length: u64, actual: u64 },
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("damaged: its bytes do not match its checksum")]
    Checksum,
    #[error("it contains step {0}, but its name says another step")]
    Step(u64),
    #[error("its part {part} of {parts}: {cause}")]
    Part { part: usize, parts: usize, cause: Box<Self> },
    #[error("not the part that belongs to the checkpoint")]
    WrongPart,
}

/// A file with a parsed header.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) path: PathBuf,
    pub(super) header: FileHeader,
    /// The header as it lies in the file, without the length.
    pub(super) json: Vec<u8>,
    file: File,
}

/// Length and modification time: identifies a copy of a file across ranks.
pub(super) type Identity = [i64; 2];

impl OpenFile {
    /// Opens a file and parses its header, whose lengths match the file. The data is not verified.
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        let mut file = regular_file::open(path, OpenOptions::new().read(true))?;
        let actual = file.metadata()?.len();
        let mut length = [0; LENGTH_BYTES];
        match file.read_exact(&mut length) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(FileError::Torn { expected: LENGTH_BYTES as u64, actual });
            }
            result => result?,
        }
        let length = u64::from_le_bytes(length);
        if length > MAX_LENGTH {
            return Err(FileError::Length { length, actual });
        }
        let end = length + LENGTH_BYTES as u64;
        if end > actual {
            return Err(FileError::Torn { expected: end, actual });
        }
        // Within the limit of the format, and the file has as many bytes.
        let mut json = Vec::new();
        (&mut file).take(length).read_to_end(&mut json)?;
        let header = FileHeader::parse(&json)?;
        let expected = end.saturating_add(header.data_bytes as u64);
        if expected != actual {
            return Err(FileError::Torn { expected, actual });
        }
        Ok(Self { path: path.to_owned(), header, json, file })
    }

    /// Opens a file and verifies its checksum.
    pub(super) fn open_verified(path: &Path) -> Result<Self, FileError> {
        let mut opened = Self::open(path)?;
        opened.verify()?;
        Ok(opened)
    }

    fn verify(&mut self) -> Result<(), FileError> {
        let without = header::without_checksum(&self.json).ok_or(FileError::Checksum)?;
        let mut hash = Checksum::new();
        hash.add(&(self.json.len() as u64).to_le_bytes());
        hash.add(&without);
        let mut chunk = vec![0; CHUNK.min(self.header.data_bytes)];
        let mut remaining = self.header.data_bytes;
        self.seek(0)?;
        while remaining > 0 {
            let now = remaining.min(CHUNK);
            self.file.read_exact(&mut chunk[..now])?;
            hash.add(&chunk[..now]);
            remaining -= now;
        }
        if hash.finish() == self.header.checksum { Ok(()) } else { Err(FileError::Checksum) }
    }

    /// Reads bytes at an offset from the end of the header.
    pub(super) fn read(&mut self, from: usize, into: &mut [u8]) -> io::Result<()> {
        self.seek(from)?;
        self.file.read_exact(into)
    }

    fn seek(&mut self, to: usize) -> io::Result<()> {
        self.file.seek(SeekFrom::Start((LENGTH_BYTES + self.json.len() + to) as u64)).map(drop)
    }
}

/// Length and modification time of the file; zeros if it does not exist.
pub(super) fn identity(path: &Path) -> Identity {
    let metadata = fs::metadata(path);
    metadata.map_or([0, 0], |file| {
        [file.size().cast_signed(), file.mtime().wrapping_mul(1 << 30) ^ file.mtime_nsec()]
    })
}

#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) folder: &'a Path,
    pub(super) name: &'a str,
    /// The output of [`header::render`].
    pub(super) head: Vec<u8>,
    /// The bytes after the header.
    pub(super) data: &'a [&'a [u8]],
}

/// A file that cannot be written or read, and why.
pub(super) type FileFailure = (PathBuf, io::Error);

impl Draft<'_> {
    /// Writes a temporary file, syncs it and renames it: readers see the old or the new content, also after
    /// a power failure. Returns the checksum.
    pub(super) fn write(mut self, mark: u64) -> Result<u64, FileFailure> {
        let beside = self.folder.join(names::unfinished_file_name(self.name, mark));
        let mut hash = Checksum::new();
        hash.add(&self.head);
        self.data.iter().for_each(|bytes| hash.add(bytes));
        let checksum = hash.finish();
        if let Some(place) = header::checksum_range(&self.head) {
            self.head[place].copy_from_slice(header::render_checksum(checksum).as_bytes());
        }
        let place = self.folder.join(self.name);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| (path, source)
        };
        let write = || {
            self.write_synced(&beside).map_err(failed(&beside))?;
            fs::rename(&beside, &place).map_err(failed(&place))?;
            sync_folder(self.folder).map_err(failed(self.folder))
        };
        // It may not exist; the first error is returned.
        write().inspect_err(|_| drop(fs::remove_file(&beside)))?;
        Ok(checksum)
    }

    fn write_synced(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(&self.head)?;
        self.data.iter().try_for_each(|bytes| file.write_all(bytes))?;
        file.sync_all()
    }
}

/// Waits until the names in a folder are on disk.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The file names in a folder; empty if it does not exist.
pub(super) fn list(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        // Names of checkpoints are UTF-8.
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// XXH3 with 64 bits: against damage, not against attacks.
pub(super) struct Checksum(XxHash3_64);

impl Checksum {
    pub(super) fn new() -> Self {
        Self(XxHash3_64::with_seed(0))
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub(super) fn finish(&self) -> u64 {
        self.0.finish()
    }
}
